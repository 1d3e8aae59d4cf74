"""The layers of a network whose weights can be chosen anew, one after the other, from what data makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tamis.errors import InvalidInput
from tamis.graph import Network, Node, Patterns, Ref, is_affine_batch_norm, selected
from tamis.graph.ops import AddMM, Call, Conv, ConvTranspose, Linear, MatMul, describe
from tamis.layerwise.layer_matrices import Convolution, Dense, Form, Geometry, TransposedConvolution

Kernels = Literal["joint", "per_channel"]


@dataclass(frozen=True)
class Shift:
    """A parameter that moves each output channel of a layer by a constant: `sign` · its entry is added."""

    name: str
    sign: int


@dataclass(frozen=True)
class Layer:
    """One node with a weight to choose.

    Attributes:
        node: the operation.
        inputs: the name of the data that meets the weight.
        weight: the parameter.
        bias: its bias, if it has one with a number for each output channel.
        shift: where a change of the mean of its outputs can go: its bias, or the running mean of the batch-norm that
            alone reads it; None if there is neither.
        form: the weight and the data as matrices.
    """

    node: Node
    inputs: str
    weight: str
    bias: str | None
    shift: Shift | None
    form: Form

    @property
    def spatial_axes(self) -> int:
        """How many axes of the layer's outputs stand after that of its channels."""
        return 0 if isinstance(self.form, Dense) else len(self.form.shape) - 2


def find_layers(net: Network, include: Patterns, exclude: Patterns, conv: Kernels, done: str) -> tuple[Layer, ...]:
    """The layers that the user's patterns choose, in the order in which data meets them.

    A weight that several nodes share is chosen where data meets it first, and the others take it from there.

    Args:
        net: the network.
        include, exclude: patterns for the names of weights.
        conv: whether a convolution's neurons are whole filters ("joint") or 2-D kernels ("per_channel").
        done: what happens to the weights, for messages: "quantized".
    """
    if conv not in ("joint", "per_channel"):
        raise InvalidInput(f"conv must be 'joint' or 'per_channel', got {conv!r}")
    found: dict[str, Layer] = {}
    for layer in _layers(net, conv):
        found.setdefault(layer.weight, layer)
    computed = dict(_computed(net))
    known = tuple(found | computed)
    if not known:
        raise InvalidInput(f"there is nothing to be {done}: {net!r} has no linear or convolution layer with a weight")
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
    """Refuse a weight that something else has read before data meets it in its layer, such as a tied embedding.

    What was computed there would not be what the new weight gives.
    """
    first = net.users[layer.weight][0]
    if first is not layer.node:
        raise InvalidInput(
            f"'{layer.weight}' cannot be {done}: '{first.op}' at {first.module or 'the top level'} reads it before the "
            f"layer at {layer.node.module or 'the top level'} does; pass exclude='{layer.weight}'"
        )


def _layers(net: Network, conv: Kernels) -> Iterator[Layer]:
    for node in net.data_nodes:
        described = _weight_and_inputs(net, node)
        if described is None:
            continue
        weight, inputs, bias = described
        form = _form(net, node, weight, conv == "per_channel")
        if form is not None:
            own = bias if bias is None or tuple(net.params[bias].shape) == (form.channels,) else None
            yield Layer(node, inputs, weight, own, _shift(net, node, bias, form), form)


def _weight_and_inputs(net: Network, node: Node) -> tuple[str, str, str | None] | None:
    """The names of weight, data and bias, where a node is a layer with a parameter for its weight."""
    op, named = describe(node), node.arguments
    if isinstance(op, (Linear, Conv)):
        weight, inputs, bias = named["weight"], named["input"], named["bias"]
    elif isinstance(op, AddMM) and named["alpha"] == 1 and named["beta"] == 1:
        weight, inputs, bias = named["mat2"], named["mat1"], named["self"]
    elif isinstance(op, MatMul):
        weight, inputs, bias = named.get("other", named.get("mat2")), named["self"], None
    else:
        return None
    if not isinstance(weight, Ref) or weight.name not in net.trainable or inputs.name not in net.carries_data:
        return None
    known_bias = bias.name if isinstance(bias, Ref) and bias.name in net.params else None
    if bias is not None and known_bias is None:
        return None  # the bias is computed from something: outputs are not what weight and parameter give
    return weight.name, inputs.name, known_bias


def _computed(net: Network) -> Iterator[tuple[str, Node]]:
    """Parameters that a layer's weight is computed from, as in weight normalization, with that layer."""
    for node in net.data_nodes:
        op = describe(node)
        if isinstance(op, (Linear, Conv, AddMM, MatMul)):
            for argument in ("weight", "mat2", "other"):  # what stands on the right of the data
                weight = node.arguments.get(argument)
                if isinstance(weight, Ref) and weight.name in net.node and weight.name not in net.carries_data:
                    yield from ((name, node) for name in net.sources(weight.name))


def _form(net: Network, node: Node, weight: str, per_channel: bool) -> Form | None:
    op, shape = describe(node), tuple(net.params[weight].shape)
    if not isinstance(op, Conv):
        return Dense.of(shape, transposed=not isinstance(op, Linear)) if len(shape) == 2 else None
    call = Call(node, lambda name: net.params.get(name), net.carries_data)
    stride, padding, dilation = map(tuple, op.geometry(call)[1:])
    if not isinstance(op, ConvTranspose):
        return Convolution.of(shape, call["groups"], Geometry(stride, padding, dilation), per_channel)
    plain = Geometry((1,) * len(stride), padding, dilation)
    return TransposedConvolution.of(shape, call["groups"], plain, stride, per_channel)


def _shift(net: Network, node: Node, bias: str | None, form: Form) -> Shift | None:
    """The parameter that can take up a change of the mean: one that nothing else reads."""
    if bias is not None:
        fits = tuple(net.params[bias].shape) == (form.channels,)
        return Shift(bias, +1) if fits and len(net.users[bias]) == 1 else None
    readers = net.users.get(node.name, ())
    if len(readers) != 1 or node.name in net.output_names or not is_affine_batch_norm(net, readers[0]):
        return None
    mean = readers[0].arguments["running_mean"]
    if readers[0].args[0] != Ref(node.name) or not isinstance(mean, Ref) or mean.name not in net.params:
        return None
    if len(node.shape or ()) != len(form.shape) or len(net.users[mean.name]) != 1:
        return None  # of other outputs than (samples, channels, *space), the batch-norm's channels are another axis
    return Shift(mean.name, -1)
