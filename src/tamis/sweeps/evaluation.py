"""One candidate: the network that a recipe makes, its file, and how good it is on the held-out data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from tamis.artifact import Compressed, load, replace_file
from tamis.bounds import disagreement
from tamis.errors import InvalidInput, TamisError
from tamis.graph import Network, SeenSamples
from tamis.recipes import (
    DELTA,
    SMALL,
    DataSection,
    Lock,
    Recipe,
    Splits,
    State,
    Workspace,
    check_plan,
    device_for,
    load_splits,
    model_facts,
    network_of,
    run_plan,
    sha256_of,
)
from tamis.reports import latencies
from tamis.sweeps.workers import held
from tamis.verification import classes_of, gather_evidence

FIGURES, RECIPE_FILE, BUSY = "figures.json", "recipe.yaml", ".lock"


@dataclass(frozen=True)
class Made:
    """A candidate that lies in a folder.

    Attributes:
        folder: where small.tamis, recipe.yaml and figures.json are.
        figures: bytes, sha256, samples (held-out ones), different (answers), disagreement (its bound), and where they
            were asked for or can be known accuracy and latency.
    """

    folder: Path
    figures: Mapping[str, Any]

    @property
    def file(self) -> Path:
        """The network."""
        return self.folder / SMALL


@dataclass(frozen=True)
class Bench:
    """Where candidates of one model are made and measured.

    Attributes:
        net: the network before.
        module: its module, where there is one.
        data: the parts of the data.
        section: what the sweep says of the data.
        device: where steps train.
        called: what messages call the model.
        measured: names of what must be known of each candidate.
        folder: where candidates go.
    """

    net: Network
    module: nn.Module | None
    data: Splits
    section: DataSection
    device: torch.device
    called: str
    measured: tuple[str, ...]
    folder: Path

    @classmethod
    def of(
        cls,
        model: nn.Module | Network,
        section: DataSection,
        measured: tuple[str, ...],
        folder: Path,
        example: Tensor | tuple[Tensor, ...] | None,
        device: str | torch.device | None,
        called: str | None,
    ) -> Bench:
        """Load the data, and refuse what cannot be measured on it."""
        data = load_splits(**section.model_dump())
        called = called or type(model).__name__
        net, module = network_of(model, example, data, called)
        bench = cls(net, module, data, section, device_for(net, device), called, measured, folder)
        if classes_of(net) is None:
            raise InvalidInput(f"a sweep compares answers, and {called} has no score for each of several classes")
        if "accuracy" in measured and not bench.has_labels:
            raise InvalidInput(f"'{bench.searched.name}' has no labels, which accuracy needs; ask for disagreement")
        return bench

    @property
    def searched(self) -> Any:
        """What candidates are compared on."""
        return self.data.searched

    @cached_property
    def has_labels(self) -> bool:
        """Whether it has labels."""
        return self.data.test_has_labels if self.section.held_out_from == "test" else self.data.has_labels

    def facts(self) -> dict[str, Any]:
        """What says which model and data it is about."""
        return {"model": model_facts(self.net), "data": {**self.section.model_dump(), **self.data.digests}}

    def check(self, recipes: Sequence[Recipe]) -> None:
        """Refuse recipes that the model or the data are not fit for."""
        for recipe in recipes:
            check_plan(recipe, self.module, self.net, self.data, self.called)
            trains = [step.step for step in recipe.every_step if step.trains]
            if trains and not self.data.has_labels:
                raise InvalidInput(f"'{self.section.train}' has no labels, which the step '{trains[0]}' needs to train")

    def make(self, recipe: Recipe) -> Made:
        """Make a candidate, or go on with one that was broken off, or read one that was made.

        Its numbers are written last: where they are, and are those of the file, all of it is. What is not among them is
        measured on the file.
        """
        lock = Lock.of(recipe, self.net, self.called, self.data, self.device)
        folder = self.folder / _key(lock)
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder / BUSY):  # another worker may be at the same one
            figures = _known(folder)
            if not figures:
                figures = self._make(recipe, lock, folder)
            elif not set(self.measured) <= set(figures):
                figures = self._measure(self._read(recipe, folder), recipe, folder)
        return Made(folder, figures)

    def rebuilt_module(self, recipe: Recipe) -> nn.Module | None:
        """Return the module that a candidate's file is read for, where its layers were rebuilt."""
        return self.module if any(step.rebuilds for step in recipe.plan) else None

    def _make(self, recipe: Recipe, lock: Lock, folder: Path) -> dict[str, Any]:
        space = Workspace(folder)
        space.begin(lock)
        begun = State(Compressed(self.net), self.net, self.module)
        try:
            state = run_plan(recipe.plan, begun, self.net, self.data, self.device, space, False)
        except TamisError:
            space.remove()
            raise
        seen = SeenSamples.of(self.searched.sample_digests, "search")  # which one is taken will depend on these
        state = replace(state, small=state.small.having_seen(seen))
        state.small.save(folder / SMALL)
        with replace_file(folder / RECIPE_FILE) as part:
            text = yaml.safe_dump(recipe.resolved(), sort_keys=False, allow_unicode=True, width=120)
            part.write_text(text, encoding="utf-8")
        figures = self._measure(state, recipe, folder)
        space.remove()
        return figures

    def _read(self, recipe: Recipe, folder: Path) -> State:
        """The network that was made."""
        rebuilt = self.rebuilt_module(recipe)
        small = load(folder / SMALL, self.net if rebuilt is None else rebuilt)
        return State(small, small.network, self.module if rebuilt is None else small.apply_to(rebuilt).eval())

    def _measure(self, state: State, recipe: Recipe, folder: Path) -> dict[str, Any]:
        """The numbers of the file that was made of a network, as they are written beside it."""
        found = {"bytes": (folder / SMALL).stat().st_size, "sha256": sha256_of(folder / SMALL)}
        found |= self._compared(state) | self._timed(state, recipe)
        with replace_file(folder / FIGURES) as part:
            part.write_text(json.dumps(found, indent=1), encoding="utf-8")
        return found

    def _compared(self, state: State) -> dict[str, Any]:
        data = self.searched if self.has_labels else self.searched.normalised()
        seen = gather_evidence(self.net, state.small.network, data)
        different = seen.different(0)
        bound = disagreement(different, seen.samples, DELTA).value
        found: dict[str, Any] = {"samples": seen.samples, "different": different, "disagreement": bound}
        return found | ({"accuracy": 1 - seen.errors(0) / seen.samples} if self.has_labels else {})

    def _timed(self, state: State, recipe: Recipe) -> dict[str, float]:
        """Seconds for one input: of a binary network on packed bits, of others by torch in floats."""
        if "latency" not in self.measured:
            return {}
        timed: list[Any] = [state.small.network]
        if any(step.step == "binarize" for step in recipe.plan):
            from tamis.binary import compile

            timed.append(compile(state.trainable()))
        return {"latency": latencies(tuple(timed), 1)[-1]}


def _known(folder: Path) -> dict[str, Any]:
    """The numbers in a folder; none where they are damaged, or where its file is not the one that has them."""
    try:
        figures: dict[str, Any] = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
        return figures if figures["sha256"] == sha256_of(folder / SMALL) else {}
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _key(lock: Lock) -> str:
    """The same for the same candidate."""
    content = lock.content
    recipe = {name: value for name, value in content["recipe"].items() if name not in ("name", "description")}
    model = {name: value for name, value in content["model"].items() if name != "name"}
    said = {"recipe": recipe, "model": model, "data": content["data"], "device": content["device"]}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]
