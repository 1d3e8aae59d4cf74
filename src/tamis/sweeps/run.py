"""`sweep` tries many recipes, compares their networks on held-out data, and certifies the best on the test data."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from tamis.artifact import replace_file
from tamis.certificates import certify
from tamis.errors import InvalidInput, TamisError
from tamis.graph import Network
from tamis.progress import Listener, reporting
from tamis.recipes import (
    CERTIFICATE,
    DELTA,
    REPORT,
    code_options,
    load_splits,
    parse_requirements,
    prepare_model,
)
from tamis.reports import report
from tamis.sweeps.database import hide_password, make_database_url
from tamis.sweeps.evaluator import RECIPE_FILE, EvaluatedCandidate, Evaluator
from tamis.sweeps.pareto_front import choose_candidate, cost, find_front
from tamis.sweeps.results import RESULTS, Row, SweepResult, as_plain_data, list_candidates
from tamis.sweeps.space import Point, describe_point
from tamis.sweeps.spec import Sweep, read_sweep
from tamis.sweeps.study import ERROR, FIGURES, POINT, Study
from tamis.sweeps.workers import Workers

CANDIDATES, WORKERS = "candidates", ".workers"
PAUSE = 0.5  # seconds between two looks at what others are at


class WorkerOptions(TypedDict, total=False):
    """Worker options are those keywords of `sweep` that every process of a sweep has, and not only the one that
    certifies: what they mean is said there."""

    storage: str | None
    example: Tensor | tuple[Tensor, ...] | None
    device: str | torch.device | None
    called: str | None
    progress: Listener


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
) -> SweepResult:
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
            one must say so for `SweepResult.passed`.
        command: what runs it, as one would type it again; the certificates repeat it.
        just_initialised: whether the weights of the model are random ones, which the certificates then note.
        progress: True, False, or a function of a `Progress`.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> recipe = {"steps": [{"step": "prune", "amount": {"choices": [0.2, 0.8]}}]}
        >>> spec = {"data": "digits", "recipe": recipe, "objectives": ["bytes", "disagreement"], "trials": 2}
        >>> found = sweep(model, spec, "out/sweep", progress=False)
        >>> [row.point for row in found.rows]  # the smallest first
        [{'steps[0].amount': 0.8}, {'steps[0].amount': 0.2}]
    """
    options = WorkerOptions(storage=storage, example=example, device=device, called=called, progress=progress)
    with _open_session(model, spec, out, options) as session:
        requirements = parse_requirements(max_accuracy_drop, max_disagreement, session.evaluator.data)
        session.work()
        return session.finish(requirements, command, just_initialised)


def work(
    model: nn.Module | Network,
    spec: str | Path | Mapping[str, Any] | Sweep,
    out: str | Path,
    **options: Unpack[WorkerOptions],
) -> list[Point]:
    """Take part in a sweep until all candidates are made; arguments as of `sweep`, which certifies the best.

    The folder need not be the same: what another machine made, `sweep` makes again where it is to be certified. Return
    the points that were tried here.

    Args:
        model: as of `sweep`.
        spec: as of `sweep`.
        out: a folder for what is made here.
        **options: storage, example, device, called and progress, as of `sweep`.
    """
    if unknown := sorted(options.keys() - WorkerOptions.__annotations__.keys()):
        raise TypeError(f"work() got an unexpected keyword argument '{unknown[0]}'")
    with _open_session(model, spec, out, options) as session:
        return session.work()


