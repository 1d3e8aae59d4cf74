"""Every operation describes itself through `Op`, whose defaults make an undescribed operation opaque.

The rest of tamis puts its questions to an operation and never asks for its class, so a new operation is described in
one place. The answers are plain data, so this package needs to know nothing about the callers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Literal

from tamis.graph.network import Node, Ref, references_in, resolve
from tamis.graph.ops.scalar_functions import ScalarFunction
from tamis.graph.symmetry import Scales

Targets = tuple[Callable[..., Any], ...]


class Capability(IntEnum):
    """A capability says how much theory an operation admits; each level includes the ones before it."""

    OPAQUE = 0
    """Can be run, nothing more (GELU, softmax, attention)."""
    LIPSCHITZ = 1
    """1-Lipschitz in the sup-norm with f(0) = 0 (tanh, ReLU6)."""
    HOMOGENEOUS = 2
    """Neurons of a DAG ReLU network: affine maps, ReLU, k-max-pooling (thesis, Definition 2.2.2)."""


class IntervalRule(Enum):
    """An interval rule says how intervals pass through an operation."""

    AFFINE = "affine"
    MOVING = "moving"
    """Each result is a copy of one argument's entry, or fixed: views, slices, padding, concatenation."""
    SELECTING = "selecting"
    """Each result is an order statistic of several entries: pooling by maximum, sorting."""
    POINTWISE = "pointwise"
    """Each result is a function of one entry, which the operation describes (`Op.function`)."""


class Entrywise(Enum):
    """An entrywise rule says how an entry of a computed weight depends on one entry of each argument."""

    RESHAPE = "reshape"
    """All entries, each once, in the same order."""
    MOVE = "move"
    """Each entry is a copy of one entry of the first argument."""
    NEGATION = "negation"
    PRODUCT = "product"
    QUOTIENT = "quotient"
    SUM = "sum"
    """a ± α b."""
    INVERSE_ROOT = "inverse root"

    @property
    def moves(self) -> bool:
        """Return whether entries are copied, and nothing is computed."""
        return self in (Entrywise.RESHAPE, Entrywise.MOVE)


@dataclass(frozen=True)
class LayerArguments:
    """These are the names of the arguments of a layer: data times a weight, plus a bias.

    Attributes:
        inputs: the data, where the weight is fixed.
        weight: the matrix or kernel.
        bias: what is added; None where the operation has no argument for one.
        scaled: whether this call multiplies product or bias by yet another number.
    """

    inputs: str
    weight: str
    bias: str | None
    scaled: bool = False


