"""Passes over a network on magnitudes, with a running exponent so that no depth overflows (ERRATA 20).

Every node's values are kept as value · 2^exponent. Exponents are integers, so that rescaling rounds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidParameters
from tamis.graph.fixed import FixedValues
from tamis.graph.network import Network, Node, Ref
from tamis.graph.ops import Call, describe

COMFORT = 400  # values are brought back to about 1 once they leave 2^-400 … 2^400
DEEPEST = -1000  # the smallest exponent at which the number 1 can be written as 1 · 2^-exponent

Lookup = Callable[[str], Any]
Step = Callable[[Node, Sequence[Lookup], float], list[Any]]


class Powers(Mapping[str, Any]):
    """|θ|^q in float64 for every weight that data meets, each computed when it is asked for; sizes stay integers.

    Args:
        net: the network.
        q: the power.
        wanted_by: who asks, for the message when |θ|^q leaves float64's range.
    """

    def __init__(self, net: Network, q: float, wanted_by: str) -> None:
        self.fixed, self.q, self.wanted_by = FixedValues(net, dtype=torch.float64), q, wanted_by

    def __iter__(self) -> Iterator[str]:
        return iter(self.fixed)

    def __len__(self) -> int:
        return len(self.fixed)

    def __getitem__(self, name: str) -> Any:
        value = self.fixed[name]
        if not is_weight(value):
            return value
        magnitude = value.abs_()
        return magnitude if self.q == 1 or not value.numel() else self._power(name, magnitude)

    def _power(self, name: str, magnitude: Tensor) -> Tensor:
        result = magnitude.pow_(self.q)
        largest = float(result.max())
        was = float(self.fixed[name].abs_().max()) if not 0 < largest < math.inf else largest
        if was > 0 and not 0 < largest < math.inf:
            raise InvalidParameters(
                f"{self.wanted_by} with q = {self.q:g} leaves float64's range: the largest of |{name}| is {was:.3g}"
            )
        return result


def is_weight(value: Any) -> bool:
    """Whether a fixed value is a tensor of weights, not a size or an index."""
    return isinstance(value, Tensor) and value.is_floating_point()


def walk(
    net: Network, starts: Sequence[Mapping[str, Tensor]], step: Step, adding: frozenset[str]
) -> dict[str, tuple[list[Any], int]]:
    """Pass one or several streams of non-negative values through the nodes that carry data.

    Args:
        net: the network.
        starts: for each stream, the values at the inputs.
        step: given a node, a lookup per stream and what the number 1 is worth at the current exponent, the node's
            value in each stream.
        adding: names of the nodes at which the number 1 matters, because something fixed is added (see `adding_nodes`).

    Returns:
        For each output name the streams' values and their common exponent.
    """
    values: dict[str, list[Any]] = {name: [start[name] for start in starts] for name in net.inputs}
    exponents: dict[str, int] = dict.fromkeys(net.inputs, 0)
    finished = dict(zip((node.name for node in net.nodes), net.finished_after, strict=True))
    for node in net.data_nodes:
        carried = [name for name in node.references if name in values]
        adds = node.name in adding
        exponent = max([exponents[name] for name in carried] + [DEEPEST] * adds)
        aligned = {name: [_shifted(v, exponents[name] - exponent) for v in values[name]] for name in carried}
        lookups = [{name: streams[i] for name, streams in aligned.items()}.__getitem__ for i in range(len(starts))]
        results = step(node, lookups, math.ldexp(1.0, -exponent) if adds else 0.0)
        if describe(node).grows:
            results, exponent = _comfortable(results, exponent)
        values[node.name], exponents[node.name] = results, exponent
        for name in finished[node.name]:
            values.pop(name, None)
    return {name: (values[name], exponents[name]) for name in net.output_names}


def adding_nodes(net: Network, *weights: Mapping[str, Any]) -> frozenset[str]:
    """Nodes that add something fixed and not zero, in any of several sets of weights."""

    def adds(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(adds(item) for item in value)
        if not isinstance(value, Ref):
            return bool(value)
        if value.name in net.carries_data:
            return False
        return any(bool(torch.as_tensor(each[value.name]).any()) for each in weights)

    def node_adds(node: Node) -> bool:
        return any(adds(node.arguments.get(name)) for name in describe(node).addends)

    return frozenset(node.name for node in net.data_nodes if node_adds(node))


def magnitude_step(net: Network, weights: Mapping[str, Any], q: float) -> Step:
    """The step of a single stream: each operation on |θ|^q, `weights` holding those powers."""

    def step(node: Node, lookups: Sequence[Lookup], one: float) -> list[Any]:
        return [magnitude(net, node, lookups[0], weights, q, one)]

    return step


def magnitude(net: Network, node: Node, data: Lookup, weights: Mapping[str, Any], q: float, one: float) -> Any:
    """One node on |θ|^q."""

    def lookup(name: str) -> Any:
        return data(name) if name in net.carries_data else weights[name]

    return describe(node).magnitude(Call(node, lookup, net.carries_data), q, one)


def gather(net: Network, outputs: Mapping[str, tuple[list[Any], int]], stream: int) -> tuple[Tensor, int]:
    """All output neurons of a stream side by side at one exponent: (batch, neurons), batch 1 where there is none."""
    exponent = max(e for _, e in outputs.values())
    each = [outputs[name] for name in net.output_names]  # one that is returned twice counts twice
    parts = [_shifted(values[stream], e - exponent) for values, e in each]
    return torch.cat([part.reshape(len(part) if net.batched else 1, -1) for part in parts], 1), exponent


def ones_input(net: Network) -> dict[str, Tensor]:
    """The input full of ones, in float64, where the parameters are."""
    device = next((value.device for value in (*net.params.values(), *net.constants.values())), None)
    shapes = zip(net.inputs, net.input_shapes, strict=True)
    return {name: torch.ones(shape, dtype=torch.float64, device=device) for name, shape in shapes}


def _shifted(value: Any, exponent: int) -> Any:
    if exponent == 0 or value is None:
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(_shifted(item, exponent) for item in value)
    return value * (math.ldexp(1.0, exponent) if exponent > -1074 else 0.0)


def _comfortable(streams: list[Any], exponent: int) -> tuple[list[Any], int]:
    """The same values with their exponent moved so that the largest is near 1, if it has strayed too far."""
    largest = max((_largest(value) for value in streams), default=0.0)
    if largest == 0:
        return streams, exponent
    shift = math.frexp(largest)[1]
    if abs(shift) <= COMFORT:
        return streams, exponent
    # In two steps, because 2^-shift itself may not be representable.
    half = shift // 2
    return [_shifted(_shifted(value, -half), half - shift) for value in streams], exponent + shift


def _largest(value: Any) -> float:
    if isinstance(value, (tuple, list)):
        return max((_largest(item) for item in value), default=0.0)
    if value is None or not value.numel():
        return 0.0
    return float(value.detach().max())
