"""Transfer of architectures: found on a large set, trained anew on few images of another task (Figures 3–7, Table 1).

Departures from the paper, which gives no rates, epochs or batch sizes, are numbered in architecture.py.

Reference: colombo2021architecture, sections 3.2 and 3.3.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.architecture_together import measure_accuracies, train_together
from experiments.record import time_stage
from tamis.architecture import Architecture, search
from tamis.architecture.baselines import magnitude_architecture, random_architecture
from tamis.architecture.reshuffle import reshuffle
from tamis.errors import InvalidInput
from tamis.progress import reporting
from tamis.training import Data, Settings, load_data

OURS, MAGNITUDE, RANDOM = "AP", "IMP", "random"
METHODS = (OURS, MAGNITUDE, RANDOM)
RESHUFFLED = (OURS, MAGNITUDE)
SPARSITIES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
SIZES = (5000, 1000, 500, 100, 50)
TABLE_SIZE = 500  # |D_new| of Table 1
TUNING_SIZE = 500
Key = tuple[str, float, int]  # method, sparsity, run
Notes = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """Some classes of a dataset, numbered anew in this order; no classes for all of them."""

    spec: str
    classes: tuple[int, ...] = ()

    def load(self) -> Data:
        """Return the examples of these classes, in the order of the dataset."""
        data = load_data(self.spec)
        if not self.classes:
            return data
        if data.classes <= max(self.classes):
            raise InvalidInput(f"'{self.spec}' has {data.classes} classes, and class {max(self.classes)} is wanted")
        number = torch.full((data.classes,), -1)
        number[torch.tensor(self.classes)] = torch.arange(len(self.classes))
        chosen = data[(number[data.labels] >= 0).nonzero()[:, 0]]
        name = f"{self.spec} of the classes {', '.join(map(str, self.classes))}"
        return replace(chosen, labels=number[chosen.labels], classes=len(self.classes), name=name)


@dataclass(frozen=True)
class Study:
    """What to search on, what to transfer to, and how much of it.

    Attributes:
        source: the task of the search, with its own test data; `new` and `test` are the new one.
        widths: of the stages of the network, two convolutions each.
        search: how weights are trained in searches and in rounds of magnitude pruning; `transfer` of transfers, whose
            epochs follow the number of images in `epochs`.
        rounds: of magnitude pruning.
        mask_rates: to choose from for the search, for each sparsity: by the accuracy of the first architecture when it
            is trained anew on `TUNING_SIZE` images of the source, as a transfer is; the new task has no part in it.
        searches: how many architectures to find for each method and sparsity, from different seeds; transfers take
            them in turn.
        runs: how many transfers of each, from different seeds and images.
    """

    source: Task
    source_test: Task
    new: Task
    test: Task
    widths: tuple[int, ...]
    search: Settings
    transfer: Settings
    epochs: tuple[tuple[int, int], ...]
    sparsities: tuple[float, ...] = SPARSITIES
    rounds: int = 3
    mask_rates: tuple[float, ...] = (1.0, 3.0, 10.0)
    searches: int = 3
    runs: int = 5

    @property
    def search_key(self) -> str:
        """Return a name for all that architectures depend on: those of another study are not taken for its own."""
        return hashlib.sha256(repr((self.source, self.widths, self.search, self.rounds)).encode()).hexdigest()[:12]

    def network(self, seed: int) -> nn.Sequential:
        data = _load(self.source)
        torch.manual_seed(seed)
        return make_small_vgg(self.widths, data.classes, data.inputs.shape[1])


def make_small_vgg(widths: Sequence[int], classes: int, channels: int = 3) -> nn.Sequential:
    """Return a VGG for small images: stages of two 3×3 convolutions with batch-norm and ReLU, pooled between; linear
    scores.

    Example:
        >>> make_small_vgg((32, 64, 128), classes=10)
    """
    layers: list[nn.Module] = []
    for before, width in pairwise((channels, *widths)):
        layers += [nn.MaxPool2d(2)] if layers else []
        for inputs in (before, width):
            layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


def draw_balanced(data: Data, count: int, seed: int) -> Data:
    """Draw so many examples at random, as many of each class."""
    share, rest = divmod(count, data.classes)
    if rest:
        raise InvalidInput(f"{count} images of '{data.name}' cannot be as many of each of {data.classes} classes")
    generator = torch.Generator().manual_seed(seed)
    shuffled = torch.randperm(len(data), generator=generator)
    labels = data.labels[shuffled]
    chosen = []
    for label in range(data.classes):
        places = shuffled[labels == label]
        if len(places) < share:
            raise InvalidInput(f"'{data.name}' has {len(places)} images of class {label}, and {share} are wanted")
        chosen.append(places[:share])
    return data[torch.cat(chosen)]


@cache
def _load(task: Task) -> Data:
    return task.load()


# -- architectures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One architecture to be found and left in a file; one that is there is read."""

    study: Study
    method: str
    sparsity: float
    seed: int
    directory: Path
    device: str
    mask_rate: float = 0.0  # of a search

    def run(self) -> Architecture:
        way = f"{self.method}_{self.mask_rate}" if self.mask_rate else self.method
        path = self.directory / self.study.search_key / f"{way}_{self.sparsity}_{self.seed}.architecture"
        if not path.exists():
            found = self._find()
            path.parent.mkdir(parents=True, exist_ok=True)
            found.save(path)
        return Architecture.load(path)

    def _find(self) -> Architecture:
        study, seed = self.study, self.seed
        model = study.network(seed)
        settings, data = replace(study.search, seed=seed), _load(study.source)
        common: dict[str, Any] = {"device": self.device, "progress": False}
        if self.method == MAGNITUDE:
            return magnitude_architecture(model, data, self.sparsity, settings, rounds=study.rounds, **common)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "after .* epochs the masks are at a sparsity of")
            return search(model, data, self.sparsity, settings, mask_rate=self.mask_rate, **common)