@dataclass(frozen=True)
class Windows:
    """Windows say how a convolution slides over its input, with one number for each dimension.

    Attributes:
        stride: from one window to the next.
        padding: zeros around the input, as `torch.nn.functional.pad` takes them.
        dilation: from one entry of a window to the next.
        spacing: pixels of the input are that far apart, with zeros between them; None: they lie side by side. Only a
            transposed convolution, which is a convolution of stride 1 over such an input, has one.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    spacing: tuple[int, ...] | None = None


Rank = tuple[Literal["largest", "smallest"], int]


class Call:
    """A call is a node whose references have been replaced by values.

    Args:
        node: the operation.
        lookup: the value of a name.
        carries_data: names whose values depend on the input.
    """

    def __init__(self, node: Node, lookup: Callable[[str], Any], carries_data: Collection[str]) -> None:
        self.node, self._lookup, self._carries_data = node, lookup, carries_data

    def __getitem__(self, argument: str) -> Any:
        return resolve(self.node.arguments[argument], self._lookup)

    def is_data(self, argument: str) -> bool:
        """Return whether an argument depends on the network's input."""
        return any(name in self._carries_data for name in references_in(self.node.arguments.get(argument)))

    def items(self, argument: str) -> list[tuple[Any, bool]]:
        """Return the entries of a list argument, each with whether it depends on the network's input."""
        entries = self.node.arguments[argument]
        return [(resolve(e, self._lookup), isinstance(e, Ref) and e.name in self._carries_data) for e in entries]

    def data(self) -> list[Any]:
        """Return the values of all arguments that depend on the network's input."""
        return [self._lookup(name) for name in self.node.references if name in self._carries_data]

    def run(self, /, **replaced: Any) -> Any:
        """Run the operation itself, with some arguments replaced."""
        arguments = {**self.node.arguments, **replaced}
        resolved = resolve(arguments, self._lookup)
        # Operations of torch have a schema and take every argument by name; others (operator.getitem) take positions.
        if hasattr(self.node.target, "_schema"):
            return self.node.target(**resolved)
        return self.node.target(*resolved.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the result's shape for a batch of one."""
        assert self.node.shape is not None, f"{self.node.name} does not give one tensor"
        return self.node.shape


class Op:
    """An `Op` describes a family of operations, and the base class describes the opaque ones.

    In `magnitude`, `reach` and `ties` a call's data arguments hold that computation's values. In the first two its
    parameters hold |θ|^q, which must not be raised to a power again; literal numbers in the call are raw.
    """

    targets: Targets = ()
    multipliers: tuple[str, ...] = ()  # arguments that multiply data where they are fixed
    addends: tuple[str, ...] = ()  # arguments that are added to data where they are fixed
    fillings: tuple[str, ...] = ()  # arguments whose number stands in new entries, where it is not zero
    grows = True  # whether values may grow or shrink in `magnitude`, so that their scale must be watched
    interval: IntervalRule | None = None  # how intervals pass through homogeneous calls; None: nobody knows
    picks_result = False  # whether it takes one result of an operation that has several
    is_batch_norm = False  # whether `fold` rewrites it
    channel_axes: tuple[int, int] | None = None  # the weight's axes of outputs and inputs, where it is a layer
    is_convolution = False  # whether it slides a kernel over its input (`windows` says how)
    folds_batch_norm = False  # whether its neurons' outputs are the channels that a batch-norm after it normalizes
    prunable = False  # whether `multipliers` are weights that can be pruned, and `addends` biases
    keeps_zeros = False  # whether a zero of its one tensor stays a zero, and moves no other entry, in homogeneous calls
    untouched = ""  # why what it reads is never compressed, in words that follow a colon

    def capability(self, call: Call) -> Capability:
        """Return what this call admits, from literal arguments and from which arguments are data, not from values."""
        return Capability.OPAQUE

    # -- boxes and paths -------------------------------------------------------------------------------------------

    def interval_rule(self, call: Call) -> IntervalRule | None:
        """Return how intervals pass through this call; None where nobody knows, so that boxes refuse it."""
        if self.function(call) is not None:
            return IntervalRule.POINTWISE
        # `interval` holds for homogeneous calls alone; a call that intervals can pass and paths cannot overrides this.
        return self.interval if self.capability(call) is Capability.HOMOGENEOUS else None

    def function(self, call: Call) -> ScalarFunction | None:
        """Return the function of one neuron that this call is; None for other kinds of operations."""
        return None

    @property
    def selects(self) -> bool:
        """Return whether each result is one of the entries it is computed from: k-max-pooling."""
        return self.interval is IntervalRule.SELECTING

    def ranks(self, call: Call) -> list[Rank]:
        """Return which order statistics a selection computes; the call's tensors need only have shapes."""
        return [("largest", 1)]

    # -- layers and their weights ----------------------------------------------------------------------------------

    def layer(self, node: Node) -> LayerArguments | None:
        """Return the arguments of a layer; None where the operation is no layer."""
        return None

    def windows(self, call: Call) -> Windows | None:
        """Return how a convolution slides over its input; None for all other operations."""
        return None

    def entrywise(self, node: Node) -> Entrywise | None:
        """Return how entries of the result depend on entries of fixed tensors; None where they do not one by one."""
        return None

    def added_number(self, node: Node) -> float | None:
        """Return the number that this call adds to data; None where it does anything else."""
        return None

    # -- magnitudes ------------------------------------------------------------------------------------------------

    def magnitude(self, call: Call, q: float, one: float) -> Any:
        """Run the call on |θ|^q with pooling replaced by a sum (thesis, Theorem 3.1.1).

        `one` stands for the number 1. Data arguments are non-negative. With `one` = 0 additive terms vanish.
        """
        raise NotImplementedError(f"{call.node.op} has no magnitude")

    def reach(self, call: Call) -> Any:
        """Return the largest value among the neurons that feed each output neuron (values are non-negative)."""
        raise NotImplementedError(f"{call.node.op} has no reach")

    def ties(self, call: Call, scales: Scales) -> Any:
        """Return the scale variables of the result, given those of the data arguments (see `Scales`)."""
        scales.fix(call.data())  # nothing is known of it, so that no scale may pass through
        return scales.fixed(call.node)

    def summands(self, call: Call) -> int:
        """Return at most how many numbers an output neuron adds up in `magnitude`: what rounding can amount to.

        The call's tensors need only have shapes.
        """
        return sum(x.numel() for x in call.data())

    def products(self, call: Call) -> int:
        """Return at most how many products an output neuron of an affine operation adds up.

        The call's tensors need only have shapes, those for a batch of one.
        """
        return sum(x.numel() for x in call.data())

    def macs(self, call: Call) -> int | None:
        """Return the multiply-accumulates for one sample, None where they are not counted.

        The call's tensors need only have shapes.
        """
        return 0


class Opaque(Op):
    """This is the base of operations that are opaque in every call, about which something else is known."""

    def macs(self, call: Call) -> int | None:
        return None


def in_units(bias: Any, one: float) -> Any:
    """Return a bias in units of `one`; None where it vanishes."""
    # None and not 0 · bias, which is NaN where a power of the bias has overflowed.
    return None if bias is None or one == 0 else bias * one