@contextmanager
def _open_session(
    model: nn.Module | Network,
    spec: str | Path | Mapping[str, Any] | Sweep,
    out: str | Path,
    options: WorkerOptions,
) -> Iterator[_Session]:
    """Check everything that can be wrong before the folder is made, join the study, and leave it in the end."""
    # Workers are processes that know each other by the database alone; torchrun's would train together instead.
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InvalidInput("each worker of a sweep is one process: start it without torchrun")
    parsed = spec if isinstance(spec, Sweep) else read_sweep(spec)
    keys, folder = parsed.spec, Path(out)
    url = make_database_url(options.get("storage"), folder)
    data = load_splits(**keys.data.model_dump())
    prepared = prepare_model(model, data, options.get("example"), options.get("device"), options.get("called"))
    evaluator = Evaluator(prepared, data, keys.data, keys.measured, folder / CANDIDATES)
    evaluator.check([alternative.recipe(alternative.first) for alternative in parsed.space.alternatives])
    folder.mkdir(parents=True, exist_ok=True)
    workers = Workers(folder / WORKERS)
    recipes = [alternative.document.data for alternative in parsed.space.alternatives]
    question = {"recipe": recipes, "objectives": keys.objectives, "seed": keys.seed, **evaluator.facts()}
    # As the database gives it back, in which a tuple is a list: only so can the two be compared.
    plain = json.loads(json.dumps(question, default=str))
    with closing(Study(url, keys.name, keys.objectives, plain, keys.seed, workers)) as study:
        yield _Session(parsed, folder, evaluator, workers, study, options.get("progress", True))


