"""The study behind a sweep: an Optuna study in a database, which workers share, die beside, and come back to."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.errors import InvalidInput
from tamis.sweeps.space import Point, Space, text_of, untried
from tamis.sweeps.spec import DIRECTIONS
from tamis.sweeps.workers import Pulses, Workers, beating

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

MOST_DEATHS = 3  # how often a candidate may take its worker with it before it counts as failed
ATTEMPTS = 5  # to open a database that several workers may be creating at the same moment
DATABASE = "sweep.db"
# What a trial's attributes say:
POINT, WORKER, BEAT, FIGURES, ERROR, RETRY, SURPLUS = "point", "worker", "beat", "figures", "error", "retry", "surplus"
QUESTION, CERTIFIED = "question", "certified"  # and the study's


@dataclass(frozen=True)
class Census:
    """Where a study stands, by the text of points.

    Attributes:
        finished: the trial that settled each point: complete, or failed for good.
        live: points that somebody is at, or that are queued; trials that have no point yet by their number.
        waiting: how many are queued.
    """

    finished: Mapping[str, FrozenTrial]
    live: Mapping[str, FrozenTrial]
    waiting: int


class Study:
    """A sweep's study.

    Args:
        url: of the database.
        name: of the study in it.
        objectives: by name.
        question: what the sweep is about; another one under the same name is refused.
        seed: of what is tried.
        workers: those of this folder.

    Raises:
        InvalidInput: the database cannot be reached, or the study there is another one.
    """

    def __init__(
        self, url: str, name: str, objectives: Sequence[str], question: Mapping[str, Any], seed: int, workers: Workers
    ) -> None:
        self._optuna = imported_optuna()
        self.objectives, self._seed, self._workers, self._pulses = list(objectives), seed, workers, Pulses()
        self.url = url
        self._study = self._opened(url, name)
        with self._closed_on_errors():
            self._ask(question, name)

    def close(self) -> None:
        """Give up the connections to the database; they come back when they are needed."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    # -- what was tried ------------------------------------------------------------------------------------------------

    def trials(self) -> list[FrozenTrial]:
        """All of them, as they are now."""
        return self._study.get_trials(deepcopy=False)

    def census(self) -> Census:
        """Where it stands."""
        states = self._optuna.trial.TrialState
        finished: dict[str, FrozenTrial] = {}
        live: dict[str, FrozenTrial] = {}
        deaths: dict[str, int] = {}
        trials = self.trials()
        for trial in trials:
            point = trial.user_attrs.get(POINT)
            if trial.state in (states.RUNNING, states.WAITING):
                live.setdefault(point or str(trial.number), trial)
            elif point is not None and (trial.state is states.COMPLETE or ERROR in trial.user_attrs):
                finished.setdefault(point, trial)
            elif point is not None and SURPLUS not in trial.user_attrs:
                deaths[point] = deaths.get(point, 0) + 1
                if deaths[point] >= MOST_DEATHS:
                    finished.setdefault(point, trial)
        waiting = sum(trial.state is states.WAITING for trial in trials)
        return Census(finished, {name: each for name, each in live.items() if name not in finished}, waiting)

    @property
    def certified(self) -> list[str]:
        """The sha256 of every file that was ever compared on the test data."""
        return list(self._study.user_attrs.get(CERTIFIED, []))

    def certify(self, files: Sequence[str]) -> int:
        """Note that these files are about to be; how many there are with those before."""
        every = [*dict.fromkeys([*self.certified, *files])]
        self._study.set_user_attr(CERTIFIED, every)
        return len(every)

    # -- trying --------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Have done again what a worker was at when it died.

        In two steps, of which either may be the last that this process does: the dead trial fails, and a point that
        nobody is at any more is queued. Two workers that do this at once may queue it twice; one of them is then found
        to be surplus.
        """
        states = self._optuna.trial.TrialState
        for trial in self.trials():
            if trial.state is states.RUNNING and self._is_dead(trial):
                self._study.tell(trial.number, state=states.FAIL, skip_if_finished=True)
        now = self.census()
        for trial in self.trials():
            if trial.state is not states.FAIL or POINT not in trial.user_attrs or SURPLUS in trial.user_attrs:
                continue
            point = trial.user_attrs[POINT]
            if point not in now.finished and point not in now.live:
                self._study.enqueue_trial(json.loads(point), user_attrs={POINT: point, RETRY: trial.number})
                now = self.census()

    def next(self, space: Space, wanted: int) -> tuple[optuna.Trial, Point] | None:
        """A trial to do now; None where others are at all that is left, or were quicker."""
        now = self.census()
        if not now.waiting:
            if len(now.finished) + len(now.live) >= wanted:
                return None
            if space.size <= wanted:  # nothing to search: all of it is tried
                self._queue(space, now)
        trial = self._study.ask()
        trial.set_user_attr(WORKER, self._workers.own)
        self._study.sampler = self._sampler(trial.number)
        point = space.suggest(trial)
        trial.set_user_attr(POINT, text_of(point))
        if self._is_surplus(trial.number, text_of(point), wanted):
            trial.set_user_attr(SURPLUS, True)
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)
            return None
        settled = self.census().finished.get(text_of(point))
        if settled is None:
            return trial, point
        self._repeat(trial, settled)
        self._queue(space, self.census())
        return None

    @contextmanager
    def pulse(self, trial: optuna.Trial) -> Iterator[None]:
        """Show meanwhile that somebody is at a trial."""

        def beat(count: int) -> None:
            try:
                trial.set_user_attr(BEAT, count)
            except self._optuna.exceptions.UpdateFinishedTrialError:  # somebody took this one for dead
                raise StopIteration from None

        with beating(beat):
            yield

    def tell(self, trial: optuna.Trial, figures: Mapping[str, Any]) -> None:
        """A trial is done, and its file is written."""
        self._set(trial, FIGURES, dict(figures))
        self._study.tell(trial, [float(figures[name]) for name in self.objectives], skip_if_finished=True)

    def tell_failure(self, trial: optuna.Trial, error: BaseException) -> None:
        """A trial cannot be done."""
        self._set(trial, ERROR, str(error) or type(error).__name__)
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _ask(self, question: Mapping[str, Any], name: str) -> None:
        """Note what the sweep is about; InvalidInput if the study is about something else."""
        known = self._study.user_attrs.get(QUESTION)
        if known is None:
            self._study.set_user_attr(QUESTION, dict(question))
        elif known != question:
            differ = [part for part in question if known.get(part) != question[part]]
            raise InvalidInput(
                f"'{name}' in {shown(self.url)} is another sweep, with another {' and '.join(differ) or 'form'}: give "
                "this one another name, or another folder"
            )

    def _opened(self, url: str, name: str) -> optuna.Study:
        from sqlalchemy.exc import ArgumentError, SQLAlchemyError

        optuna = self._optuna
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._storage = optuna.storages.RDBStorage(url, engine_kwargs=_engine(url))
                with _quietly(optuna), self._closed_on_errors():
                    directions = [DIRECTIONS[each] for each in self.objectives]
                    study = optuna.create_study(
                        storage=self._storage, study_name=name, directions=directions, load_if_exists=True
                    )
                    study.set_metric_names(self.objectives)
                return study
            except (ImportError, ArgumentError) as error:
                raise InvalidInput(f"--storage: '{shown(url)}' cannot be used: {_first_line(error)}") from error
            except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                # Two workers that make the tables at the same moment get in each other's way, once.
                if attempt == ATTEMPTS or _unreachable(error):
                    raise InvalidInput(f"--storage: {shown(url)} cannot be opened: {_first_line(error)}") from error
                time.sleep(0.2 * attempt)
            except ValueError as error:  # the study has other objectives
                raise InvalidInput(f"'{name}' in {shown(url)} is another sweep: {_first_line(error)}") from error
        raise AssertionError

    @contextmanager
    def _closed_on_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _sampler(self, number: int) -> Any:
        """A new one for each trial, so that one worker tries the same points, broken off or not."""
        drawn = sum(
            trial.number < number and POINT in trial.user_attrs and not {RETRY, SURPLUS} & set(trial.user_attrs)
            for trial in self.trials()
        )
        # Neighbouring seeds have first draws that are alike; digests of them have not.
        digest = hashlib.sha256(f"{self._seed} {drawn}".encode()).digest()
        return self._optuna.samplers.TPESampler(seed=int.from_bytes(digest[:4], "big"))

    def _is_dead(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get(WORKER)
        lives = None if worker is None else self._workers.lives(worker)
        silent = self._pulses.silent(trial.number, trial.user_attrs.get(BEAT))
        return not lives if lives is not None else silent

    def _is_surplus(self, number: int, point: str, wanted: int) -> bool:
        """Whether others, who came earlier, are at this point, or at as many as are wanted."""
        now = self.census()
        earlier = {name for name, each in now.live.items() if each.number < number}
        if point in earlier:
            return True
        return point not in now.finished and len(earlier | set(now.finished)) >= wanted

    def _queue(self, space: Space, now: Census) -> None:
        point = untried(space, {*now.finished, *now.live})
        if point is not None:
            self._study.enqueue_trial(point, user_attrs={POINT: text_of(point)})

    def _repeat(self, trial: optuna.Trial, settled: FrozenTrial) -> None:
        """What was tried before is told again."""
        if settled.values is None:
            self.tell_failure(trial, RuntimeError(settled.user_attrs.get(ERROR, f"as trial {settled.number}")))
        else:
            self._set(trial, FIGURES, settled.user_attrs[FIGURES])
            self._study.tell(trial, settled.values, skip_if_finished=True)

    def _set(self, trial: optuna.Trial, name: str, value: Any) -> None:
        # Where somebody took this one for dead, it is done again; the file is there.
        with suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr(name, value)


def imported_optuna() -> Any:
    """Optuna; InvalidInput where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise InvalidInput("a sweep needs optuna, which is not installed: pip install 'tamis[sweep]'") from None
    return optuna


