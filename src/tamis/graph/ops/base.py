"""What every operation tells about itself, and the defaults: an operation nobody described is opaque."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tamis.graph.network import Node, Ref, references_in, resolve

if TYPE_CHECKING:
    from tamis.graph.symmetry import Scales


Targets = tuple[Callable[..., Any], ...]


class Capability(IntEnum):
    """How much theory an operation admits; each level includes the ones before it."""

    OPAQUE = 0
    """Can be run, nothing more (GELU, softmax, attention)."""
    LIPSCHITZ = 1
    """1-Lipschitz in the sup-norm with f(0) = 0 (tanh, ReLU6)."""
    HOMOGENEOUS = 2
    """Neurons of a DAG ReLU network: affine maps, ReLU, k-max-pooling (thesis, Definition 2.2.2)."""


class Call:
    """A node with values put in the place of its references.

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
        """Whether an argument depends on the network's input."""
        return any(name in self._carries_data for name in references_in(self.node.arguments.get(argument)))

    def items(self, argument: str) -> list[tuple[Any, bool]]:
        """The entries of a list argument, each with whether it depends on the network's input."""
        entries = self.node.arguments[argument]
        return [(resolve(e, self._lookup), isinstance(e, Ref) and e.name in self._carries_data) for e in entries]

    def data(self) -> list[Any]:
        """The values of all arguments that depend on the network's input."""
        return [self._lookup(name) for name in self.node.references if name in self._carries_data]

    def run(self, /, **replaced: Any) -> Any:
        """Run the operation itself, with some arguments replaced."""
        arguments = {**self.node.arguments, **replaced}
        resolved = resolve(arguments, self._lookup)
        if hasattr(self.node.target, "_schema"):
            return self.node.target(**resolved)
        return self.node.target(*resolved.values())

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's shape for a batch of one."""
        assert self.node.shape is not None, f"{self.node.name} does not give one tensor"
        return self.node.shape


class Op:
    """A family of operations. The base class describes the opaque ones.

    In `magnitude`, `reach` and `ties` a call's data arguments hold that computation's values. In the first two its
    parameters hold |θ|^q, which must not be raised to a power again; literal numbers in the call are raw.
    """

    targets: Targets = ()
    multipliers: tuple[str, ...] = ()  # arguments that multiply data where they are fixed
    addends: tuple[str, ...] = ()  # arguments that are added to data where they are fixed
    grows = True  # whether values may grow or shrink in `magnitude`, so that their scale must be watched

    def capability(self, call: Call) -> Capability:
        """What this call admits; may look at literal arguments and at which arguments are data, not at values."""
        return Capability.OPAQUE

    def magnitude(self, call: Call, q: float, one: float) -> Any:
        """The call on |θ|^q with pooling replaced by a sum (thesis, Theorem 3.1.1), `one` standing for the number 1.

        Data arguments are non-negative. With `one` = 0 additive terms vanish.
        """
        raise NotImplementedError(f"{call.node.op} has no magnitude")

    def reach(self, call: Call) -> Any:
        """For each output neuron the largest value among the neurons that feed it (values are non-negative)."""
        raise NotImplementedError(f"{call.node.op} has no reach")

    def ties(self, call: Call, scales: Scales) -> Any:
        """Given the scale variables of the data arguments, those of the result (see `Scales`)."""
        scales.fix_all(call)
        return scales.fixed(call.node)

    def summands(self, call: Call) -> int:
        """At most how many numbers an output neuron adds up in `magnitude`: what rounding can amount to.

        The call's tensors need only have shapes.
        """
        return sum(x.numel() for x in call.data())

    def macs(self, call: Call) -> int:
        """Multiply-accumulates for one sample; the call's tensors need only have shapes."""
        return 0


def in_units(bias: Any, one: float) -> Any:
    """A bias in units of `one`; None where it vanishes."""
    return None if bias is None or one == 0 else bias * one
