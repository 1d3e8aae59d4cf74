"""A run of the online learner on a stream, which a kill does not end, and what is noted in each round.

Of a run in a directory there are four files: `asked.json`, what it is a run of; `rounds.journal` with its snapshot, by
which `tamis.bayes.journal` brings a learner back; and `notes.jsonl`, a line for each round, written before the round is
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
from tamis.bayes.journal import Journal, rounds_in
from tamis.bayes.online import OnlineLearner
from tamis.bayes.posterior import Sampling
from tamis.bayes.prior import Prior
from tamis.bayes.streams import named, space_for
from tamis.errors import CorruptArtifact, InvalidInput

QUESTION, JOURNAL, NOTES = "asked.json", "rounds.journal", "notes.jsonl"


@dataclass(frozen=True)
class Asked:
    """What is run.

    Attributes:
        data, pool: the stream, as `tamis.bayes.streams.named` takes it.
        space, layers, filters, sizes: the union of networks, as `space_for` takes it.
        rounds: T.
        batch: examples in a round.
        particles, lam, seed: of the learner; the order of the examples is by the seed as well.
        tau: τ of the prior.
        subsample: how many past rounds a move of particles sees; None for all of them.
        spread: which part of the particles is dealt evenly to all architectures.
    """

    data: str
    space: str
    rounds: int
    batch: int = 16
    particles: int = 100
    lam: float = 1.0
    tau: float = 0.3
    seed: int = 0
    pool: int = 1
    layers: tuple[int, ...] = ()
    filters: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    subsample: int | None = None
    spread: float = 0.5


@dataclass(frozen=True)
class Note:
    """What is known before a round is learnt.

    Attributes:
        wrong: how many labels of the round the averaged prediction misses.
        bound: of the loss of the rounds before, by Theorem 4.1 at its least ρ.
        best: the loss of the best particle over the rounds before, where it was looked for.
    """

    wrong: int
    bound: float
    best: float | None = None


@dataclass(frozen=True, eq=False)
class Followed:
    """A run that is over: what was asked, the learner after its rounds, and a note for each."""

    asked: Asked
    learner: OnlineLearner
    notes: tuple[Note, ...]

    @property
    def bounds(self) -> list[float]:
        """Of the loss of the first 1, 2, …, T rounds."""
        return [*(note.bound for note in self.notes[1:]), least_bound(self.learner)]

    def error(self, part: float = 0.2) -> float:
        """The share of labels that the averaged prediction missed in the last part of the rounds."""
        last = self.notes[-max(1, round(part * len(self.notes))) :]
        return sum(note.wrong for note in last) / (len(last) * self.asked.batch)


def follow(
    asked: Asked,
    directory: Path | None = None,
    *,
    listen: Callable[[OnlineLearner], object] | None = None,
    device: str | torch.device = "cpu",
) -> Followed:
    """Run the learner to the end of what is asked, from where a run in the directory was broken off.

    Args:
        asked: what to run. With more rounds than before, a run that is over goes on.
        directory: where rounds are safe; None for nowhere.
        listen: called after each round.
        device: where networks are computed.

    Example:
        >>> follow(Asked("digits", "dense", rounds=100)).error()
    """
    space, stream = space_for(named(asked.data, asked.pool), asked.space, asked.layers, asked.filters, asked.sizes)
    learner = OnlineLearner(
        space,
        Prior(asked.tau),
        asked.lam,
        asked.particles,
        asked.seed,
        sampling=Sampling(spread=asked.spread, subsample=asked.subsample),
        device=device,
    )
    order = stream.order(asked.rounds, asked.batch, asked.seed)
    notes, learn = Notebook(), learner.update
    with ExitStack() as stack:
        if directory is not None:
            check_question(directory, asked)
            directory.mkdir(parents=True, exist_ok=True)
            journal = stack.enter_context(Journal(learner, directory / JOURNAL))
            if not journal.rounds:
                note_question(directory, asked)
            notes, learn = Notebook(directory / NOTES, journal.rounds), journal.update
            if journal.rounds > asked.rounds:
                raise InvalidInput(
                    f"the run in '{directory}' has {journal.rounds} rounds: ask for as many or more, got {asked.rounds}"
                )
        for places in order[learner.rounds :]:
            x, y = stream.at(places)
            notes.add(_noted(learner, x, y))
            learn(x, y)
            if listen is not None:
                listen(learner)
    return Followed(asked, learner, tuple(notes.all))


def least_bound(learner: OnlineLearner) -> float:
    """Theorem 4.1 at the ρ where it is least, which is Gibbs_λ(h_T): −(1/λ) log E_π exp(−λ h_T).

    The sampler estimates the expectation on its way, without bias where moves are exact. By Jensen, the mean of what
    this returns is then not below the bound.
    """
    return -learner.posterior.log_normaliser / learner.lam


def _noted(learner: OnlineLearner, x: Tensor, y: Tensor) -> Note:
    wrong = int((learner.predict_mean(x).argmax(1).cpu() != y).sum())
    best = learner.regret.best_particle().loss if looked_at(learner.rounds) else None
    return Note(wrong, least_bound(learner), best)


def looked_at(rounds: int) -> bool:
    """Whether the best particle is looked for after so many rounds: at 10, 14, 20, 28, …, ten times the root of 2^k.

    It takes the losses of all particles over all rounds, so that doing it always would cost the most of all.
    """
    return rounds >= 10 and rounds == math.floor(10 * 2 ** (round(2 * math.log2(rounds / 10)) / 2))


# -- files -------------------------------------------------------------------------------------------------------------


def check_question(directory: Path, asked: Asked) -> None:
    """InvalidInput where a directory holds rounds of another run; one without a round is free."""
    if not rounds_in(directory / JOURNAL):
        return
    if not (directory / QUESTION).exists():
        raise InvalidInput(f"'{directory}' holds a run, but not what it is a run of: '{QUESTION}' is missing")
    own, theirs = _question(asked), _read_question(directory / QUESTION)
    differing = [name for name in own if json.loads(json.dumps(own[name])) != theirs.get(name)]
    if differing:
        told = ", ".join(f"{name} {theirs.get(name)!r} and not {own[name]!r}" for name in differing)
        raise InvalidInput(f"'{directory}' holds another run, with {told}: name another directory")


def note_question(directory: Path, asked: Asked) -> None:
    """Leave a note of what a directory is a run of, before its first round and while its journal is held."""
    with replace_file(directory / QUESTION) as part:
        part.write_text(json.dumps(_question(asked), indent=2) + "\n")


def _question(asked: Asked) -> dict[str, Any]:
    """What is asked, but for how many rounds: a run may go on for longer."""
    return {name: value for name, value in asdict(asked).items() if name != "rounds"}


def _read_question(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise CorruptArtifact(f"'{path}' does not say what it is a run of: {error}") from error
    if not isinstance(found, dict):
        raise CorruptArtifact(f"'{path}' does not say what it is a run of")
    return found


class Notebook:
    """Notes in memory, and in a file if there is one; each is on the disk before `add` returns.

    Args:
        path: of the file; None for none.
        rounds: how many notes count. One more may be there, of a round that was not learnt any more.
    """

    def __init__(self, path: Path | None = None, rounds: int = 0) -> None:
        self.path, self.all = path, list[Note]()
        if path is None:
            return
        lines = path.read_text().splitlines()[:rounds] if path.exists() else []
        try:
            self.all = [Note(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise CorruptArtifact(f"'{path}' holds no note in line {len(self.all) + 1}: {error}") from error
        if len(self.all) < rounds:
            raise CorruptArtifact(f"'{path}' has notes of {len(self.all)} rounds, and {rounds} were learnt")
        with replace_file(path) as part:
            part.write_text("".join(map(_line, self.all)))

    def add(self, note: Note) -> None:
        self.all.append(note)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(_line(note))
                file.flush()
                os.fsync(file.fileno())


def _line(note: Note) -> str:
    return json.dumps(asdict(note)) + "\n"
