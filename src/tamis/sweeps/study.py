"""A sweep keeps its candidates in an Optuna study in a database, which workers share and which outlives them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tamis.errors import InvalidInput
from tamis.sweeps.database import close_on_error, close_storage, hide_password, import_optuna, open_study
from tamis.sweeps.space import Point, Space, encode_point, find_next_untried
from tamis.sweeps.workers import Heartbeats, Workers, send_heartbeats

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

MOST_DEATHS = 3  # how often a candidate may take its worker with it before it counts as failed
# What a trial's attributes say:
POINT, WORKER, BEAT, FIGURES, ERROR, RETRY, SURPLUS = "point", "worker", "beat", "figures", "error", "retry", "surplus"
QUESTION, CERTIFIED = "question", "certified"  # and the study's


@dataclass(frozen=True)
class Census:
    """A census says which points of a study are finished or live, by their text.

    Attributes:
        finished: the trial that settled each point: complete, or failed for good.
        live: points that somebody is at, or that are queued; trials that have no point yet by their number.
        waiting: how many are queued.
    """

    finished: Mapping[str, FrozenTrial]
    live: Mapping[str, FrozenTrial]
    waiting: int


class Study:
    """A study holds the trials of a sweep, in a database that its workers share.

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
        self._optuna = import_optuna()
        self.objectives, self._seed, self._workers, self._heartbeats = list(objectives), seed, workers, Heartbeats()
        self.url = url
        self._storage, self._study = open_study(url, name, self.objectives)
        with close_on_error(self._storage):
            self._check_question(question, name)

    def close(self) -> None:
        """Give up the connections to the database; they come back when they are needed."""
        close_storage(self._storage)

    # -- what was tried ------------------------------------------------------------------------------------------------

    def trials(self) -> list[FrozenTrial]:
        """List all trials, as they are now."""
        # Not copied, since they are only read, and there may be thousands of them.
        return self._study.get_trials(deepcopy=False)

    def take_census(self) -> Census:
        """Say which points are finished, and which are being tried."""
        states = self._optuna.trial.TrialState
        finished: dict[str, FrozenTrial] = {}
        live: dict[str, FrozenTrial] = {}
        deaths: dict[str, int] = {}
        trials = self.trials()
        # Trials come in the order of their numbers, which all workers see alike: of several at one point, `setdefault`
        # makes every worker settle on the same.
        for trial in trials:
            point = trial.user_attrs.get(POINT)
            if trial.state in (states.RUNNING, states.WAITING):
                live.setdefault(point or str(trial.number), trial)
            elif point is not None and (trial.state is states.COMPLETE or ERROR in trial.user_attrs):
                # An error was said: trying again would give the same one.
                finished.setdefault(point, trial)
            elif point is not None and SURPLUS not in trial.user_attrs:
                # It failed without an error, so that its worker died. Once may be bad luck; three times the candidate
                # is to blame, as one that needs more memory than there is.
                deaths[point] = deaths.get(point, 0) + 1
                if deaths[point] >= MOST_DEATHS:
                    finished.setdefault(point, trial)
        waiting = sum(trial.state is states.WAITING for trial in trials)
        return Census(finished, {name: each for name, each in live.items() if name not in finished}, waiting)

    @property
    def certified(self) -> list[str]:
        """List the sha256 of every file that was ever compared on the test data."""
        return list(self._study.user_attrs.get(CERTIFIED, []))

    def note_certified(self, files: Sequence[str]) -> int:
        """Note that these files are about to be compared on the test data, and count all that ever were."""
        # Never fewer than before: a certificate's δ is divided by all networks that ever saw the test data, also by
        # those of which the certificates were thrown away.
        every = [*dict.fromkeys([*self.certified, *files])]
        self._study.set_user_attr(CERTIFIED, every)
        return len(every)

    # -- trying --------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Queue again what a worker was at when it died.

        In two steps, of which either may be the last that this process does: the dead trial fails, and a point that
        nobody is at any more is queued. Two workers that do this at once may queue it twice; one of them is then found
        to be surplus.
        """
        states = self._optuna.trial.TrialState
        for trial in self.trials():
            if trial.state is states.RUNNING and self._is_dead(trial):
                # Its worker may have finished it a moment ago; then that result stands.
                self._study.tell(trial.number, state=states.FAIL, skip_if_finished=True)
        now = self.take_census()
        for trial in self.trials():
            if trial.state is not states.FAIL or POINT not in trial.user_attrs or SURPLUS in trial.user_attrs:
                continue
            point = trial.user_attrs[POINT]
            if point not in now.finished and point not in now.live:
                self._study.enqueue_trial(json.loads(point), user_attrs={POINT: point, RETRY: trial.number})
                now = self.take_census()

    def next(self, space: Space, target: int) -> tuple[optuna.Trial, Point] | None:
        """Return a trial to do now; None where others are at all that is left, or were quicker."""
        now = self.take_census()
        # What is queued goes first, even where enough is under way: it may be what a worker died at.
        if not now.waiting:
            if len(now.finished) + len(now.live) >= target:
                return None
            if space.size <= target:  # nothing to search: all of it is tried
                self._queue(space, now)
        trial = self._study.ask()
        # At once, so that other workers can find out whether this one lives.
        trial.set_user_attr(WORKER, self._workers.own)
        # After `ask`, which gives the number, and before `suggest`, which draws: the draw then depends on earlier
        # trials and the seed alone, not on how often this worker was started.
        self._study.sampler = self._make_sampler(trial.number)
        point = space.suggest(trial)
        trial.set_user_attr(POINT, encode_point(point))
        if self._is_surplus(trial.number, encode_point(point), target):
            trial.set_user_attr(SURPLUS, True)
            # Failed without an error and marked, so that it counts neither as a result nor as a death.
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)
            return None
        earlier = self.take_census().finished.get(encode_point(point))
        if earlier is None:
            return trial, point
        # The sampler drew a point that is done, as happens in small spaces. It is told the known result, or it would
        # draw the same again, and the next untried point is queued instead.
        self._repeat(trial, earlier)
        self._queue(space, self.take_census())
        return None

    @contextmanager
    def heartbeats(self, trial: optuna.Trial) -> Iterator[None]:
        """Show other workers meanwhile that this one is at a trial."""

        def beat(count: int) -> None:
            try:
                trial.set_user_attr(BEAT, count)
            except self._optuna.exceptions.UpdateFinishedTrialError:  # somebody took this one for dead
                raise StopIteration from None

        with send_heartbeats(beat):
            yield

    def tell(self, trial: optuna.Trial, figures: Mapping[str, Any]) -> None:
        """Record that a trial is done, and its file is written."""
        # Before the result: once a trial is finished it cannot be changed, and everybody who sees it finished reads
        # these.
        self._set(trial, FIGURES, dict(figures))
        self._study.tell(trial, [float(figures[name]) for name in self.objectives], skip_if_finished=True)

    def tell_failure(self, trial: optuna.Trial, error: BaseException) -> None:
        """Record that a trial cannot be done."""
        # Before the state, by which a failure for good is told from a death.
        self._set(trial, ERROR, str(error) or type(error).__name__)
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL, skip_if_finished=True)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check_question(self, question: Mapping[str, Any], name: str) -> None:
        """Note what the sweep is about, or raise InvalidInput if the study is about something else."""
        earlier = self._study.user_attrs.get(QUESTION)
        if earlier is None:
            self._study.set_user_attr(QUESTION, dict(question))
        elif earlier != question:
            differ = [part for part in question if earlier.get(part) != question[part]]
            raise InvalidInput(
                f"'{name}' in {hide_password(self.url)} is another sweep, with another "
                f"{' and '.join(differ) or 'form'}: give this one another name, or another folder"
            )

    def _make_sampler(self, number: int) -> Any:
        """Make a new sampler for each trial, so that one worker tries the same points, broken off or not."""
        # Retries and surplus trials draw nothing new, and must not shift the seeds of those that follow.
        draws = sum(
            trial.number < number and POINT in trial.user_attrs and not {RETRY, SURPLUS} & set(trial.user_attrs)
            for trial in self.trials()
        )
        # Neighbouring seeds have similar first draws; their digests do not.
        digest = hashlib.sha256(f"{self._seed} {draws}".encode()).digest()
        return self._optuna.samplers.TPESampler(seed=int.from_bytes(digest[:4], "big"))

    def _is_dead(self, trial: FrozenTrial) -> bool:
        worker = trial.user_attrs.get(WORKER)
        # A lock is certain and at once. Heartbeats are for other machines, and are looked at each time, so that the
        # time since the last one is known when it is needed.
        alive = None if worker is None else self._workers.is_alive(worker)
        silent = self._heartbeats.is_silent(trial.number, trial.user_attrs.get(BEAT))
        return not alive if alive is not None else silent

    def _is_surplus(self, number: int, point: str, target: int) -> bool:
        """Say whether others, who came earlier, are at this point, or at as many as are wanted."""
        # Databases that workers share have no lock that spans asking and drawing. So everyone looks again after having
        # said what it is at: of those who chose the same, the one with the smallest number goes on, and the others
        # see its number and withdraw. Should two look before either has spoken, both go on: that costs time, and what
        # comes out is the same.
        now = self.take_census()
        earlier = {name for name, each in now.live.items() if each.number < number}
        if point in earlier:
            return True
        return point not in now.finished and len(earlier | set(now.finished)) >= target

    def _queue(self, space: Space, now: Census) -> None:
        point = find_next_untried(space, {*now.finished, *now.live})
        if point is not None:
            self._study.enqueue_trial(point, user_attrs={POINT: encode_point(point)})

    def _repeat(self, trial: optuna.Trial, earlier: FrozenTrial) -> None:
        """Record the result of an earlier trial of the same point."""
        # A point that failed fails again, for the same reason.
        if earlier.values is None:
            self.tell_failure(trial, RuntimeError(earlier.user_attrs.get(ERROR, f"as trial {earlier.number}")))
        else:
            self._set(trial, FIGURES, earlier.user_attrs[FIGURES])
            self._study.tell(trial, earlier.values, skip_if_finished=True)

    def _set(self, trial: optuna.Trial, name: str, value: Any) -> None:
        # Where somebody took this one for dead, it is done again; the file is there.
        with suppress(self._optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr(name, value)
