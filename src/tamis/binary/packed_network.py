"""A trained binary network becomes a `Compressed`, whose file has one bit for each binary weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import Codes, Compressed, cast_scales
from tamis.binary.conversion import FIRST, KINDS, LAST
from tamis.binary.layers import BinaryLayer, binary_layers
from tamis.binary.scales import analytic_scale
from tamis.errors import InvalidInput
from tamis.graph import Network, trace


def pack_network(
    model: nn.Module,
    example: Tensor | tuple[Tensor, ...],
    recipe: Iterable[Mapping[str, Any]] | None = None,
) -> Compressed:
    """Return a binary network with ±1 for its real weights W: codes of two levels, one bit each in a `.tamis` file.

    In evaluation a layer needs sign(W) alone, and so the network computes the same, to the bit. With the scale
    "analytic", which is the mean of |W|, weights become ± that mean: still one bit each, and a number for each channel.
    What W was is gone: training cannot go on where it was.

    Args:
        model: one with binary layers; it is left as it is.
        example: an input, or a tuple of inputs, to trace it with.
        recipe: the steps that the file names; by default the one that made layers binary, from which
            `tamis.load` makes them again.

    Example:
        >>> model = nn.Sequential(tamis.binary.BinaryLinear(8, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
        >>> pack_network(model, torch.zeros(1, 8)).save("small.tamis")
        >>> again = tamis.load("small.tamis", model).apply_to(model)  # ready for `tamis.binary.compile`

    Reference: chee2021xnor.
    """
    layers = _check(model)
    return pack_traced(
        trace(model, example), model, [_describe_binarization(model, layers)] if recipe is None else recipe
    )


def pack_traced(net: Network, model: nn.Module, recipe: Iterable[Mapping[str, Any]]) -> Compressed:
    """Pack a network whose graph is known: `net` was traced from a module like this one, with any weights."""
    layers = _check(model)
    # Of the module, because those that the graph was traced with may be older.
    net = net.with_weights_of(model)
    codes = {name: _encode_signs(net.params[name], users) for name, users in _find_weights(net, layers).items()}
    values = {name: code.values() for name, code in codes.items()}
    return Compressed(net.with_params(values), recipe=recipe, codes=codes)


def _check(model: nn.Module) -> dict[str, BinaryLayer]:
    """Return the binary layers of a model, and refuse those whose weights are not signs yet."""
    layers = binary_layers(model)
    for name, layer in layers.items():
        if layer.real_weights:
            raise InvalidInput(f"'{name}' has real weights, as in the first stage of training: train the second one")
    return layers


def _describe_binarization(model: nn.Module, layers: Mapping[str, BinaryLayer]) -> dict[str, Any]:
    """Write the recipe step that `binarize` ran, or only its name where layers differ in more than their sizes."""
    hows = {(layer.form, layer.estimator) for layer in layers.values()}
    keep = [name for name, module in model.named_modules() if type(module) in KINDS]
    if len(hows) > 1 or FIRST in keep or LAST in keep:  # words for places, not for names
        return {"step": "binarize"}
    scale, estimator = hows.pop()
    return {"step": "binarize", "scale": scale, "estimator": estimator, "keep": keep}


def _find_weights(net: Network, layers: Mapping[str, BinaryLayer]) -> dict[str, list[BinaryLayer]]:
    """Return the binary layers that use each parameter as weight; none where something else uses it as well."""
    owners = {f"{name}.weight" if name else "weight": layer for name, layer in layers.items()}
    names: dict[str, list[str]] = {}
    # A tied weight has several names. It can be ±1 only where each of them is a binary layer's: others need the
    # numbers.
    for name in [*net.params, *net.aliases]:
        names.setdefault(net.aliases.get(name, name), []).append(name)
    return {
        first: [owners[name] for name in all_names]
        for first, all_names in names.items()
        if all(name in owners for name in all_names)
    }


def _encode_signs(weight: Tensor, layers: list[BinaryLayer]) -> Codes:
    """Encode weights as ±1, or as ± the mean of |W| where a scale is computed from it."""
    scales = weight.new_ones([1] * weight.dim())
    # Layers of other forms see signs alone, so that ± mean |W| serves them as well where they share the weight.
    if any(layer.form == "analytic" for layer in layers):
        scales = cast_scales(analytic_scale(weight), weight.dtype).reshape(-1, *[1] * (weight.dim() - 1))
    return Codes((weight >= 0).to(torch.uint8), weight.new_tensor([-1.0, 1.0]), scales)