class Finder:
    """Finds architectures for a study, in so many processes, or in this one.

    Args:
        study: what to search on.
        directory: where architectures are left.
        device: where to train.
        workers: how many searches at a time.
    """

    def __init__(self, study: Study, directory: Path, device: str, workers: int) -> None:
        self.study, self.device, self.workers = study, device, workers
        self.job = Job(study, MAGNITUDE, 0.0, 0, directory, device)
        self.tuning: dict[str, dict[str, float]] = {}

    def find(self) -> dict[Key, Architecture]:
        """Return architectures by method, sparsity and run."""
        study, longest_first = self.study, sorted(self.study.sparsities, reverse=True)
        tried = [
            replace(self.job, method=OURS, sparsity=sparsity, mask_rate=rate)
            for sparsity in longest_first
            for rate in study.mask_rates
        ]
        pruned = [
            replace(self.job, sparsity=sparsity, seed=seed)
            for seed in range(study.searches)
            for sparsity in longest_first
        ]
        with ExitStack() as stack:
            pool = stack.enter_context(_pool(self.workers)) if self.workers > 1 else None
            found = _run([*pruned, *tried], pool)
            rates = self._find_best_rates({job: found[job] for job in tried})
            others = [
                replace(self.job, method=OURS, sparsity=sparsity, seed=seed, mask_rate=rates[sparsity])
                for seed in range(study.searches)
                for sparsity in longest_first
            ]
            found |= _run(others, pool)
        by_seed = {(job.method, job.sparsity, job.seed): found[job] for job in (*pruned, *others)}
        runs = [(sparsity, run) for sparsity in study.sparsities for run in range(study.runs)]
        searched = {(m, s, run): by_seed[m, s, run % study.searches] for m in (OURS, MAGNITUDE) for s, run in runs}
        return searched | {(RANDOM, s, run): random_architecture(study.network(run), s, run) for s, run in runs}

    def _find_best_rates(self, found: Mapping[Job, Architecture]) -> dict[float, float]:
        """Find for each sparsity the rate of the masks whose architecture does best on the source, trained anew."""
        study = self.study
        if len(study.mask_rates) == 1:
            return dict.fromkeys(study.sparsities, study.mask_rates[0])
        settings = replace(study.transfer, epochs=dict(study.epochs)[TUNING_SIZE])
        data = {0: draw_balanced(_load(study.source), TUNING_SIZE, 0)}
        together = train_together(study.network(0), [(each, 0) for each in found.values()], data, settings, self.device)
        for job, accuracy in zip(
            found, measure_accuracies(together, _load(study.source_test), settings.amp), strict=True
        ):
            self.tuning.setdefault(str(job.sparsity), {})[str(job.mask_rate)] = accuracy
        return {float(s): float(max(by_rate, key=lambda rate: by_rate[rate])) for s, by_rate in self.tuning.items()}