@dataclass(frozen=True)
class _Session:
    """A session is one process of a sweep."""

    sweep: Sweep
    out: Path
    evaluator: Evaluator
    workers: Workers
    study: Study
    progress: Listener

    # -- making --------------------------------------------------------------------------------------------------------

    def work(self) -> list[Point]:
        """Make candidates until all are made, by whichever worker, and return the points that were tried here."""
        target, space, points = self.sweep.candidates, self.sweep.space, []
        if self.progress is True:
            print(f"a live page: optuna-dashboard {hide_password(self.study.url)}", file=sys.stderr, flush=True)
        with self.workers.enlist(), reporting(self.progress, "candidates", target) as tell:
            # Others may finish, die or fail at any moment: every turn begins with what the database says now.
            while (count := len(self.study.take_census().finished)) < target:
                tell(count)
                # Before drawing anything new, so that what a dead worker left is done first.
                self.study.recover()
                job = self.study.next(space, target)
                # Others are at all that is left, and one of them may die.
                if job is None:
                    time.sleep(PAUSE)
                    continue
                trial, point = job
                points.append(point)
                with self.study.heartbeats(trial):
                    self._try(trial, point)
            tell(target)
        return points

    def _try(self, trial: Any, point: Point) -> None:
        """Make one candidate: its file first, then its figures, and then the study is told."""
        try:
            candidate = self.evaluator.make(self.sweep.space.recipe(point))
        except TamisError as error:
            # That a recipe cannot be made is a result, too: the sweep goes on with others.
            self.study.tell_failure(trial, error)
        except Exception as error:  # a bug, which must not come up again and again, and must be seen
            self.study.tell_failure(trial, error)
            raise
        else:
            self.study.tell(trial, candidate.figures)

    # -- certifying ----------------------------------------------------------------------------------------------------

    def finish(
        self, requirements: Mapping[str, float | None], command: str | None, just_initialised: bool
    ) -> SweepResult:
        """Compare all candidates, certify the best with what is asked of it, and write what is known."""
        # By number, which all workers see alike: of equal candidates the same one is listed first.
        trials = sorted(self.study.take_census().finished.values(), key=lambda trial: trial.number)
        good = [trial for trial in trials if trial.values is not None]
        failed = [
            (json.loads(trial.user_attrs[POINT]), trial.user_attrs.get(ERROR, "its worker died each time"))
            for trial in trials
            if trial.values is None
        ]
        if not good:
            point, why = failed[0]
            raise InvalidInput(
                f"none of {len(failed)} candidates could be made; the first, {describe_point(point)}: {why}"
            )
        spec = self.sweep.spec
        figures = [self._read_figures(trial) for trial in good]
        front = find_front(figures, spec.objectives)
        rows = [
            Row(trial.number, json.loads(trial.user_attrs[POINT]), each, best)
            for trial, each, best in zip(good, figures, front, strict=True)
        ]
        if spec.choose is None:
            places = [place for place, best in enumerate(front) if best]
        else:
            one = choose_candidate(figures, spec.choose)
            places = [] if one is None else [one]
        facts = {"called": self.evaluator.model.name, "command": command, "just_initialised": just_initialised}
        compared = self._certify(rows, places, {**requirements, **facts})
        # By number where two are equally good, so that results do not depend on who finished first.
        rows.sort(key=lambda row: (cost(row.figures, spec.objectives[0]), row.trial))
        required = any(rate is not None for rate in requirements.values())
        result = SweepResult(
            self.out, hide_password(self.study.url), tuple(spec.objectives), rows, failed, compared, required
        )
        with replace_file(self.out / RESULTS) as part:
            # Other programs read it, and NaN is no JSON.
            part.write_text(json.dumps(as_plain_data(result), indent=1, allow_nan=False), encoding="utf-8")
        return result

    def _read_figures(self, trial: Any) -> Mapping[str, Any]:
        """Return the figures of a candidate; what `choose` did not ask for when it was made is measured now."""
        figures: Mapping[str, Any] = trial.user_attrs[FIGURES]
        if set(self.sweep.spec.measured) <= set(figures):
            return figures
        return self.evaluator.make(self.sweep.space.recipe(json.loads(trial.user_attrs[POINT]))).figures

    def _certify(self, rows: list[Row], places: Sequence[int], arguments: Mapping[str, Any]) -> int:
        """Certify and report on each that is picked; return how many networks the certificates pay for."""
        recipes = {place: self.sweep.space.recipe(rows[place].point) for place in places}
        # What another machine made is made again here, where its file is to be certified.
        candidates = {place: self.evaluator.make(recipe) for place, recipe in recipes.items()}
        # Before any of them sees the test data: a kill in between must not hide a comparison that was made.
        compared = self.study.note_certified([each.figures["sha256"] for each in candidates.values()])
        with reporting(self.progress, "certify", len(candidates)) as tell:
            for count, (place, each) in enumerate(candidates.items(), 1):
                rebuilt = self.evaluator.model.rebuilt_module(recipes[place])
                certificate = certify(
                    self.evaluator.model.net,
                    each.file,
                    self.evaluator.data.test,
                    delta=DELTA,
                    rebuilt=rebuilt,
                    # Each certificate pays for all of them: the best of many looks better on the test data than it is.
                    candidates=compared,
                    **arguments,
                )
                certificate.save(each.folder / CERTIFICATE)
                row = rows[place]
                rows[place] = Row(row.trial, row.point, each.figures, row.front, each.folder, certificate)
                tell(count)
        for place, each in candidates.items():
            report(
                each.folder / CERTIFICATE,
                each.folder / REPORT,
                original=self.evaluator.model.net,
                rebuilt=self.evaluator.model.rebuilt_module(recipes[place]),
                tried=list_candidates(rows, place),
                reproduce=[self._format_repeat_command(each, arguments)],
            )
        if candidates:
            self._copy_best_report(rows, candidates)
        return compared

    def _format_repeat_command(self, candidate: EvaluatedCandidate, arguments: Mapping[str, Any]) -> str:
        """Return what makes a candidate again: a command where a command made it, or else a call."""
        recipe = str(candidate.folder / RECIPE_FILE)
        if arguments["command"] is None:
            return f"tamis.compress(model, {recipe!r}, out='again')"
        rate = arguments["max_accuracy_drop"]
        more = code_options(self.evaluator.section) + ("" if rate is None else f" --max-accuracy-drop {rate!r}")
        return f"tamis compress {self.evaluator.model.name} --recipe {shlex.quote(recipe)}{more} -o again"

    def _copy_best_report(self, rows: Sequence[Row], candidates: Mapping[int, EvaluatedCandidate]) -> None:
        """Copy the report of the best candidate in the first objective, of those that pass, beside the results."""
        # Where nothing is required, nothing has failed.
        suitable = [place for place in candidates if rows[place].passed is not False]
        first = min(
            suitable or candidates, key=lambda place: cost(candidates[place].figures, self.sweep.spec.objectives[0])
        )
        with replace_file(self.out / REPORT) as part:
            part.write_bytes((candidates[first].folder / REPORT).read_bytes())
