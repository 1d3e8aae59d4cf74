"""A run takes the online learner through a stream, records every round, and can be killed and resumed.

A run leaves four files in its directory: `asked.json`, its settings; `rounds.journal` with its snapshot, from which
`tamis.bayes.journal` brings a learner back; and `notes.jsonl`, a line for each round, written before the round is
learnt: how the averaged prediction did, the bound so far, and now and then the best particle.

Reference: chee2021xnor.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import replace_file
from tamis.bayes.journal import RoundJournal, count_rounds
from tamis.bayes.online import OnlineLearner
from tamis.bayes.posterior import Sampling
from tamis.bayes.prior import Prior
from tamis.bayes.streams import build_space, load_stream
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.settings import OnlineLearning

SETTINGS_FILE, JOURNAL, RECORDS_FILE = "asked.json", "rounds.journal", "notes.jsonl"
RunSettings = OnlineLearning  # what a run is called with in Python is what one types for `tamis online`


@dataclass(frozen=True)
class RoundRecord:
    """A record holds the figures of one round, from before it is learnt.

    Attributes:
        wrong: how many labels of the round the averaged prediction misses.
        bound: of the loss of the rounds before, by Theorem 4.1 at its least ρ.
        best: the loss of the best particle over the rounds before, where it was looked for.
    """

    wrong: int
    bound: float
    best: float | None = None


@dataclass(frozen=True, eq=False)
class CompletedRun:
    """A completed run holds its settings, the learner after all rounds, and a record for each round."""

    settings: RunSettings
    learner: OnlineLearner
    records: tuple[RoundRecord, ...]

    @property
    def bounds(self) -> list[float]:
        """Return the bounds of the loss of the first 1, 2, …, T rounds."""
        return [*(record.bound for record in self.records[1:]), least_bound(self.learner)]

    def error(self, part: float = 0.2) -> float:
        """Compute the share of labels that the averaged prediction missed in the last part of the rounds."""
        # The last part only: what counts is how well it predicts after learning, and early rounds are guesses.
        last = self.records[-max(1, round(part * len(self.records))) :]
        return sum(record.wrong for record in last) / (len(last) * self.settings.batch)


def run_online(
    settings: RunSettings,
    directory: Path | None = None,
    *,
    listen: Callable[[OnlineLearner], object] | None = None,
    device: str | torch.device = "cpu",
) -> CompletedRun:
    """Run the learner through all rounds, from where a run in the directory was broken off.

    Args:
        settings: what to run. With more rounds than before, a run that is over goes on.
        directory: where rounds are safe; None for nowhere.
        listen: called after each round.
        device: where networks are computed.

    Example:
        >>> 0 <= run_online(RunSettings("digits", "dense", rounds=2)).error() <= 1
        True
    """
    space, stream = build_space(
        load_stream(settings.data, settings.pool), settings.space, settings.layers, settings.filters, settings.sizes
    )
    learner = OnlineLearner(
        space,
        Prior(settings.tau),
        settings.lam,
        settings.particles,
        settings.seed,
        sampling=Sampling(spread=settings.spread, subsample=settings.subsample),
        device=device,
    )
    # Drawn as a whole from the seed, so that a resumed run takes the very samples that it would have taken.
    order = stream.order(settings.rounds, settings.batch, settings.seed)
    records, learn = RunLog(), learner.update
    with ExitStack() as stack:
        if directory is not None:
            # Before the journal is opened, which would write into the directory of another run.
            check_run_settings(directory, settings)
            directory.mkdir(parents=True, exist_ok=True)
            journal = stack.enter_context(RoundJournal(learner, directory / JOURNAL))
            # While the journal is locked: of two runs that begin at once, only the one that holds it writes its
            # settings.
            if not journal.rounds:
                save_run_settings(directory, settings)
            records, learn = RunLog(directory / RECORDS_FILE, journal.rounds), journal.update
            if journal.rounds > settings.rounds:
                raise InvalidInput(
                    f"the run in '{directory}' has {journal.rounds} rounds: ask for as many or more, "
                    f"got {settings.rounds}"
                )
        for places in order[learner.rounds :]:
            x, y = stream.select(places)
            # Recorded first: after a kill between the two, `RunLog` drops the record, and the round is played again.
            records.add(_record_round(learner, x, y))
            learn(x, y)
            if listen is not None:
                listen(learner)
    return CompletedRun(settings, learner, tuple(records.all))


def least_bound(learner: OnlineLearner) -> float:
    """Compute Theorem 4.1 at the ρ where it is least, which is Gibbs_λ(h_T): −(1/λ) log E_π exp(−λ h_T).

    The sampler estimates the expectation on its way, without bias where moves are exact. By Jensen, the mean of what
    this returns is then not below the bound.
    """
    # By Donsker and Varadhan, min_ρ {E_ρ h + KL(ρ, π)/λ} = −(1/λ) log E_π exp(−λh).
    return -learner.posterior.log_normaliser / learner.lam


def _record_round(learner: OnlineLearner, x: Tensor, y: Tensor) -> RoundRecord:
    # All of this is from before the labels are learnt: the error is that of predictions for unseen samples.
    wrong = int((learner.predict_mean(x).argmax(1).cpu() != y).sum())
    best = learner.regret.best_particle().loss if inspects_best_particle(learner.rounds) else None
    return RoundRecord(wrong, least_bound(learner), best)


def inspects_best_particle(rounds: int) -> bool:
    """Return whether the best particle is looked for after this many rounds: 10, 14, 20, 28, …, 10·√(2^k).

    That takes the losses of all particles over all rounds: done after each round, it would cost more than learning.
    """
    return rounds >= 10 and rounds == math.floor(10 * 2 ** (round(2 * math.log2(rounds / 10)) / 2))


# -- files -------------------------------------------------------------------------------------------------------------


def check_run_settings(directory: Path, settings: RunSettings) -> None:
    """Raise InvalidInput where a directory holds rounds of another run; a directory without rounds is free."""
    if not count_rounds(directory / JOURNAL):
        return
    if not (directory / SETTINGS_FILE).exists():
        raise InvalidInput(f"'{directory}' holds a run, but not what it is a run of: '{SETTINGS_FILE}' is missing")
    own, theirs = _select_identifying_settings(settings), _read_run_settings(directory / SETTINGS_FILE)
    # Through JSON and back, as the stored ones went: tuples become lists there.
    differing = [name for name in own if json.loads(json.dumps(own[name])) != theirs.get(name)]
    if differing:
        differences = ", ".join(f"{name} {theirs.get(name)!r} and not {own[name]!r}" for name in differing)
        raise InvalidInput(f"'{directory}' holds another run, with {differences}: name another directory")


def save_run_settings(directory: Path, settings: RunSettings) -> None:
    """Write a run's settings to its directory, before the first round and while the journal is held."""
    with replace_file(directory / SETTINGS_FILE) as part:
        part.write_text(json.dumps(_select_identifying_settings(settings), indent=2) + "\n")