def _pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,))


def _run(jobs: Sequence[Job], pool: ProcessPoolExecutor | None) -> dict[Job, Architecture]:
    found: dict[Job, Architecture] = {}
    results = map(Job.run, jobs) if pool is None else pool.map(Job.run, jobs)
    with reporting(True, "architectures", len(jobs)) as report:
        for done, (job, architecture) in enumerate(zip(jobs, results, strict=True), 1):
            found[job] = architecture
            report(done, sparsity=job.sparsity)
    return found


# -- transfers ---------------------------------------------------------------------------------------------------------


def transfer_study(study: Study, directory: Path, device: str, workers: int, note: Notes) -> dict[str, Any]:
    """Return accuracies on the new task by number of images, method and sparsity, one for each run; Table 1; densities.

    Args:
        study: what to do.
        directory: where architectures are left.
        device: where to train.
        workers: how many searches at a time.
        note: is called with the figures so far after each number of images.
    """
    seconds: dict[str, float] = {}
    for task in (study.source_test, study.new, study.test):
        _load(task)  # what is not there is said before anything is searched
    finder = Finder(study, directory, device, workers)
    with time_stage(seconds, "architectures"):
        architectures = finder.find()
    figures: dict[str, Any] = {
        "plan": asdict(study),
        "connections": next(iter(architectures.values())).masks.total,
        "densities": _compute_densities(study, architectures),
        "accuracy on the source by rate of the masks": finder.tuning,
        "accuracy": {},
        "dense": {},
        "reshuffled": {},
        "seconds": seconds,
    }
    for size, _ in study.epochs:
        with time_stage(seconds, f"{size} images"):
            wanted = dict(architectures)
            wanted |= {
                ("dense", 0.0, run): random_architecture(study.network(run), 0.0, run) for run in range(study.runs)
            }
            if size == TABLE_SIZE:
                wanted |= {
                    (f"reshuffled {method}", sparsity, run): reshuffle(architectures[method, sparsity, run], run)
                    for method in RESHUFFLED
                    for sparsity in study.sparsities
                    for run in range(study.runs)
                }
            measured = _measure(study, wanted, size, device)
        figures["accuracy"][str(size)] = {method: _group_by_sparsity(measured, method) for method in METHODS}
        figures["dense"][str(size)] = _group_by_sparsity(measured, "dense")["0.0"]
        if size == TABLE_SIZE:
            figures["reshuffled"] = {
                method: _group_by_sparsity(measured, f"reshuffled {method}") for method in RESHUFFLED
            }
        note(figures)
    return figures


def _measure(study: Study, wanted: Mapping[Key, Architecture], size: int, device: str) -> dict[Key, float]:
    """Return the test accuracy of each after a transfer to so many images."""
    data = {run: draw_balanced(_load(study.new), size, run) for run in range(study.runs)}
    settings = replace(study.transfer, epochs=dict(study.epochs)[size])
    pairs = [(architecture, run) for (_, _, run), architecture in wanted.items()]
    together = train_together(study.network(0), pairs, data, settings, device)
    return dict(zip(wanted, measure_accuracies(together, _load(study.test), settings.amp), strict=True))


def _group_by_sparsity(measured: Mapping[Key, float], method: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for (each, sparsity, _), accuracy in measured.items():
        if each == method:
            found.setdefault(str(sparsity), []).append(accuracy)
    return found


def _compute_densities(study: Study, architectures: Mapping[Key, Architecture]) -> dict[str, Any]:
    """Return the fraction of connections that is kept in each layer, mean over runs."""
    return {
        method: {
            str(sparsity): {
                name: round(
                    sum(architectures[method, sparsity, run].densities[name] for run in range(study.runs)) / study.runs,
                    4,
                )
                for name in architectures[method, sparsity, 0].densities
            }
            for sparsity in study.sparsities
        }
        for method in METHODS
    }
