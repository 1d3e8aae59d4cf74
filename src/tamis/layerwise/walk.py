"""A walk goes through two networks, the original and the one that becomes small, layer by layer over all batches.

Every node runs once for each batch in each network, and once for both where they do not differ yet. The values that
later nodes need are in `ActivationStore`. When the walk comes to a layer, all of its inputs are known in both networks:
their Gram matrices are summed, and its new weight is chosen from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from tamis.artifact import Codes, Compressed, fingerprint, fingerprint_of_values
from tamis.errors import InvalidInput
from tamis.graph import NOTHING_SEEN, Array, Network, Node, SeenSamples, resolve, sample_digests, tensor_bytes
from tamis.layerwise.activation_store import ActivationStore, Values
from tamis.layerwise.calibration import FEWEST_BATCHES, HELD_OUT, Calibration, read_calibration
from tamis.layerwise.collector import Collector, LayerGrams, LayerRows
from tamis.layerwise.journal import LayerJournal, LayerOutcome
from tamis.layerwise.layer_error import LayerError
from tamis.layerwise.layers import Layer
from tamis.progress import Listener, reporting
from tamis.training import Team, join_team

ACTIVATION_BUDGET = 2**31  # bytes of activations that stay in memory, unless the caller says otherwise


def check_budget(budget: Any) -> None:
    """Raise InvalidInput for an activation budget that is not a number of bytes."""
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 0:
        raise InvalidInput(
            f"activation_budget={budget!r} must be a number of bytes, such as 2**31, or 0 for files only"
        )


class LayerTransform(Protocol):
    """A layer transform chooses a layer's new parameters, from its inputs and from those of the small network."""

    def __call__(self, layer: Layer, seen: LayerGrams | LayerRows, params: Mapping[str, Tensor], /) -> LayerOutcome: ...

    def takes_rows(self, layer: Layer) -> bool:
        """Tell whether this layer can be transformed from its rows, instead of their Gram matrices."""
        ...


class Walk:
    """A walk runs both networks side by side, up to one node after the other.

    Args:
        net: the original network.
        small: the parameters that the small network has from the start, where they differ.
        calibration: data, in any form that `read_calibration` takes.
        hold_out: whether to sum the Gram matrices of one batch in five apart.
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
        # By value: a parameter that is listed but equal would make every node after it run twice for nothing.
        self.changed = {name for name, value in small.items() if not torch.equal(value, net.params[name])}
        self.position = 0
        self.data_digest = hashlib.sha256()  # of the calibration data, where a journal asks for it
        self._sample_digests: list[Array] = []
        self._hashes_data = False
        self.activations = ActivationStore(self._iterate_first_values(calibration), budget, team.device)

    def transform(
        self, layers: Sequence[Layer], transform: LayerTransform, journal: LayerJournal
    ) -> Iterator[tuple[Layer, LayerOutcome]]:
        """Go to each layer in turn, choose its new parameters, and continue with them.

        Args:
            layers: in the order of their nodes.
            transform: chooses the new parameters of each.
            journal: records the outcomes, and has those of an interrupted run.

        Yields:
            Each layer with its outcome, its relative error among the figures.
        """
        places = {node.name: place for place, node in enumerate(self.net.nodes)}
        last: LayerError | None = None
        self._hashes_data = journal.is_active
        with self.activations:
            for number, layer in enumerate(layers):
                outcome = journal.read(number, layer.weight) if number else None
                # Rows get a quarter of the memory, and only in a single process: Gram matrices can be summed over
                # processes, rows cannot.
                room = self.budget // 4 if self.team.size == 1 and transform.takes_rows(layer) else 0
                inputs = self._run_to(places[layer.node.name], None if outcome else layer, last, room)
                # The error of a layer is known only now: its outputs were computed on the way to this one.
                if last is not None:
                    yield last.layer, last.outcome()
                if number == 0:
                    # The journal can start only after the first pass over the data, which has computed its digest.
                    journal.begin(self.data_digest.hexdigest())
                    outcome = journal.read(number, layer.weight)
                if outcome is None:
                    assert inputs is not None
                    outcome = transform(layer, inputs, self.params)
                    journal.record(number, layer.weight, outcome)
                self.params |= outcome.params
                self.changed |= outcome.params.keys()
                # A copy, so that the error is of these parameters, whatever later layers change.
                last = LayerError(layer, outcome, self.net.params, dict(self.params), self.team)
            if last is not None:
                self._run_to(places[last.layer.node.name] + 1, None, last)
                yield last.layer, last.outcome()

    def _run_to(
        self, place: int, layer: Layer | None, error: LayerError | None, room: int = 0
    ) -> LayerGrams | LayerRows | None:
        """Run the nodes up to a place, for all batches, and collect the inputs of the layer there.

        Args:
            place: the index of the node to stop before.
            layer: the layer there, if its inputs are needed.
            error: measures the layer that is run on the way.
            room: how many bytes the rows of the layer may take.
        """
        collector = None if layer is None else Collector(layer, 1 + self.hold_out, room, self.team)
        with torch.no_grad():
            for number, values in self.activations:
                for at in range(self.position, place):
                    self._run(self.net.nodes[at], values, error)
                    for name in self.net.finished_after[at]:
                        del values[name]
                if collector is not None and layer is not None:
                    # By the number among all processes, so that the same batches are held out however many processes
                    # share them.
                    fold = int(self.hold_out and self._compute_global_number(number) % FEWEST_BATCHES == HELD_OUT)
                    collector.add(fold, *values[layer.inputs])
        self.position = place
        return None if collector is None else collector.result()

    def _run(self, node: Node, values: Values, error: LayerError | None) -> None:
        """Run one node on one batch, in both networks."""
        # Until something differs, both networks share one object, and the node runs once.
        data = [values[name] for name in node.references if name in values]
        same = all(original is small for original, small in data) and self.changed.isdisjoint(node.references)
        original = _run_node(node, self.net, self.net.params, {name: pair[0] for name, pair in values.items()})
        small = original
        if not same:
            small = _run_node(node, self.net, self.params, {name: pair[1] for name, pair in values.items()})
        values[node.name] = (original, small)
        if error is not None and error.layer.node is node:
            error.add(original, small)

    def seen_samples(self) -> SeenSamples:
        """Return the samples of the calibration data; they are known once the walk has come to the first layer."""
        digests = self._sample_digests
        return SeenSamples.of(np.concatenate(digests), "calibration") if digests else NOTHING_SEEN

    def _iterate_first_values(self, calibration: Calibration) -> Iterator[Values]:
        """Yield the inputs of this process' share of the batches, the same for both networks."""
        for number, inputs in enumerate(read_calibration(calibration, self.net)):
            self._sample_digests.append(sample_digests(inputs, self.net.input_dtypes, self.net.batched))
            for value in inputs if self._hashes_data else ():
                self.data_digest.update(f"{tuple(value.shape)} {value.dtype}".encode())
                self.data_digest.update(tensor_bytes(value).numpy().data)
            # Every process reads all batches, in the same order, and keeps its own: digests are of all the data.
            if number % self.team.size == self.team.rank:
                placed = [value.to(self.team.device) for value in inputs]
                yield {name: (value, value) for name, value in zip(self.net.inputs, placed, strict=True)}

    def _compute_global_number(self, number: int) -> int:
        """Return the number of a batch among those of all processes."""
        return number * self.team.size + self.team.rank