def _select_identifying_settings(settings: RunSettings) -> dict[str, Any]:
    """Return the settings that distinguish runs: all but the number of rounds, which may grow."""
    return {name: value for name, value in asdict(settings).items() if name != "rounds"}


def _read_run_settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise CorruptArtifact(f"'{path}' does not say what it is a run of: {error}") from error
    if not isinstance(found, dict):
        raise CorruptArtifact(f"'{path}' does not say what it is a run of")
    return found


class RunLog:
    """A run log keeps the records of a run in memory, and in a file if there is one, on disk before `add` returns.

    Args:
        path: of the file; None for none.
        rounds: how many records count. The file may hold one more, of a round that was recorded but not learnt.
    """

    def __init__(self, path: Path | None = None, rounds: int = 0) -> None:
        self.path, self.all = path, list[RoundRecord]()
        if path is None:
            return
        # The journal says how many rounds count. A line more is of a round that was not learnt before the kill, perhaps
        # torn.
        lines = path.read_text().splitlines()[:rounds] if path.exists() else []
        try:
            self.all = [RoundRecord(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise CorruptArtifact(f"'{path}' holds no record in line {len(self.all) + 1}: {error}") from error
        if len(self.all) < rounds:
            raise CorruptArtifact(f"'{path}' has records of {len(self.all)} rounds, and {rounds} were learnt")
        # Written anew, so that `add` appends after the last record that counts and not after a torn line.
        with replace_file(path) as part:
            part.write_text("".join(map(_write_line, self.all)))

    def add(self, record: RoundRecord) -> None:
        """Append a record, and write it to the disk."""
        self.all.append(record)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(_write_line(record))
                file.flush()
                # On disk before the round is learnt: the records then never lag behind the journal, which would be no
                # run to resume.
                os.fsync(file.fileno())


def _write_line(record: RoundRecord) -> str:
    return json.dumps(asdict(record)) + "\n"
