"""Layers are found here whose weights can be chosen again from calibration data, one layer after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tamis.errors import InvalidInput
from tamis.graph import Network, Node, Patterns, Ref, is_affine_batch_norm, selected
from tamis.graph.ops import Call, describe
from tamis.layerwise.layer_matrices import (
    ConvolutionLayout,
    DenseLayout,
    Geometry,
    MatrixLayout,
    TransposedConvolutionLayout,
)

Kernels = Literal["joint", "per_channel"]


@dataclass(frozen=True)
class Shift:
    """A shift is a parameter that moves each output channel of a layer by a constant: `sign` · its entry is added."""

    name: str
    sign: int


@dataclass(frozen=True)
class Layer:
    """A layer is a node of the network whose weight can be chosen again.

    Attributes:
        node: the operation.
        inputs: the name of the data that is multiplied with the weight.
        weight: the name of the parameter.
        bias: the name of its bias, if it has one with a number for each output channel.
        shift: the parameter that can take up a change of the mean output: the layer's bias, or the running mean of the
            batch-norm that alone reads its outputs; None if there is neither.
        layout: how the weight and the data become matrices.
    """

    node: Node
    inputs: str
    weight: str
    bias: str | None
    shift: Shift | None
    layout: MatrixLayout

    @property
    def spatial_axes(self) -> int:
        """Return the number of axes of the layer's outputs that follow the channel axis."""
        return 0 if isinstance(self.layout, DenseLayout) else len(self.layout.shape) - 2


def find_layers(net: Network, include: Patterns, exclude: Patterns, conv: Kernels, done: str) -> tuple[Layer, ...]:
    """Find the layers that the user's patterns choose, in the order in which data meets them.

    A weight that several nodes share belongs to the first of them; the others use what is chosen there.

    Args:
        net: the network.
        include, exclude: patterns for the names of weights.
        conv: whether a convolution's neurons are whole filters ("joint") or 2-D kernels ("per_channel").
        done: what happens to the weights, for messages: "quantized".
    """
    if conv not in ("joint", "per_channel"):
        raise InvalidInput(f"conv must be 'joint' or 'per_channel', got {conv!r}")
    found: dict[str, Layer] = {}
    for layer in _iterate_candidates(net, conv):
        found.setdefault(layer.weight, layer)
    # Known, so that a pattern that names one is answered by an error and not by silence.
    computed = dict(_iterate_computed_weights(net))
    known = tuple(found | computed)
    if not known:
        raise InvalidInput(f"nothing can be {done}: {net!r} has no linear or convolution layer with a weight")
    chosen = selected(net, known, include, exclude, done)
    if refused := [name for name in chosen if name in computed]:
        raise InvalidInput(
            f"'{refused[0]}' cannot be {done}: the weight at {computed[refused[0]].module or 'the top level'} is "
            f"computed from it; bake the parametrization into the weight first, or pass exclude='{refused[0]}'"
        )
    layers = tuple(layer for name, layer in found.items() if name in chosen)
    for layer in layers:
        _check_first_reader(net, layer, done)
    return layers


def _check_first_reader(net: Network, layer: Layer, done: str) -> None:
    """Refuse a weight that another node reads before its layer does, such as a tied embedding.

    That node has already run with the old weight when the new one is chosen.
    """
    first = net.users[layer.weight][0]
    if first is not layer.node:
        raise InvalidInput(
            f"'{layer.weight}' cannot be {done}: '{first.op}' at {first.module or 'the top level'} reads it before the "
            f"layer at {layer.node.module or 'the top level'} does; pass exclude='{layer.weight}'"
        )


def _iterate_candidates(net: Network, conv: Kernels) -> Iterator[Layer]:
    for node in net.data_nodes:
        names = _weight_and_inputs(net, node)
        if names is None:
            continue
        weight, inputs, bias = names
        layout = _find_layout(net, node, weight, conv == "per_channel")
        if layout is not None:
            # A bias that broadcasts, one number for all channels say, cannot keep the mean of each channel.
            own = bias if bias is None or tuple(net.params[bias].shape) == (layout.channels,) else None
            yield Layer(node, inputs, weight, own, _find_shift(net, node, bias, layout), layout)


def _weight_and_inputs(net: Network, node: Node) -> tuple[str, str, str | None] | None:
    """Return the names of weight, data and bias, or None where a node is no layer with a parameter as its weight."""
    named, names = node.arguments, describe(node).layer(node)
    # With factors of its own in the call (addmm's α and β) the outputs are not Yw + b, as all formulas here assume.
    if names is None or names.scaled:
        return None
    weight, inputs, bias = named[names.weight], named[names.inputs], named[names.bias] if names.bias else None
    if not isinstance(weight, Ref) or weight.name not in net.trainable or inputs.name not in net.carries_data:
        return None
    known_bias = bias.name if isinstance(bias, Ref) and bias.name in net.params else None
    if bias is not None and known_bias is None:
        return None  # the bias is computed, so it is no parameter that could be corrected
    return weight.name, inputs.name, known_bias


def _iterate_computed_weights(net: Network) -> Iterator[tuple[str, Node]]:
    """Yield the parameters that a layer's weight is computed from, as in weight normalization, with that layer."""
    for node in net.data_nodes:
        names = describe(node).layer(node)
        weight = node.arguments[names.weight] if names else None
        if isinstance(weight, Ref) and weight.name in net.node and weight.name not in net.carries_data:
            yield from ((name, node) for name in net.trainable_sources(weight.name))


def _find_layout(net: Network, node: Node, weight: str, per_channel: bool) -> MatrixLayout | None:
    op, shape = describe(node), tuple(net.params[weight].shape)
    call = Call(node, lambda name: net.params.get(name), net.carries_data)
    windows = op.windows(call)
    if windows is None:
        # A batched matrix product has a weight of three axes, and no layout that is a family of neurons.
        return DenseLayout.of(shape, transposed=op.channel_axes == (1, 0)) if len(shape) == 2 else None
    geometry = Geometry(windows.stride, windows.padding, windows.dilation)
    if windows.spacing is None:
        return ConvolutionLayout.of(shape, call["groups"], geometry, per_channel)
    return TransposedConvolutionLayout.of(shape, call["groups"], geometry, windows.spacing, per_channel)


def _find_shift(net: Network, node: Node, bias: str | None, layout: MatrixLayout) -> Shift | None:
    """Find the parameter that can take up a change of the mean: one that no other node reads."""
    if bias is not None:
        fits = tuple(net.params[bias].shape) == (layout.channels,)
        return Shift(bias, +1) if fits and len(net.users[bias]) == 1 else None
    readers = net.users.get(node.name, ())
    if len(readers) != 1 or node.name in net.output_names or not is_affine_batch_norm(net, readers[0]):
        return None
    # BatchNorm subtracts its mean, hence the sign −1: s (x − μ) + β keeps its mean if μ moves as x does.
    mean = readers[0].arguments["running_mean"]
    if readers[0].args[0] != Ref(node.name) or not isinstance(mean, Ref) or mean.name not in net.params:
        return None
    if len(node.shape or ()) != len(layout.shape) or len(net.users[mean.name]) != 1:
        return None  # unless outputs are (samples, channels, *space), the batch-norm's channels are another axis
    return Shift(mean.name, -1)
