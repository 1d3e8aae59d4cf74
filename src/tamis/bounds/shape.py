"""`read_shape` reads the sizes, counts and conditions that the theorems of chapter 4 ask for off a network's graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tamis.bounds.arguments import MOST_BITS
from tamis.errors import AssumptionViolated, InvalidInput
from tamis.graph import ONE, FixedValues, Network, Node, fold_batch_norm, references_in, symmetries
from tamis.graph.ops import ABS, RELU, Call, Capability, IntervalRule, PiecewiseLinear, describe, require

NONNEGATIVE = ("relu", "abs")  # activations whose results are
IDENTITY = PiecewiseLinear((), (1.0,))  # clamping to no interval at all


@dataclass(frozen=True)
class GraphShape:
    """A graph shape has the numbers that bounds are made of (thesis, Theorems 4.3.1 and 4.4.1, Remark 4.4.1).

    Attributes:
        d_in: input neurons.
        d_out: output neurons.
        depth: D of Theorem 4.4.1, the most neurons after the input on a path: identity neurons are not counted, the
            output is, and a selection right after an activation is one neuron with it (docs/bounds.md).
        kernel: K, the most neurons that a k-max-pooling neuron selects from; 1 without pooling.
        pool_kinds: P, how many kinds of k-max-pooling there are.
        pool_layers: M, how many layers of k-max-pooling there are.
        params: free parameters, each shared one counted once, batch-norm folded.
        rescalings: dimension of the neuron-wise rescaling symmetries; a convolution's channel counts once.
        biases: whether anything fixed is added anywhere.
        pooling_in_layers: whether Remark 4.4.1 applies: one kind of pooling at most, no path around a pooling layer.
        activations: how many activation functions there are; ReLU alone is 1.
        longest_path: the most neurons after the input on a path, identity neurons counted; `depth` if not given.
        weight_sharing: whether weights are shared between neurons, or edges have no parameter.
    """

    d_in: int
    d_out: int
    depth: int
    kernel: int
    pool_kinds: int
    pool_layers: int
    params: int
    rescalings: int
    biases: bool
    pooling_in_layers: bool
    activations: int = 1
    longest_path: int = 0
    weight_sharing: bool = True

    def __post_init__(self) -> None:
        least = {"d_in": 1, "d_out": 1, "depth": 1, "kernel": 1, "activations": 1}
        least |= dict.fromkeys(("pool_kinds", "pool_layers", "params", "rescalings", "longest_path"), 0)
        for name, smallest in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < smallest:
                raise InvalidInput(f"{name} of a GraphShape must be an integer of at least {smallest}, got {value!r}")
            if value.bit_length() > MOST_BITS:
                raise InvalidInput(
                    f"{name} of a GraphShape must be below 2^{MOST_BITS}, got one of {value.bit_length()} bits"
                )
        if (self.pool_kinds == 0) != (self.pool_layers == 0):
            raise InvalidInput(
                f"a GraphShape has kinds of pooling where it has pooling layers, got pool_kinds = {self.pool_kinds} "
                f"and pool_layers = {self.pool_layers}"
            )
        if self.longest_path == 0:
            object.__setattr__(self, "longest_path", self.depth)


def read_shape(net: Network) -> GraphShape:
    """Return the shape of a network's graph, batch-norm folded.

    Args:
        net: a network of homogeneous operations.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)), torch.zeros(1, 2))
        >>> shape = read_shape(net)
        >>> shape.depth, shape.rescalings, shape.params
        (2, 3, 13)

    Reference: gonon2024thesis.
    """
    if not isinstance(net, Network):
        raise InvalidInput(f"read_shape needs a Network, got {type(net).__name__}: trace the model first")
    require(net, Capability.HOMOGENEOUS, "read_shape")
    folded = fold_batch_norm(net)
    survey = _Survey(folded)
    ends = [survey.states[name] for name in folded.output_names]
    return GraphShape(
        d_in=sum(math.prod(shape) for shape in folded.input_shapes),
        d_out=sum(math.prod(folded.shape_of(name)) for name in folded.output_names),
        # The output is a neuron on every path, and is counted although it is no activation.
        depth=max(end.depth for end in ends) + 1,
        kernel=survey.kernel,
        pool_kinds=len(survey.kinds),
        pool_layers=len(survey.pools),
        params=_count_free_parameters(folded),
        rescalings=_count_rescalings(net),
        biases=any(_adds(folded, node) for node in folded.data_nodes),
        pooling_in_layers=len(survey.kinds) <= 1 and not any(_goes_around(folded, pool) for pool in survey.pools),
        activations=max(1, len(survey.activations)),
        # An output that is not itself a sum needs an identity neuron behind it to be the last of the model's graph.
        longest_path=max(end.length + (not end.affine) for end in ends),
        weight_sharing=any(_shares(folded, node) for node in folded.data_nodes),
    )


@dataclass(frozen=True)
class _State:
    """A state holds what is known about the neurons of a tensor.

    Attributes:
        depth: the most nonlinear neurons on a path to them.
        length: the most neurons of any kind.
        activation: the activation that all of them are the result of; None if they are not, or not of one.
        affine: whether all of them are sums without an activation.
        nonnegative: whether none of them is ever negative, as far as activations and selections tell.
    """

    depth: int
    length: int
    activation: str | None = None
    affine: bool = False
    nonnegative: bool = False


class _Survey:
    """A survey walks along the data and notes the states of all tensors, the pooling and the activations it met."""

    def __init__(self, net: Network) -> None:
        self.net, self.fixed = net, FixedValues(net, dtype=torch.float64)
        self.states: dict[str, _State] = dict.fromkeys(net.inputs, _State(0, 0))
        self.kinds: set[tuple[Any, ...]] = set()
        self.activations: set[str] = set()
        self.pools: list[Node] = []
        self.kernel = 1
        for node in net.data_nodes:
            self.states[node.name] = self._state_after(node)

    def _state_after(self, node: Node) -> _State:
        before = _merge([self.states[name] for name in node.references if name in self.states])
        op = describe(node)
        if op.selects:
            self._select(node, before)
            # An activation and the selection right after it are peeled together: ResNet-18 has D = 18 (ERRATA 31).
            depth = before.depth + (before.activation is None)
            return _State(depth, before.length + 1, nonnegative=before.nonnegative)
        label = _name_activation(node)
        if label == "identity":
            return before
        if label is not None:
            self.activations.add(label)
            length = before.length + (not before.affine)  # a sum and the activation after it are one neuron
            return _State(before.depth + 1, length, label, nonnegative=label in NONNEGATIVE)
        if op.interval is IntervalRule.MOVING:
            # A fixed entry is a neuron of its own kind: then nothing is known of all of them.
            entries = references_in([node.arguments[name] for name in op.addends])
            fixed = any(name not in self.net.carries_data for name in entries)
            return _State(before.depth, before.length) if fixed else before
        return _State(before.depth, before.length + 1, affine=True)

    def _select(self, node: Node, before: _State) -> None:
        sizes = self._count_selected(node)
        self.pools.append(node)
        self.kernel = max(self.kernel, *sizes)
        for side, k in describe(node).ranks(self._call(node)):
            # Zeros may be added to small windows, which makes all sizes one kind, where that does not change the k-th
            # largest. (Printed: zeros are added to any window; the largest of negative numbers would not survive.)
            distinct = [0] if side == "largest" and before.nonnegative else sizes
            self.kinds |= {(side, k, before.activation, size) for size in distinct}

    def _count_selected(self, node: Node) -> list[int]:
        """Return from how many neurons the neurons of a selection select: its sums of ones."""
        sums = describe(node).magnitude(self._call(node), 1, 0.0)
        sums = sums if isinstance(sums, Tensor) else sums[0]
        return [round(size) for size in sums.unique().tolist()]

    def _call(self, node: Node) -> Call:
        """Return a node's call on ones."""

        def ones(name: str) -> Any:
            if name not in self.net.carries_data:
                return self.fixed[name]
            return torch.ones(self.net.shape_of(name), dtype=torch.float64)

        return Call(node, ones, self.net.carries_data)


