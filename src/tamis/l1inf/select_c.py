"""The radius c is chosen by k-fold cross-validation over candidates, in parallel, with each score on disk."""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import read_json_object, replace_file
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.l1inf.projection import check_radius
from tamis.progress import Listener, reporting

ORIGIN = "origin.json"
Score = Callable[[float, Tensor, Tensor], float]
Trial = tuple[float, int]  # c, and which fold is held out


@dataclass(frozen=True)
class Selection:
    """A selection holds the score of every c on every held-out fold, and the c of the best mean.

    Attributes:
        table: c → its scores, fold by fold; the more the better.
    """

    table: Mapping[float, tuple[float, ...]]

    @property
    def means(self) -> dict[float, float]:
        """Return the mean score of each c."""
        return {c: sum(scores) / len(scores) for c, scores in self.table.items()}

    @property
    def c(self) -> float:
        """Return the c of the best mean score; among several, the smallest, which gives the sparsest network."""
        means = self.means
        return min(means, key=lambda c: (-means[c], c))


def select_c(
    score: Score,
    samples: int,
    candidates: Sequence[float],
    folds: int = 10,
    *,
    seed: int = 0,
    processes: int = 1,
    directory: str | Path | None = None,
    progress: Listener = True,
) -> Selection:
    """Choose c by k-fold cross-validation: deal samples into folds, and hold each out once for every c.

    With a `directory`, each score is a file there as soon as it is known. The same call, or one with other candidates,
    goes on from them.

    Args:
        score: trains a network under c on the samples of the second argument, a tensor of indices, and returns how well
            it does on those of the third: an accuracy, or a loss times −1. It decides by itself where its randomness
            comes from. With several processes it must be one that can be pickled: a function of a module, or a
            `functools.partial` of one.
        samples: how many there are.
        candidates: values of c.
        folds: k, from 2 to the number of samples; their sizes differ by one at most.
        seed: of the deal.
        processes: how many trials run side by side, each with its share of torch's threads.
        directory: made if it is not there.
        progress: True, False, or a function of a `Progress`, called after each trial.

    Example:
        >>> from tamis.l1inf import project
        >>> x, y = torch.arange(1.0, 13.0)[:, None], torch.arange(1.0, 13.0) * 0.1  # y = 0.1 x
        >>> def score(c, train, held_out):
        ...     weight = project(torch.linalg.lstsq(x[train], y[train, None]).solution, c)
        ...     return -float((x[held_out] @ weight - y[held_out, None]).abs().mean())
        >>> select_c(score, len(x), [0.1, 0.05, 0.01], folds=4, directory="folds", progress=False).c
        0.1

    Reference: yang2021l1inf.
    """
    candidates = _check_arguments(candidates, samples, folds, processes, seed)
    parts = deal_folds(samples, folds, seed)
    files = _ScoreFiles(directory, {"samples": samples, "folds": folds, "seed": seed, "score": _name_function(score)})
    trials = list(product(candidates, range(folds)))
    # Read before anything runs: damaged files are refused at once.
    known = {trial: found for trial in trials if (found := files.read(trial)) is not None}
    left = [trial for trial in trials if trial not in known]
    with reporting(progress, "cross-validation", len(trials)) as report:
        for trial, value in _run_trials(partial(_score_trial, score, parts), left, processes):
            files.write(trial, value)
            known[trial] = value
            report(len(known), c=trial[0], score=value)
    return Selection({c: tuple(known[c, fold] for fold in range(folds)) for c in candidates})


def deal_folds(samples: int, folds: int, seed: int) -> tuple[Tensor, ...]:
    """Deal sample indices into folds at random, in rising order within each fold."""
    # A generator of its own: the deal must neither depend on torch's global seed nor move it.
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    return tuple(part.sort().values for part in order.tensor_split(folds))