def _run_node(node: Node, net: Network, params: Mapping[str, Tensor], values: Mapping[str, Any]) -> Any:
    def lookup(name: str) -> Any:
        return values[name] if name in values else params[name] if name in params else net.constants[name]

    return node.target(*resolve(node.args, lookup), **resolve(node.kwargs, lookup))


@dataclass(frozen=True)
class CalibrationRun:
    """A calibration run is the data that layers are transformed with, and how the run over it is done.

    Attributes:
        calibration: data, in any form that `read_calibration` takes.
        activation_budget: bytes of activations to keep in memory; the rest goes to files.
        directory: where finished layers are recorded; None: nowhere.
        progress: True, False, or a function of a `Progress`.
        hold_out: whether one batch in five is kept apart, to compare candidates on.
    """

    calibration: Calibration
    activation_budget: int = ACTIVATION_BUDGET
    directory: str | Path | None = None
    progress: Listener = True
    hold_out: bool = False


def transform_layers(
    original: Network,
    small: Compressed,
    layers: Sequence[Layer],
    transform: LayerTransform,
    step: Mapping[str, Any],
    run: CalibrationRun,
) -> Compressed:
    """Transform the layers of a network one by one, each given what the layers before it have become.

    Args:
        original: the network whose outputs every layer should keep.
        small: the network as it is before.
        layers: in the order of their nodes.
        transform: chooses the new parameters of each.
        step: the entry for the recipe, to which the figures of every layer are added as "layers"; its "step" names the
            work.
        run: the data, and where progress and finished layers go.
    """
    team = join_team(original.device)
    walk = Walk(original, small.params, run.calibration, run.hold_out, run.activation_budget, team)
    # Fingerprints take time, and only a journal compares them.
    networks = run.directory and {
        "original": fingerprint_of_values(original.params),
        "start": fingerprint_of_values(small.params),
        "masks": fingerprint_of_values(small.masks),
        "scales": fingerprint_of_values({name: code.scales for name, code in small.codes.items()}),
        "graph": fingerprint(original),
    }
    journal = LayerJournal(run.directory, {**step, **(networks or {}), "torch": torch.__version__}, team)
    changes: dict[str, Tensor] = {}
    codes: dict[str, Codes] = {}
    masks: dict[str, Tensor] = {}
    figures: dict[str, dict[str, Any]] = {}
    layers = [_drop_pruned_shift(layer, small.masks) for layer in layers]
    with (
        reporting(run.progress if team.leads else False, str(step["step"]), len(layers)) as report,
        walk.activations,  # entered here as well, so that its files go at once if a listener raises
    ):
        for layer, outcome in walk.transform(layers, transform, journal):
            changes |= outcome.params
            codes |= outcome.codes
            masks |= outcome.masks
            figures[layer.weight] = outcome.figures
            report(len(figures), error=outcome.figures["error"])
    # What has codes is stored as codes: its values follow from them, and two versions could differ.
    changes = {name: value for name, value in changes.items() if name not in codes}
    return small.changed(changes, codes, {**step, "layers": figures}, masks).with_seen(walk.seen_samples())


def _drop_pruned_shift(layer: Layer, masks: Mapping[str, Tensor]) -> Layer:
    """Leave a pruned bias alone: its pruned entries must stay zero, so it cannot take up a change of the mean."""
    pruned = layer.shift is not None and layer.shift.name in masks and not bool(masks[layer.shift.name].all())
    return replace(layer, shift=None) if pruned else layer
