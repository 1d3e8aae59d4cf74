"""`sweep`: try many recipes, compare what they make on held-out data, and certify the best on the test data."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import replace_file
from tamis.certificates import certify
from tamis.errors import InvalidInput, TamisError
from tamis.graph import Network
from tamis.progress import Listener, reporting
from tamis.recipes import CERTIFICATE, DELTA, REPORT, code_named_in, requirements_of
from tamis.reports import Candidate, report
from tamis.sweeps.evaluation import RECIPE_FILE, Bench, Made
from tamis.sweeps.pareto_front import chosen, cost, on_front
from tamis.sweeps.space import Point, described
from tamis.sweeps.spec import Sweep, read_sweep
from tamis.sweeps.study import ERROR, FIGURES, POINT, Study, database_url, shown
from tamis.sweeps.workers import Workers
from tamis.verification import Certificate

CANDIDATES, WORKERS, RESULTS = "candidates", ".workers", "results.json"
PAUSE = 0.5  # seconds between two looks at what others are at


@dataclass(frozen=True)
class Row:
    """A candidate in the results.

    Attributes:
        trial: the number of its trial in the study.
        point: the name of each range → what was tried of it.
        figures: what was measured on the held-out data.
        front: whether no other one beats it.
        folder: where its file is, as certified; None if it is not.
        certificate: what it costs, on the test data.
    """

    trial: int
    point: Point
    figures: Mapping[str, Any]
    front: bool
    folder: Path | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True)
class Swept:
    """What a sweep found.

    Attributes:
        folder: where everything is.
        storage: the address of the database, without a password.
        objectives: what candidates were judged by.
        rows: the candidates, the best in the first objective first.
        failed: what could not be made: the point, and why.
        compared: how many networks were compared on the test data, now and before: each certificate pays for them all.
        required: whether something was required of the certificates.
    """

    folder: Path
    storage: str
    objectives: tuple[str, ...]
    rows: Sequence[Row]
    failed: Sequence[tuple[Point, str]] = field(default=())
    compared: int = 0
    required: bool = False

    @property
    def passed(self) -> bool | None:
        """Whether a network is certified to be as good as required; None where nothing was required."""
        return any(_passed(row) for row in self.rows) if self.required else None

    @property
    def certified(self) -> list[Row]:
        """Those with a certificate."""
        return [row for row in self.rows if row.certificate is not None]


def sweep(
    model: nn.Module | Network,
    spec: str | Path | Mapping[str, Any] | Sweep,
    out: str | Path,
    *,
    storage: str | None = None,
    example: Tensor | tuple[Tensor, ...] | None = None,
    device: str | torch.device | None = None,
    called: str | None = None,
    max_accuracy_drop: float | str | None = None,
    max_disagreement: float | str | None = None,
    command: str | None = None,
    just_initialised: bool = False,
    progress: Listener = True,
) -> Swept:
    """Make what a sweep asks for, together with the workers that share its study, and certify the best.

    Candidates are compared on data held out of the training data. Only those on the front, or the one that the file
    says to choose, see the test data, and each certificate pays for all that ever saw it: its `candidates`.

    Whatever ends this process, nothing that was finished is lost: the same call goes on, and does again what a worker
    was at when it died.

    Args:
        model: a module, or a network where no step trains or rebuilds it; it is left as it is.
        spec: a YAML file, the same as plain data, or what `read_sweep` gave.
        out: the folder to write to; made if it is not there.
        storage: the address of a database that workers share; by default an SQLite file in the folder.
        example: an input to trace a module with; by default the first of the data.
        device: where steps train; None: where the model is.
        called: what messages and certificates call the model; its class by default.
        max_accuracy_drop, max_disagreement: what is required of the certificates, as `tamis.certify` takes it; at least
            one must say so for `Swept.passed`.
        command: what runs it, as one would type it again; the certificates repeat it.
        just_initialised: whether the weights of the model are random ones, which the certificates then note.
        progress: True, False, or a function of a `Progress`.

    Example:
        >>> found = sweep(model, "sweep.yaml", "out/sweep")
        >>> [row.figures["bytes"] for row in found.certified]
    """
    session = _Session.of(model, spec, out, storage, example, device, called, progress)
    with closing(session.study):
        asked = requirements_of(max_accuracy_drop, max_disagreement, session.bench.data)
        session.work()
        return session.finish(asked, command, just_initialised)


def work(
    model: nn.Module | Network,
    spec: str | Path | Mapping[str, Any] | Sweep,
    out: str | Path,
    *,
    storage: str | None = None,
    example: Tensor | tuple[Tensor, ...] | None = None,
    device: str | torch.device | None = None,
    called: str | None = None,
    progress: Listener = True,
) -> list[Point]:
    """Take part in a sweep until all candidates are made; arguments as of `sweep`, which certifies the best.

    The folder need not be the same: what another machine made, `sweep` makes again where it is to be certified.
    Returned are the points that were tried here.
    """
    session = _Session.of(model, spec, out, storage, example, device, called, progress)
    with closing(session.study):
        return session.work()


@dataclass(frozen=True)
class _Session:
    """One process of a sweep."""

    sweep: Sweep
    out: Path
    bench: Bench
    workers: Workers
    study: Study
    progress: Listener

    @classmethod
    def of(
        cls,
        model: nn.Module | Network,
        spec: str | Path | Mapping[str, Any] | Sweep,
        out: str | Path,
        storage: str | None,
        example: Any,
        device: Any,
        called: str | None,
        progress: Listener,
    ) -> _Session:
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise InvalidInput("each worker of a sweep is one process: start it without torchrun")
        found = spec if isinstance(spec, Sweep) else read_sweep(spec)
        said, folder = found.spec, Path(out)
        url = database_url(storage, folder)
        bench = Bench.of(model, said.data, said.measured, folder / CANDIDATES, example, device, called)
        bench.check([alternative.recipe(alternative.first) for alternative in found.space.alternatives])
        folder.mkdir(parents=True, exist_ok=True)
        workers = Workers(folder / WORKERS)
        recipes = [alternative.document.data for alternative in found.space.alternatives]
        question = {"recipe": recipes, "objectives": said.objectives, "seed": said.seed, **bench.facts()}
        plain = json.loads(json.dumps(question, default=str))
        study = Study(url, said.name, said.objectives, plain, said.seed, workers)
        return cls(found, folder, bench, workers, study, progress)

    # -- making --------------------------------------------------------------------------------------------------------

    def work(self) -> list[Point]:
        """Until all that is wanted is made, by whomever; the points that were tried here."""
        wanted, space, tried = self.sweep.wanted, self.sweep.space, []
        if self.progress is True:
            print(f"a live page: optuna-dashboard {shown(self.study.url)}", file=sys.stderr, flush=True)
        with self.workers.enlisted(), reporting(self.progress, "candidates", wanted) as tell:
            while (done := len(self.study.census().finished)) < wanted:
                tell(done)
                self.study.recover()
                job = self.study.next(space, wanted)
                if job is None:
                    time.sleep(PAUSE)
                    continue
                trial, point = job
                tried.append(point)
                with self.study.pulse(trial):
                    self._try(trial, point)
            tell(wanted)
        return tried

    def _try(self, trial: Any, point: Point) -> None:
        """One candidate: its file first, then its numbers, and then the study is told."""
        try:
            made = self.bench.make(self.sweep.space.recipe(point))
        except TamisError as error:
            self.study.tell_failure(trial, error)
        except Exception as error:  # a bug, which must not come up again and again, and must be seen
            self.study.tell_failure(trial, error)
            raise
        else:
            self.study.tell(trial, made.figures)

    # -- certifying ----------------------------------------------------------------------------------------------------

    def finish(self, asked: Mapping[str, float | None], command: str | None, just_initialised: bool) -> Swept:
        """Compare all candidates, certify the best with what is asked of it, and write what is known."""
        settled = sorted(self.study.census().finished.values(), key=lambda trial: trial.number)
        good = [trial for trial in settled if trial.values is not None]
        failed = [
            (json.loads(trial.user_attrs[POINT]), trial.user_attrs.get(ERROR, "its worker died each time"))
            for trial in settled
            if trial.values is None
        ]
        if not good:
            point, why = failed[0]
            raise InvalidInput(f"none of {len(failed)} candidates could be made; the first, {described(point)}: {why}")
        said = self.sweep.spec
        figures = [self._figures(trial) for trial in good]
        front = on_front(figures, said.objectives)
        rows = [
            Row(trial.number, json.loads(trial.user_attrs[POINT]), found, best)
            for trial, found, best in zip(good, figures, front, strict=True)
        ]
        if said.choose is None:
            picked = [place for place, best in enumerate(front) if best]
        else:
            one = chosen(figures, said.choose)
            picked = [] if one is None else [one]
        facts = {"called": self.bench.called, "command": command, "just_initialised": just_initialised}
        compared = self._certify(rows, picked, {**asked, **facts})
        rows.sort(key=lambda row: (cost(row.figures, said.objectives[0]), row.trial))
        required = any(rate is not None for rate in asked.values())
        found = Swept(self.out, shown(self.study.url), tuple(said.objectives), rows, failed, compared, required)
        with replace_file(self.out / RESULTS) as part:
            part.write_text(json.dumps(as_plain_data(found), indent=1, allow_nan=False), encoding="utf-8")
        return found

    def _figures(self, trial: Any) -> Mapping[str, Any]:
        """What is known of a candidate; what `choose` did not ask for when it was made is measured now."""
        known: Mapping[str, Any] = trial.user_attrs[FIGURES]
        if set(self.sweep.spec.measured) <= set(known):
            return known
        return self.bench.make(self.sweep.space.recipe(json.loads(trial.user_attrs[POINT]))).figures

    def _certify(self, rows: list[Row], picked: Sequence[int], asked: Mapping[str, Any]) -> int:
        """Give a certificate and a page to each that is picked; how many networks the certificates pay for."""
        recipes = {place: self.sweep.space.recipe(rows[place].point) for place in picked}
        made = {place: self.bench.make(recipe) for place, recipe in recipes.items()}
        compared = self.study.certify([each.figures["sha256"] for each in made.values()])
        with reporting(self.progress, "certify", len(made)) as tell:
            for count, (place, each) in enumerate(made.items(), 1):
                rebuilt = self.bench.rebuilt_module(recipes[place])
                certificate = certify(
                    self.bench.net,
                    each.file,
                    self.bench.data.test,
                    delta=DELTA,
                    rebuilt=rebuilt,
                    candidates=compared,
                    **asked,
                )
                certificate.save(each.folder / CERTIFICATE)
                row = rows[place]
                rows[place] = Row(row.trial, row.point, each.figures, row.front, each.folder, certificate)
                tell(count)
        for place, each in made.items():
            report(
                each.folder / CERTIFICATE,
                each.folder / REPORT,
                original=self.bench.net,
                rebuilt=self.bench.rebuilt_module(recipes[place]),
                tried=_tried(rows, place),
                reproduce=[self._repeating(each, asked)],
            )
        if made:
            self._show_first(rows, made)
        return compared

    def _repeating(self, made: Made, asked: Mapping[str, Any]) -> str:
        """What makes a candidate again: a command where a command made it, or else a call."""
        recipe = str(made.folder / RECIPE_FILE)
        if asked["command"] is None:
            return f"tamis.compress(model, {recipe!r}, out='again')"
        rate = asked["max_accuracy_drop"]
        more = code_named_in(self.bench.section) + ("" if rate is None else f" --max-accuracy-drop {rate!r}")
        return f"tamis compress {self.bench.called} --recipe {shlex.quote(recipe)}{more} -o again"

    def _show_first(self, rows: Sequence[Row], made: Mapping[int, Made]) -> None:
        """The page of the one that is best in the first objective, of those that pass, also lies beside the results."""
        passed = [place for place in made if _passed(rows[place]) is not False]
        first = min(passed or made, key=lambda place: cost(made[place].figures, self.sweep.spec.objectives[0]))
        with replace_file(self.out / REPORT) as part:
            part.write_bytes((made[first].folder / REPORT).read_bytes())


def _passed(row: Row) -> bool | None:
    return None if row.certificate is None else row.certificate.passed


def _tried(rows: Sequence[Row], place: int) -> list[Candidate]:
    """All candidates, for a picture of bytes against accuracy; none where accuracies are not known."""
    if not all("accuracy" in row.figures for row in rows):
        return []
    return [
        Candidate(described(row.point), row.figures["bytes"], row.figures["accuracy"], number == place)
        for number, row in enumerate(rows)
    ]


def as_plain_data(found: Swept) -> dict[str, Any]:
    """What was found, as JSON takes it."""
    return {
        "folder": str(found.folder),
        "storage": found.storage,
        "objectives": list(found.objectives),
        "compared_on_test_data": found.compared,
        "passed": found.passed,
        "candidates": [_as_plain_row(row) for row in found.rows],
        "failed": [{"point": point, "error": why} for point, why in found.failed],
    }


def _as_plain_row(row: Row) -> dict[str, Any]:
    plain: dict[str, Any] = {"trial": row.trial, "point": row.point, **row.figures, "front": row.front}
    plain["certified"] = row.certificate is not None
    if row.certificate is not None:
        claims = {claim.name: claim.bound.value for claim in row.certificate.claims if claim.bound.informative}
        plain |= {"folder": str(row.folder), "certificate": claims, "passed": row.certificate.passed}
    return plain
