"""The paper's greedy path-following quantization by the letter, from hooks on plain modules: nothing of tamis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)


@dataclass
class Step:
    """What a quantizer chose for a layer, seen along the path that its own choices take.

    Attributes:
        wrong: how many choices are not the best one.
        worst: by how much a choice costs more than the best one, at most, relative to what stands in the norms.
        total: how many choices there are.
    """

    wrong: int = 0
    worst: float = 0.0
    total: int = 0


def inputs_of_layers(module: nn.Module, data: Tensor) -> dict[str, Tensor]:
    """The inputs of every linear and convolution layer, in the order in which they are called; the first call's."""
    seen: dict[str, Tensor] = {}
    names = {layer: name for name, layer in module.named_modules()}

    def look(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen.setdefault(names[layer], args[0].clone())

    hooks = [layer.register_forward_pre_hook(look) for layer in names if isinstance(layer, LAYERS)]
    with torch.no_grad():
        module(data)
    for hook in hooks:
        hook.remove()
    return seen


def places_of(layer: nn.Module, conv: str = "joint") -> Tensor:
    """Where in the flattened weight each feature of each neuron stands: (output channels, kernels, features).

    A neuron is a whole filter, and kernels is 1; with conv="per_channel" it is one 2-D kernel (ERRATA 11). The kernel
    of a transposed convolution is read backwards, as its windows see the input.
    """
    weight = layer.weight
    places = torch.arange(weight.numel()).reshape(weight.shape)
    if isinstance(layer, TRANSPOSED):
        groups, window = layer.groups, prod(weight.shape[2:])
        turned = places.flip(*range(2, weight.dim())).reshape(
            groups, weight.shape[0] // groups, weight.shape[1], window
        )
        places = turned.transpose(1, 2).reshape(groups * weight.shape[1], -1, window)
    elif isinstance(layer, nn.Linear):
        return places[:, None, :]
    places = places.reshape(len(places), -1, prod(weight.shape[2:]))
    return places if conv == "per_channel" else places.reshape(len(places), 1, -1)


def columns(layer: nn.Module, inputs: Tensor, places: Tensor) -> Tensor:
    """Y_t of every neuron, (output channels, kernels, features, samples): outputs for weights that are 1 at t alone."""
    probe = deepcopy(layer).double()
    found = []
    with torch.no_grad():
        if probe.bias is not None:
            probe.bias.zero_()
        for at in places.flatten(1).T:
            probe.weight.zero_()
            probe.weight.view(-1)[at] = 1.0
            outputs = probe(inputs.double())
            channel_axis = -1 if isinstance(layer, nn.Linear) else -(layer.weight.dim() - 1)
            found.append(outputs.movedim(channel_axis, 0).flatten(1))
    return torch.stack(found, 1).unflatten(1, places.shape[1:])


def median_radii(weight: Tensor, places: Tensor, per: str) -> Tensor:
    """median |W|, one for each output channel, by numpy."""
    magnitudes = weight.detach().double().abs().flatten().numpy()
    rows = places.flatten(1).numpy()
    if per == "layer":
        return torch.full((len(rows),), float(np.median(magnitudes)), dtype=torch.float64)
    return torch.from_numpy(np.median(magnitudes[rows], axis=1))


def along_the_path(weights: Tensor, y: Tensor, moved: Tensor, levels: Tensor, chosen: Tensor) -> Step:
    """Follow (3): with u_0 = 0, is q_t a level p that minimises ‖u_{t−1} + w_t Y_t − p Ỹ_t‖, or |w_t − p| if Ỹ_t = 0?

    Args:
        weights: (neurons, features).
        y, moved: Y and Ỹ, (neurons, features, samples).
        levels: (neurons, M).
        chosen: indices, (neurons, features).
    """
    step, state = Step(total=weights.numel()), torch.zeros_like(y[:, 0])
    neurons = torch.arange(len(weights))
    for t in range(weights.shape[1]):
        state = state + weights[:, t, None] * y[:, t]
        costs = (state[:, None, :] - levels[:, :, None] * moved[:, t, None, :]).square().sum(2)
        size = state.square().sum(1) + levels.abs().amax(1).square() * moved[:, t].square().sum(1)
        dead = (moved[:, t] == 0).all(1)
        costs = torch.where(dead[:, None], (weights[:, t, None] - levels).square(), costs)
        size = torch.where(dead, weights[:, t].square() + levels.abs().amax(1).square(), size)
        excess = costs[neurons, chosen[:, t]] - costs.amin(1)
        step.wrong += int((excess > 0).sum())
        step.worst = max(step.worst, float((excess / size.clamp_min(1e-300)).max()))
        state = state - levels[neurons, chosen[:, t], None] * moved[:, t]
    return step


def check_gpfq(
    module: nn.Module,
    quantized: Mapping[str, Tensor],
    indices: Mapping[str, Tensor],
    data: Tensor,
    alphabet: Iterable[float],
    c_alpha: float | None,
    *,
    per: str = "channel",
    conv: str = "joint",
    biases: bool = False,
    order: str = "natural",
) -> dict[str, Step]:
    """Whether a network quantized layer by layer is what (2) and (3) define, for every layer.

    Args:
        module: the original network.
        quantized: all parameters of the quantized one.
        indices: of the levels, by the names of quantized parameters.
        data: calibration inputs.
        alphabet: the levels before they are scaled.
        c_alpha: C_α; None if levels are not scaled.
    """
    small, steps = deepcopy(module), {}
    for name in inputs_of_layers(module, data):
        y, moved = (inputs_of_layers(each, data)[name] for each in (module, small))
        layer = module.get_submodule(name)
        places = places_of(layer, conv)
        weights = layer.weight.detach().flatten()[places].double()
        chosen = indices[f"{name}.weight"].flatten()[places].long()
        y, moved = columns(layer, y, places), columns(layer, moved, places)
        if biases and layer.bias is not None:
            one = torch.ones_like(y[:, :, :1])
            weights = torch.cat([weights, layer.bias.detach().double()[:, None, None]], 2)
            chosen = torch.cat([chosen, indices[f"{name}.bias"].long()[:, None, None]], 2)
            y, moved = torch.cat([y, one], 2), torch.cat([moved, one], 2)
        if order == "norm":
            first = moved.square().sum(3).argsort(dim=2, descending=True, stable=True)
            weights, chosen = weights.gather(2, first), chosen.gather(2, first)
            y, moved = (each.gather(2, first[..., None].expand_as(each)) for each in (y, moved))
        dtype = layer.weight.dtype
        radii = torch.ones(len(places)) if c_alpha is None else c_alpha * median_radii(layer.weight, places, per)
        levels = (torch.tensor(list(alphabet), dtype=dtype) * radii.to(dtype)[:, None]).double()
        spread = levels[:, None, :].expand(-1, places.shape[1], -1)
        steps[name] = along_the_path(
            *(each.flatten(0, 1) for each in (weights, y, moved, spread, chosen))  # type: ignore[arg-type]
        )
        own = {key: quantized[f"{name}.{key}"] for key, _ in layer.named_parameters()}
        at_levels = spread.gather(2, indices[f"{name}.weight"].flatten()[places].long())
        assert torch.equal(own["weight"].flatten()[places].double(), at_levels)
        if biases and layer.bias is not None:
            assert torch.equal(own["bias"].double(), levels.gather(1, indices[f"{name}.bias"].long()[:, None])[:, 0])
        small.get_submodule(name).load_state_dict(own)
    return steps