def _merge(states: list[_State]) -> _State:
    """Return the state of several tensors' neurons taken together."""
    labels = {state.activation for state in states}
    return _State(
        depth=max(state.depth for state in states),
        length=max(state.length for state in states),
        activation=labels.pop() if len(labels) == 1 else None,
        affine=all(state.affine for state in states),
        nonnegative=all(state.nonnegative for state in states),
    )


def _name_activation(node: Node) -> str | None:
    """Return a name for the function that a homogeneous activation computes; None if the node is not one."""
    function = describe(node).function(Call(node, lambda name: None, ()))
    if not isinstance(function, PiecewiseLinear) or not function.homogeneous:
        return None
    names = {RELU: "relu", ABS: "abs", IDENTITY: "identity"}
    return names.get(function, f"slopes {function.slopes}")


def _count_free_parameters(folded: Network) -> int:
    """Count the entries of weights that data meets, as far as they depend on trainable parameters."""
    free = [name for name in folded.weights_of_data_nodes if any(True for _ in folded.trainable_sources(name))]
    return sum(math.prod(folded.shape_of(name)) for name in free)


def _count_rescalings(net: Network) -> int:
    # Of the network as it is: a folded batch-norm would be rescaled as one neuron with its layer either way.
    groups = symmetries(net).groups()
    # One dimension for each group that is not fixed: λ may be chosen there.
    fixed = {int(group) for group in groups[: int(ONE) + 1]}
    return len({int(group) for group in groups.unique()} - fixed)


