"""One walk through two networks, the original and the one that becomes small, layer by layer over all batches.

Every node runs once for each batch in each network, and once for both where they do not differ yet. What later nodes
need is kept at the frontier (frontier.py). When the walk comes to a layer, all of its inputs are known in both
networks: their Gram matrices are summed, and its weight is chosen anew from them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph import NOTHING_SEEN, Array, Network, Node, SeenSamples, resolve, sample_digests
from tamis.layerwise.activation_store import Frontier, Values
from tamis.layerwise.calibration import FEWEST_BATCHES, HELD_OUT, Calibration, batches_of
from tamis.layerwise.collector import Collector, Rows, Sums
from tamis.layerwise.journal import Journal, Outcome
from tamis.layerwise.layers import Layer
from tamis.training import Team

ACTIVATION_BUDGET = 2**31  # bytes of activations that stay in memory, unless the caller says otherwise


def check_budget(budget: Any) -> None:
    """Refuse what is no number of bytes."""
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise InvalidInput(
            f"activation_budget={budget!r} must be a number of bytes, such as 2**31, or 0 for files only"
        )


class Treatment(Protocol):
    """What is done to a layer: its outcome, from what it sees of the data and the parameters of the small network."""

    def __call__(self, layer: Layer, seen: Sums | Rows, params: Mapping[str, Tensor], /) -> Outcome: ...

    def takes_rows(self, layer: Layer) -> bool:
        """Whether the rows of this layer would do, instead of their Gram matrices."""
        ...


class Walk:
    """Both networks at one place between two nodes.

    Args:
        net: the original network.
        small: its parameters as they are in the small network from the start, where they differ.
        calibration: data, in any form that `batches_of` takes.
        hold_out: whether to keep the Gram matrices of one batch in five apart.
        budget: bytes of activations in memory.
        team: the processes that share the batches.
    """

    def __init__(
        self,
        net: Network,
        small: Mapping[str, Tensor],
        calibration: Calibration,
        hold_out: bool,
        budget: int,
        team: Team,
    ) -> None:
        self.net, self.team, self.hold_out, self.budget = net, team, hold_out, budget
        self.params = {**net.params, **small}
        self.changed = {name for name, value in small.items() if not torch.equal(value, net.params[name])}
        self.position = 0
        self.seen = hashlib.sha256()  # of the calibration data, where a journal asks for it
        self._digests: list[Array] = []  # of its samples
        self.watches = False
        self.frontier = Frontier(self._first(calibration), budget, team.device)

    def treat(self, layers: Sequence[Layer], treatment: Treatment, journal: Journal) -> Iterator[tuple[Layer, Outcome]]:
        """Come to each layer in turn, choose its weight anew, and go on with it.

        Args:
            layers: in the order of their nodes.
            treatment: what is done to each.
            journal: keeps the outcomes, and knows those of a run that was broken off.

        Yields:
            Each layer with what was made of it, its relative error among the figures.
        """
        places = {node.name: place for place, node in enumerate(self.net.nodes)}
        last: _Measurement | None = None
        self.watches = journal.keeps
        with self.frontier:
            for number, layer in enumerate(layers):
                known = journal.finished(number, layer.weight) if number else None
                room = self.budget // 4 if self.team.size == 1 and treatment.takes_rows(layer) else 0
                seen = self._run_to(places[layer.node.name], None if known else layer, last, room)
                if last is not None:
                    yield last.layer, last.outcome()
                if number == 0:
                    journal.begin(self.seen.hexdigest())
                    known = journal.finished(number, layer.weight)
                if known is None:
                    assert seen is not None
                    known = treatment(layer, seen, self.params)
                    journal.record(number, layer.weight, known)
                self.params |= known.params
                self.changed |= known.params.keys()
                last = _Measurement(layer, known, self.net.params, dict(self.params), self.team)
            if last is not None:
                self._run_to(places[last.layer.node.name] + 1, None, last)
                yield last.layer, last.outcome()

    def _run_to(
        self, place: int, layer: Layer | None, measurement: _Measurement | None, room: int = 0
    ) -> Sums | Rows | None:
        """Run the nodes up to a place, for all batches; collect what the layer that stands there sees.

        Args:
            place: of the node to stop before.
            layer: the layer there, if it is to be looked at.
            measurement: of the layer that is run on the way.
            room: for rows of the layer, in bytes.
        """
        collector = None if layer is None else Collector(layer, 1 + self.hold_out, room, self.team)
        with torch.no_grad():
            for number, values in self.frontier:
                for at in range(self.position, place):
                    self._run(self.net.nodes[at], values, measurement)
                    for name in self.net.finished_after[at]:
                        del values[name]
                if collector is not None and layer is not None:
                    fold = int(self.hold_out and self._global(number) % FEWEST_BATCHES == HELD_OUT)
                    collector.add(fold, *values[layer.inputs])
        self.position = place
        return None if collector is None else collector.result()

    def _run(self, node: Node, values: Values, measurement: _Measurement | None) -> None:
        """One node on one batch, in both networks."""
        data = [values[name] for name in node.references if name in values]
        same = all(original is small for original, small in data) and self.changed.isdisjoint(node.references)
        original = _result(node, self.net, self.net.params, {name: pair[0] for name, pair in values.items()})
        small = original
        if not same:
            small = _result(node, self.net, self.params, {name: pair[1] for name, pair in values.items()})
        values[node.name] = (original, small)
        if measurement is not None and measurement.layer.node is node:
            measurement.add(original, small)

    def seen_samples(self) -> SeenSamples:
        """The calibration data, once the walk has come to the first layer."""
        return SeenSamples.of(np.concatenate(self._digests), "calibration") if self._digests else NOTHING_SEEN

    def _first(self, calibration: Calibration) -> Iterator[Values]:
        """The inputs of this process' share of the batches, both networks alike."""
        for number, inputs in enumerate(batches_of(calibration, self.net)):
            self._digests.append(sample_digests(inputs, self.net.input_dtypes, self.net.batched))
            for value in inputs if self.watches else ():
                self.seen.update(f"{tuple(value.shape)} {value.dtype}".encode())
                self.seen.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
            if number % self.team.size == self.team.rank:
                placed = [value.to(self.team.device) for value in inputs]
                yield {name: (value, value) for name, value in zip(self.net.inputs, placed, strict=True)}

    def _global(self, number: int) -> int:
        """The number of a batch among those of all processes."""
        return number * self.team.size + self.team.rank


