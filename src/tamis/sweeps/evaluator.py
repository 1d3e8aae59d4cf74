"""An evaluator makes the network of a recipe and its file, and measures how good it is on the held-out data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from tamis.artifact import Compressed, load, replace_file
from tamis.bounds import disagreement
from tamis.errors import InvalidInput, TamisError
from tamis.graph import SeenSamples
from tamis.recipes import (
    DELTA,
    SMALL,
    Context,
    DataSection,
    Lock,
    PreparedModel,
    Recipe,
    Splits,
    State,
    Workspace,
    model_facts,
    run_plan,
    sha256_of,
)
from tamis.reports import latencies
from tamis.sweeps.workers import hold_lock
from tamis.verification import Samples, classes_of, gather_evidence

FIGURES, RECIPE_FILE, BUSY = "figures.json", "recipe.yaml", ".lock"


@dataclass(frozen=True)
class EvaluatedCandidate:
    """An evaluated candidate lies in a folder, with its figures.

    Attributes:
        folder: where small.tamis, recipe.yaml and figures.json are.
        figures: bytes, sha256, samples (held-out ones), different (answers), disagreement (its bound), and where they
            were asked for or can be known accuracy and latency.
    """

    folder: Path
    figures: Mapping[str, Any]

    @property
    def file(self) -> Path:
        """Return the file of the network."""
        return self.folder / SMALL


@dataclass(frozen=True)
class Evaluator:
    """An evaluator makes and measures the candidates of one model.

    Attributes:
        model: the model before.
        data: the parts of the data.
        section: what the sweep says of the data.
        measured: names of what must be known of each candidate.
        folder: where candidates go.
    """

    model: PreparedModel
    data: Splits
    section: DataSection
    measured: tuple[str, ...]
    folder: Path

    def __post_init__(self) -> None:
        # Before hours of work: without classes there are no answers to compare.
        if classes_of(self.model.net) is None:
            name = self.model.name
            raise InvalidInput(f"a sweep compares answers, and {name} has no score for each of several classes")
        if "accuracy" in self.measured and not self.has_labels:
            raise InvalidInput(f"'{self.searched.name}' has no labels, which accuracy needs; ask for disagreement")

    @property
    def searched(self) -> Any:
        """Return the data that candidates are compared on."""
        return self.data.searched

    @cached_property
    def has_labels(self) -> bool:
        """Say whether that data has labels."""
        return self.data.test_has_labels if self.section.held_out_from == "test" else self.data.has_labels

    def facts(self) -> dict[str, Any]:
        """Return what identifies the model and the data."""
        return {"model": model_facts(self.model.net), "data": {**self.section.model_dump(), **self.data.digests}}

    def check(self, recipes: Sequence[Recipe]) -> None:
        """Raise InvalidInput for recipes that the model or the data are not fit for."""
        for recipe in recipes:
            self.model.check(recipe.model_copy(update={"data": self.section}), self.data)

    def make(self, recipe: Recipe) -> EvaluatedCandidate:
        """Make a candidate, or go on with one that was broken off, or read one that was made.

        Its figures are written last: where they are, and are those of the file, all of it is. What is not among them is
        measured on the file.
        """
        # The lock names everything that makes the file: recipe, model, data and device.
        lock = Lock.of(recipe.as_plain_data(), self.model.net, self.model.name, self.data, self.model.device)
        folder = self.folder / _compute_key(lock)
        folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(folder / BUSY):  # another worker may be at the same one
            # Under the lock: whoever had to wait finds the figures of the other, and makes nothing.
            figures = _read_figures(folder)
            if not figures:
                figures = self._make(recipe, lock, folder)
            elif not set(self.measured) <= set(figures):
                # A sweep that goes on may ask for more than was measured then; the file itself stays.
                figures = self._measure(self._read(recipe, folder), recipe, folder)
        return EvaluatedCandidate(folder, figures)

    def _make(self, recipe: Recipe, lock: Lock, folder: Path) -> dict[str, Any]:
        space = Workspace(folder)
        space.begin(lock)
        net = self.model.net
        context = Context.of_run(net, self.data, space.folder, self.model.device, progress=False)
        try:
            state = run_plan(recipe.plan, State(Compressed(net), net, self.model.module), context, space)
        except TamisError:
            # What cannot be made cannot be gone on with either. After a bug or a kill the finished steps stay, for the
            # next attempt.
            space.remove()
            raise
        # Which candidate is taken depends on these samples, so no certificate of it may use them.
        seen = SeenSamples.of(self.searched.sample_digests, "search")
        state = replace(state, small=state.small.with_seen(seen))
        # Figures come last, and with the digest of the file: a kill before leaves none, and the candidate is made again
        # from its finished steps.
        state.small.save(folder / SMALL)
        with replace_file(folder / RECIPE_FILE) as part:
            text = yaml.safe_dump(recipe.as_plain_data(), sort_keys=False, allow_unicode=True, width=120)
            part.write_text(text, encoding="utf-8")
        figures = self._measure(state, recipe, folder)
        space.remove()
        return figures

    def _read(self, recipe: Recipe, folder: Path) -> State:
        """Read the network that was made."""
        rebuilt = self.model.rebuilt_module(recipe)
        small = load(folder / SMALL, self.model.net if rebuilt is None else rebuilt)
        return State(small, small.network, self.model.module if rebuilt is None else small.apply_to(rebuilt).eval())

    def _measure(self, state: State, recipe: Recipe, folder: Path) -> dict[str, Any]:
        """Measure a network and its file, and write the figures beside it."""
        figures = {"bytes": (folder / SMALL).stat().st_size, "sha256": sha256_of(folder / SMALL)}
        figures |= self._compare(state) | self._time(state, recipe)
        with replace_file(folder / FIGURES) as part:
            part.write_text(json.dumps(figures, indent=1), encoding="utf-8")
        return figures

    def _compare(self, state: State) -> dict[str, Any]:
        # Without labels, inputs alone: placeholders would be compared with answers.
        data = self.searched if self.has_labels else self.searched.normalised()
        evidence = gather_evidence(self.model.net, state.small.network, Samples(data))
        different = evidence.different(0)
        # With all of δ, because comparing candidates issues nothing: certificates are made on other data, and share
        # their δ out.
        bound = disagreement(different, evidence.samples, DELTA).value
        figures: dict[str, Any] = {"samples": evidence.samples, "different": different, "disagreement": bound}
        return figures | ({"accuracy": 1 - evidence.errors(0) / evidence.samples} if self.has_labels else {})

    def _time(self, state: State, recipe: Recipe) -> dict[str, float]:
        """Measure the seconds for one input: of a binary network on packed bits, of others by torch in floats."""
        if "latency" not in self.measured:
            return {}
        timed: list[Any] = [state.small.network]
        # In floats, a binary network is no faster than the original: what would be shipped is timed.
        if any(step.step == "binarize" for step in recipe.plan):
            from tamis.binary import compile

            timed.append(compile(state.trainable()))
        # The network goes first, since it knows the shapes of its inputs; the last one is what counts.
        return {"latency": latencies(tuple(timed), 1)[-1]}


def _read_figures(folder: Path) -> dict[str, Any]:
    """Read the figures in a folder; none where they are damaged, or where they are not those of its file."""
    # Whatever is wrong with the figures, the candidate can be made again: no damage here is worth an error.
    try:
        figures: dict[str, Any] = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
        return figures if figures["sha256"] == sha256_of(folder / SMALL) else {}
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _compute_key(lock: Lock) -> str:
    """Return a key that is the same for the same candidate, whatever it is called."""
    # Without names, and without versions and threads: what was made stays one candidate.
    content = lock.content
    recipe = {name: value for name, value in content["recipe"].items() if name not in ("name", "description")}
    model = {name: value for name, value in content["model"].items() if name != "name"}
    identity = {"recipe": recipe, "model": model, "data": content["data"], "device": content["device"]}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