def _score_trial(score: Score, parts: Sequence[Tensor], trial: Trial) -> float:
    c, fold = trial
    # In rising order: samples of a training come in the order of the data, not in that of the deal.
    rest = torch.cat([part for number, part in enumerate(parts) if number != fold]).sort().values
    value = float(score(c, rest, parts[fold]))
    # NaN would make every comparison of means false, and some c be chosen by the order of candidates.
    if math.isnan(value):
        raise InvalidInput(f"the score of {c=} on fold {fold} is not a number; return −inf for a run that failed")
    return value


def _run_trials(
    run: Callable[[Trial], float], trials: Sequence[Trial], processes: int
) -> Iterator[tuple[Trial, float]]:
    """Yield each trial and its score, as they are done."""
    if processes == 1:
        yield from ((trial, run(trial)) for trial in trials)
        return
    # Each process would otherwise take all threads, and they would wait for one another.
    threads = max(1, torch.get_num_threads() // processes)
    context = multiprocessing.get_context("spawn")  # a copy of a process with threads may wait for them forever
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (threads,)) as pool:
        running = {pool.submit(run, trial): trial for trial in trials}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, those that have not begun


class _ScoreFiles:
    """These are the scores on disk, one file for each trial; without a directory, nothing is stored."""

    def __init__(self, directory: str | Path | None, origin: Mapping[str, Any]) -> None:
        self._directory = None if directory is None else Path(directory)
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / ORIGIN
        if not path.exists():
            _write(path, origin)
        elif (there := _read(path)) != dict(origin):
            raise InvalidInput(
                f"{self._directory} holds folds of another cross-validation, {there}, and this one is {dict(origin)}: "
                "choose another directory"
            )

    def read(self, trial: Trial) -> float | None:
        """Return the score of a trial, or None if it is not known."""
        if self._directory is None or not (path := self._find_path(trial)).exists():
            return None
        found = _read(path)
        # The content repeats its own name, so that a file that was copied or renamed is not taken for another trial.
        if [found.get("c"), found.get("fold")] != list(trial) or not isinstance(found.get("score"), float):
            raise CorruptArtifact(f"{path} should hold the score of c={trial[0]} on fold {trial[1]}, and holds {found}")
        return float(found["score"])

    def write(self, trial: Trial, score: float) -> None:
        if self._directory is not None:
            _write(self._find_path(trial), {"c": trial[0], "fold": trial[1], "score": score})

    def _find_path(self, trial: Trial) -> Path:
        assert self._directory is not None
        return self._directory / f"c_{trial[0]!r}_fold_{trial[1]}.json"


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with replace_file(path) as part:
        part.write_text(json.dumps(content) + "\n")


def _read(path: Path) -> dict[str, Any]:
    return read_json_object(path, "delete it, and its trial is run again")


def _check_arguments(candidates: Any, samples: Any, folds: Any, processes: Any, seed: Any) -> list[float]:
    """Check all arguments, and return the candidates as plain floats."""
    for name, value, least in (("samples", samples, 2), ("folds", folds, 2), ("processes", processes, 1)):
        if type(value) is not int or value < least:
            raise InvalidInput(f"{name}={value!r} must be a whole number ≥ {least}")
    if type(seed) is not int or not 0 <= seed < 2**63:
        raise InvalidInput(f"{seed=} must be a whole number from 0 to 2⁶³ − 1")
    if folds > samples:
        raise InvalidInput(f"{samples} samples cannot be dealt into {folds=}: some would be empty")
    plain = [check_radius(c, "a candidate c") for c in candidates]
    if not plain or len(set(plain)) != len(plain):
        raise InvalidInput(f"candidates={candidates!r} must be different values of c, one or more")
    return plain


def _name_function(score: Any) -> str:
    """Return the name of the score function, so that another function's scores are not used for it."""
    # By name and without a partial's arguments: these may be tensors, of which no short text tells two apart.
    while isinstance(score, partial):
        score = score.func
    return str(getattr(score, "__qualname__", type(score).__qualname__))