def _result(node: Node, net: Network, params: Mapping[str, Tensor], values: Mapping[str, Any]) -> Any:
    def lookup(name: str) -> Any:
        return values[name] if name in values else params[name] if name in params else net.constants[name]

    return node.target(*resolve(node.args, lookup), **resolve(node.kwargs, lookup))


def _squared_norm(values: Tensor) -> Tensor:
    """In float64, for squares of float32 may overflow."""
    return torch.linalg.vector_norm(values, dtype=torch.float64).square()


class _Measurement:
    """The relative error of a layer that was just treated, ‖Yw − Ỹq‖ / ‖Yw‖, as its outputs come by."""

    def __init__(
        self,
        layer: Layer,
        outcome: Outcome,
        original: Mapping[str, Tensor],
        small: Mapping[str, Tensor],
        team: Team,
    ) -> None:
        self.layer, self._outcome, self._original, self._small, self._team = layer, outcome, original, small, team
        self._sums = torch.zeros(2, dtype=torch.float64, device=team.device)

    def add(self, original: Tensor, small: Tensor) -> None:
        """The outputs of a batch in both networks."""
        self._sums[0] += _squared_norm(original - small - self._shift(original))
        self._sums[1] += _squared_norm(original - self._of_channels(self._bias(), original))

    def outcome(self) -> Outcome:
        """With the error among the figures."""
        error, whole = self._team.summed(self._sums).tolist()
        relative = math.sqrt(error / whole) if whole else float(error > 0)
        if not math.isfinite(relative):
            raise InvalidInput(
                f"the outputs of '{self.layer.weight}' are not finite numbers on the calibration data; "
                "look at the scale of the inputs and at the weights before it"
            )
        return replace(self._outcome, figures={"error": relative, **self._outcome.figures})

    def _bias(self) -> Tensor | None:
        return None if self.layer.bias is None else self._original[self.layer.bias]

    def _shift(self, outputs: Tensor) -> Tensor | float:
        """What a parameter after the layer adds to its outputs in the small network, more than in the original."""
        shift = self.layer.shift
        if shift is None or shift.name == self.layer.bias:
            return 0.0
        moved = self._small[shift.name] - self._original[shift.name]
        return self._of_channels(shift.sign * moved, outputs)

    def _of_channels(self, values: Tensor | None, outputs: Tensor) -> Tensor | float:
        """One number for each output channel, laid out to be added to the outputs."""
        if values is None:
            return 0.0
        after = self.layer.spatial_axes
        return values.reshape(-1, *[1] * after)