def _adds(net: Network, node: Node) -> bool:
    """Return whether a node adds something fixed."""

    def fixed(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(fixed(item) for item in value)
        names = list(references_in(value))
        return names[0] not in net.carries_data if names else bool(value)

    return any(fixed(node.arguments.get(argument)) for argument in describe(node).addends)


def _goes_around(net: Network, pool: Node) -> bool:
    """Return whether some path leads from an input to an output without meeting this pooling node."""
    # What the inputs reach without the pool. Nodes come in the order of the graph, so that one pass is enough.
    reached = set(net.inputs)
    for node in net.data_nodes:
        if node is not pool and any(name in reached for name in node.references):
            reached.add(node.name)
    return any(name in reached for name in net.output_names)


def _shares(net: Network, node: Node) -> bool:
    """Return whether a node is anything but a fully connected layer, an activation, or a new order of neurons."""
    if _is_linear(node):
        # A linear layer on several rows uses each weight once a row, and a weight that two nodes read is shared as
        # well.
        return _count_rows(node) != 1 or any(net.users[name] != (node,) for name in _name_weights(net, node))
    return not _only_moves(node) and _name_activation(node) is None


def _is_linear(node: Node) -> bool:
    """Return whether a node multiplies its last axis by a matrix, one row a neuron."""
    op = describe(node)
    names = op.layer(node)
    return names is not None and op.channel_axes == (0, 1) and not op.is_convolution


def _only_moves(node: Node) -> bool:
    """Return whether a node gives the neurons of one tensor in another order, and adds none that is fixed."""
    op = describe(node)
    return op.interval is IntervalRule.MOVING and not op.addends


def _name_weights(net: Network, node: Node) -> list[str]:
    return [name for name in node.references if name not in net.carries_data]


def _count_rows(node: Node) -> int:
    return math.prod((node.shape or ())[:-1])


def fully_connected_widths(net: Network, wanted_by: str) -> tuple[int, ...]:
    """Return N₀, …, N_L of a layered fully connected ReLU network (thesis, Definition 2.1.1).

    Args:
        net: a network.
        wanted_by: who asks, for the message.

    Raises:
        AssumptionViolated: the first node that does not belong into such a network, by name.
    """
    if not isinstance(net, Network):
        raise InvalidInput(f"{wanted_by} needs a Network, got {type(net).__name__}: trace the model first")

    def refuse(what: str) -> AssumptionViolated:
        return AssumptionViolated(f"{wanted_by} needs a layered fully connected ReLU network: {what}")

    require(net, Capability.HOMOGENEOUS, wanted_by)
    if len(net.inputs) != 1 or len(net.output_names) != 1:
        raise refuse(f"this one has {len(net.inputs)} inputs and {len(net.output_names)} outputs")
    widths = [math.prod(net.input_shapes[0])]
    # Invariant: `last` is the only tensor that the rest may read, and `affine` says that a linear layer made it.
    last, affine = net.inputs[0], False
    for node in net.data_nodes:
        at = f"'{node.op.removesuffix('.default')}' at {node.module or 'the top level'}"
        if last not in node.references:
            raise refuse(f"{at} does not read the node before it alone")
        if _is_linear(node) and not affine:
            if _count_rows(node) != 1 or (node.shape or ())[-1:] == ():
                raise refuse(f"{at} is applied to several rows at once")
            widths.append((node.shape or ())[-1])
            affine = True
        elif _name_activation(node) == "relu" and affine:
            affine = False
        elif not (_only_moves(node) and math.prod(node.shape or ()) == widths[-1]):
            raise refuse(f"{at} is neither a linear layer nor the ReLU after one")
        last = node.name
    if not affine or net.output_names[0] != last:
        raise refuse("its output is not the result of a last linear layer")
    return tuple(widths)