def database_url(storage: str | None, out: Path) -> str:
    """The database that is asked for, or an SQLite file in the folder.

    Example:
        >>> database_url("postgresql://me@server/sweeps", Path("out"))
        'postgresql+psycopg://me@server/sweeps'
    """
    if storage is None:
        return f"sqlite:///{(out / DATABASE).resolve()}"
    if "://" not in storage:
        raise InvalidInput(
            f"--storage is the address of a database, as postgresql://me@host/name or sqlite:///my.db; got '{storage}'"
        )
    plain = "postgresql://"
    return "postgresql+psycopg://" + storage.removeprefix(plain) if storage.startswith(plain) else storage


def shown(url: str) -> str:
    """An address without its password."""
    scheme, _, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{host}"


def _engine(url: str) -> dict[str, Any]:
    """Patience with a file that others write to, and connections that are looked at before they are used."""
    return {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}


def _unreachable(error: BaseException) -> bool:
    """Whether no other worker is to blame."""
    from sqlalchemy.exc import OperationalError

    cause = error if isinstance(error, OperationalError) else error.__cause__
    return isinstance(cause, OperationalError) and "locked" not in str(cause)


def _first_line(error: BaseException) -> str:
    return str(error.__cause__ or error).strip().partition("\n")[0]


@contextmanager
def _quietly(optuna: Any) -> Iterator[None]:
    """Without lines about what was made, and about what may change in later versions."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)
