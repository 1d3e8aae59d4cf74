"""Conversion turns a network of linear and convolutional layers into an XNOR-Net++."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from tamis.binary.estimators import check_estimator
from tamis.binary.layers import BinaryConv1d, BinaryConv2d, BinaryLayer, BinaryLinear
from tamis.binary.scales import SPATIAL_FORMS, check_form
from tamis.errors import InvalidInput, join_names
from tamis.graph import Patterns, as_patterns, matches, substitute_modules
from tamis.settings import Binarization, documents

Binarizable = nn.Linear | nn.Conv1d | nn.Conv2d
CONVOLUTIONS: dict[type[nn.Module], type[BinaryConv2d]] = {nn.Conv1d: BinaryConv1d, nn.Conv2d: BinaryConv2d}
KINDS = (nn.Linear, *CONVOLUTIONS)
FIRST, LAST = "first", "last"


@documents(Binarization, "keep", "scale", "estimator")
def binarize(
    model: nn.Module,
    keep: Patterns = (FIRST, LAST),
    example: Tensor | tuple[Tensor, ...] | None = None,
    scale: str = "rank_one",
    estimator: str = "clipped",
) -> nn.Module:
    """Return a copy of a network with binary linear and convolutional layers, which is then to be trained.

    Each `nn.Linear`, `nn.Conv1d` and `nn.Conv2d` becomes a `BinaryLinear`, `BinaryConv1d` or `BinaryConv2d` in its
    place, which begins with its weights as W, with a scale of mean |W|, and with its bias, if it has one: the text has
    none, but where no batch normalization follows, a bias does what nothing else does. Everything else stays, in its
    order: a block conv → BN → ReLU becomes BN → sign → binary conv → scale → BN → ReLU. A ReLU before the next sign is
    no harm: the batch normalization before the sign takes the mean off again. Layers of other kinds (transposed
    convolutions, attention) stay real. The formulas of scales are in `tamis.binary.scales`, those of estimators in
    `tamis.binary.estimators`.

    Args:
        model: any module; it is left as it is.
        example: an input, or a tuple of inputs. Where there are convolutions, the scales "full", "spatial" and
            "rank_one" need it: it shows how large their outputs are. Without it, layers are in the order in which the
            model registered them.
        <settings>

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> [type(layer).__name__ for layer in binarize(model)]  # which `train_binary` trains
        ['Linear', 'ReLU', 'BinaryLinear', 'ReLU', 'Linear']

    Reference: chee2021xnor.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"binarize needs an nn.Module, got {type(model).__name__}")
    check_form(scale)
    check_estimator(estimator)
    _find_layers(model)  # refused here, where it can be said why; a weight that is computed cannot be copied
    binary = copy.deepcopy(model)
    # Looked up again in the copy: layers are replaced by identity, and the model's own must not be.
    layers = _find_layers(binary)
    sizes = _measure_output_sizes(model, example) if example is not None else {}
    # The order of registration need not be that of the calls, which "first" and "last" mean wherever an example shows
    # it.
    order = list(sizes) or list(layers)
    real_layers = _match_real_layers(keep, order, layers)
    chosen = {name: layer for name, layer in layers.items() if name not in real_layers}
    if not chosen:
        raise InvalidInput(f"{keep=} leaves no layer to binarize; there are {join_names(layers)}")
    replacements: dict[nn.Module, BinaryLayer] = {}
    with torch.random.fork_rng(devices=[]):  # a new layer draws weights, which are not used
        for name, layer in chosen.items():
            replacements[layer] = _as_binary(name, layer, sizes.get(name), scale, estimator)
    return substitute_modules(binary, replacements)


def _find_layers(model: nn.Module) -> dict[str, Binarizable]:
    """Return the layers that can be made binary, by name, without subclasses, which may use their weight otherwise."""
    layers: dict[str, Binarizable] = {}
    for name, module in model.named_modules():
        if type(module) not in KINDS:
            continue
        assert isinstance(module, Binarizable)
        weight = module._parameters.get("weight")
        if weight is None or isinstance(weight, UninitializedParameter):
            raise InvalidInput(
                f"the weight of '{name}' is no parameter of its own but computed from others, or not initialised yet: "
                "remove its parametrization, or call the model once"
            )
        layers[name] = module
    if not layers:
        raise InvalidInput(f"{type(model).__name__} has no linear or convolutional layer to binarize")
    return layers


def _measure_output_sizes(model: nn.Module, example: Tensor | tuple[Tensor, ...]) -> dict[str, tuple[int, ...]]:
    """Return rows and columns of each layer's output, in the order in which the example passes a copy's layers."""
    # A copy in evaluation, so that neither the running statistics nor the hooks of the caller's model change.
    model = copy.deepcopy(model).eval()
    examples = example if isinstance(example, tuple) else (example,)
    sizes: dict[str, tuple[int, ...]] = {}

    def note(name: str, size: tuple[int, ...]) -> None:
        # A linear layer has no rows and columns: its size is (), and its place in the order is what counts.
        if sizes.setdefault(name, size) != size:
            sizes[name] = ()  # used twice, for outputs of two sizes

    for name, layer in _find_layers(model).items():
        axes = 0 if isinstance(layer, nn.Linear) else layer.weight.dim() - 2
        hook = partial(_note_size, note, name, axes)
        layer.register_forward_hook(hook)
    try:
        with torch.no_grad():
            model(*examples)
    except Exception as error:  # whatever the user's own module trips over
        shapes = ", ".join(str(tuple(value.shape)) for value in examples if isinstance(value, Tensor))
        reason = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"{type(model).__name__} does not take the example, of shape {shapes}: {reason}") from error
    return sizes


def _note_size(
    note: Callable[[str, tuple[int, ...]], None], name: str, axes: int, _module: nn.Module, _inputs: Any, output: Tensor
) -> None:
    note(name, tuple(output.shape[output.dim() - axes :]))


def _match_real_layers(keep: Patterns, order: list[str], layers: Iterable[str]) -> set[str]:
    """Return the names of the layers that stay real."""
    real_layers: set[str] = set()
    for pattern in as_patterns(keep):
        if pattern in (FIRST, LAST):
            real_layers.add(order[0 if pattern == FIRST else -1])
            continue
        matching = {name for name in layers if matches([name], (pattern,))}
        if not matching:
            raise InvalidInput(f"keep names '{pattern}', which matches no layer; there are {join_names(layers)}")
        real_layers |= matching
    return real_layers


def _as_binary(name: str, layer: Binarizable, size: tuple[int, ...] | None, scale: str, estimator: str) -> BinaryLayer:
    """Make a binary layer that takes over the parameters of a real one."""
    binary: BinaryLayer
    if isinstance(layer, nn.Linear):
        binary = BinaryLinear(
            layer.in_features, layer.out_features, layer.bias is not None, scale=scale, estimator=estimator
        )
    else:
        _check_convolution(name, layer, size, scale)
        binary = CONVOLUTIONS[type(layer)](
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            layer.bias is not None,
            scale=scale,
            output_size=size if scale in SPATIAL_FORMS else None,
            estimator=estimator,
        )
    # For the normalization and the scale, which are new; weight and bias are taken over next.
    binary.to(layer.weight.device, layer.weight.dtype)
    for parameter in ("weight", "bias"):  # not copies: what is tied stays tied
        binary.register_parameter(parameter, layer._parameters[parameter])
    # Once more: when the layer was made, the scale was that of weights which nobody uses.
    binary.begin_scale()
    return binary.train(layer.training)


def _check_convolution(name: str, layer: nn.Conv1d | nn.Conv2d, size: tuple[int, ...] | None, scale: str) -> None:
    if layer.padding_mode != "zeros":
        raise InvalidInput(
            f"'{name}' pads with padding_mode={layer.padding_mode!r}, and binary layers pad with zeros: keep it real "
            f"with keep=(…, '{name}')"
        )
    # An empty size is that of a layer with outputs of several sizes, see `_measure_output_sizes`.
    if scale not in SPATIAL_FORMS or size:
        return
    if size is None:
        raise InvalidInput(
            f"{scale=} has a scale for each row and column of the output of '{name}': give an example that passes it, "
            "example=…, or choose scale='channel'"
        )
    raise InvalidInput(
        f"'{name}' is used more than once, for outputs of different sizes, so that {scale=} does not fit: choose "
        f"scale='channel', or keep it real with keep=(…, '{name}')"
    )
