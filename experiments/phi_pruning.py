"""Φ-pruning against magnitude pruning: Tables 3.1 and 3.2, Figures 3.7 and 3.8 of the thesis, on CIFAR-10 ResNets.

    python -m experiments phi-pruning                            minutes on two cores: few images, few epochs
    python -m experiments phi-pruning --full --device cuda --workers 8 --seeds 3

A dense network is trained, pruned once by each method at each level, rewound to an early epoch and retrained; for
magnitude pruning also after a random rescaling of the dense network, which changes its weights but not its function.
Trainings lie in --directory and are not repeated: a run that was broken off goes on, one that is finished is read.

Deviations from the thesis:
    1. CIFAR-10 and its ResNets instead of ImageNet and ResNet-18, in batches of 256 instead of 1024, with random crops
       and flips; on a GPU in bfloat16 where that is safe.
    2. No images are set aside for validation, and the last epoch counts, not the one with the best accuracy on them.
    3. Every hidden channel is rescaled, not only those inside blocks.
    4. After a rescaling only the mask is other: weights rewind to those of the one dense training.

Reference: gonon2024thesis.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from experiments.command_line import Parser
from experiments.pictures import draw
from experiments.record import store
from tamis.artifact import Compressed, Masks
from tamis.graph import Network, rescale, trace
from tamis.progress import reporting
from tamis.pruning import prune
from tamis.pruning.rank_correlation import overlap
from tamis.reports.figures import magnitude_against_cost, training_curves
from tamis.training import Settings, Trained, evaluate, load_data, load_epoch_weights, train
from tamis.training.models import MODELS, example_input

LEVELS = (0.1, 0.2, 0.4, 0.6, 0.8)
METHODS: dict[str, dict[str, Any]] = {
    "MP": {"by": "magnitude", "scope": "layer"},
    "Φ-LP": {"by": "phi", "scope": "layer"},
    "Φ-GP": {"by": "phi", "scope": "global"},
}
RESCALED = "MP + rescale"
VARIANTS = (*METHODS, RESCALED)  # Φ-pruning after a rescaling is not trained again: its masks are the same
CIFAR_RESNETS = ("resnet20", "resnet32", "resnet44", "resnet56")
Figures = dict[str, dict[str, float]]
THESIS_OVERLAP = {"Φ-GP": (70, 74, 76, 80, 86), "Φ-LP": (87, 82, 90, 94, 96)}
THESIS_DENSE = 67.7
THESIS_ACCURACY = {
    "MP": (69.0, 69.0, 68.8, 68.2, 66.5),
    RESCALED: (68.8, 68.7, 63.1, 57.5, 15.8),
    "Φ-LP": (68.8, 68.9, 68.7, 68.1, 66.1),
    "Φ-GP": (68.6, 68.8, 68.6, 67.9, 66.0),
}


@dataclass(frozen=True)
class Plan:
    """What to train, on what, and at which levels to prune."""

    settings: Settings
    rewind: int
    levels: tuple[float, ...]
    data: str = "cifar10:train"
    test: str = "cifar10:test"
    model: str = "resnet20"


FULL = Plan(
    Settings(epochs=90, batch=256, schedule="multistep", milestones=(30, 60, 80), augment=True, amp=True),
    rewind=5,
    levels=LEVELS,
)
SHORT = Plan(
    Settings(epochs=6, batch=128, schedule="multistep", milestones=(4,), augment=True),
    rewind=1,
    levels=(0.4, 0.8),
    data="cifar10:train[:2500]",
    test="cifar10:test[:1000]",
)


@dataclass(frozen=True)
class Job:
    """One training: the dense network (no method), or a pruned, rewound and retrained one."""

    plan: Plan
    directory: Path
    device: str
    method: str = ""
    level: float = 0.0

    def run(self) -> Trained:
        """Train, or go on, or read what is finished."""
        if not self.method:
            return self._train(self.directory / "dense", keep=(self.plan.rewind,))
        dense = trace_dense_network(replace(self, method="", level=0.0))
        masks = prune_network(dense, self.method, self.level, self.plan).masks
        return self._train(self.directory / f"{self.method}_{self.level}", masks)

    def _train(self, place: Path, masks: Masks | None = None, keep: Sequence[int] = ()) -> Trained:
        plan = self.plan
        torch.manual_seed(plan.settings.seed)
        model = MODELS[plan.model]()
        if masks is not None:
            model.load_state_dict(load_epoch_weights(self.directory / "dense", plan.rewind))
        return train(
            model,
            load_data(plan.data),
            plan.settings,
            test=load_data(plan.test),
            masks=masks,
            directory=place,
            first_epoch=0 if masks is None else plan.rewind,
            keep=keep,
            device=self.device,
            progress=False,
        )


@lru_cache(maxsize=1)  # the jobs of one seed come one after the other, and all begin with its dense network
def trace_dense_network(job: Job) -> Network:
    """Return the dense network that a job trains, as a graph."""
    return trace(job.run().model.cpu(), example_input(job.plan.model))


def prune_network(dense: Network, method: str, level: float, plan: Plan) -> Compressed:
    """Return the dense network pruned as the thesis does, the final layer at half the rate."""
    if method == RESCALED:
        return prune(rescale(dense, plan.settings.seed), level, halve_final=True, **METHODS["MP"])
    return prune(dense, level, halve_final=True, **METHODS[method])


def is_invariant(net: Network, plan: Plan) -> bool:
    """Return whether Φ-pruning prunes the same weights before and after a rescaling, at all levels."""
    rescaled = rescale(net, plan.settings.seed)
    pairs = [
        (prune_network(net, method, level, plan).masks, prune_network(rescaled, method, level, plan).masks)
        for method in ("Φ-LP", "Φ-GP")
        for level in LEVELS
    ]
    return all(torch.equal(before[name], after[name]) for before, after in pairs for name in before)


def run(plan: Plan, directory: Path, device: str, workers: int, seeds: int) -> tuple[list[dict[str, Any]], Network]:
    """Return the figures of every seed, after all trainings, `workers` at a time; and the last seed's dense network."""
    dense = [
        Job(replace(plan, settings=replace(plan.settings, seed=seed)), directory / f"seed_{seed}", device)
        for seed in range(seeds)
    ]
    pairs = [(method, level) for method in VARIANTS for level in plan.levels]
    sparse = [replace(job, method=method, level=level) for job in dense for method, level in pairs]
    results = _run_jobs("dense networks", dense, workers) | _run_jobs("pruned networks", sparse, workers)
    nets = [trace_dense_network(job) for job in dense]
    return [_collect_figures(job, net, results) for job, net in zip(dense, nets, strict=True)], nets[-1]


def _run_jobs(task: str, jobs: Sequence[Job], workers: int) -> dict[Job, Trained]:
    """Run jobs in so many processes, or in this one."""
    finished: dict[Job, Trained] = {}
    with ExitStack() as stack:
        pool = ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) if workers > 1 else None
        results = map(Job.run, jobs) if pool is None else stack.enter_context(pool).map(Job.run, jobs)
        report = stack.enter_context(reporting(True, task, len(jobs)))
        for job, trained in zip(jobs, results, strict=True):
            finished[job] = trained
            report(len(finished), level=job.level, accuracy=_find_accuracy(trained))
    return finished


def _collect_figures(dense: Job, net: Network, results: Mapping[Job, Trained]) -> dict[str, Any]:
    """Return what one dense network and those pruned from it gave."""
    plan, test = dense.plan, load_data(dense.plan.test)
    own = {(job.method, job.level): trained for job, trained in results.items() if job.plan == plan}

    def by_method(methods: Sequence[str], levels: Sequence[float], figure: Callable[[str, float], float]) -> Figures:
        return {method: {str(level): figure(method, level) for level in levels} for method in methods}

    def at_once(method: str, level: float) -> float:
        model = MODELS[plan.model]()
        model.load_state_dict(prune_network(net, method, level, plan).state_dict())
        return evaluate(model, test, device=dense.device)

    def overlap_with_magnitude(method: str, level: float) -> float:
        return overlap(prune_network(net, "MP", level, plan).masks, prune_network(net, method, level, plan).masks)

    return {
        "dense": _find_accuracy(results[dense]),
        "retrained": by_method(VARIANTS, plan.levels, lambda *pair: _find_accuracy(own[pair])),
        "not retrained": by_method(VARIANTS, plan.levels, at_once),
        "overlap with MP": by_method(("Φ-GP", "Φ-LP", RESCALED), LEVELS, overlap_with_magnitude),
        "same Φ-masks after rescaling": is_invariant(net, plan),
        "curves": {
            f"{method} {level:.0%}" if method else "dense": _list_curve(own[method, level]) for method, level in own
        },
    }


def _find_accuracy(trained: Trained) -> float:
    accuracy = trained.history[-1].test_accuracy
    assert accuracy is not None
    return accuracy


def _list_curve(trained: Trained) -> list[Any]:
    return [(epoch.epoch, epoch.test_accuracy) for epoch in trained.history]


# -- what people see ---------------------------------------------------------------------------------------------------


def show(studies: Sequence[Mapping[str, Any]], plan: Plan) -> None:
    """Print the thesis' tables with ours beside them."""
    print(f"\nIn parentheses: the thesis, ResNet-18 on ImageNet. Ours: {plan.model} on {plan.data}.")
    print("\nTable 3.1: overlap with magnitude pruning, %")
    ours = {name: _collect_over(studies, "overlap with MP", name) for name in (*THESIS_OVERLAP, RESCALED)}
    _print_table(LEVELS, ours, THESIS_OVERLAP)
    dense = _spread([each["dense"] for each in studies])
    print(f"\nTable 3.2: top-1 accuracy after pruning, rewinding and retraining, %; dense: {dense} ({THESIS_DENSE})")
    _print_table(plan.levels, {name: _collect_over(studies, "retrained", name) for name in VARIANTS}, THESIS_ACCURACY)
    print("\nTop-1 accuracy after pruning alone, %")
    _print_table(plan.levels, {name: _collect_over(studies, "not retrained", name) for name in VARIANTS}, {})
    same = all(each["same Φ-masks after rescaling"] for each in studies)
    print(f"\nΦ-pruning chose {'the same' if same else 'OTHER'} weights after a random rescaling, at all levels.")


def _print_table(
    levels: Sequence[float], ours: Mapping[str, Mapping[str, list[float]]], thesis: Mapping[str, Sequence[float]]
) -> None:
    print(f"{'':14}" + "".join(f"{level:>20.0%}" for level in levels))
    for name, values in ours.items():
        theirs = dict(zip(LEVELS, thesis.get(name, ()), strict=False))
        cells = [_spread(values[str(level)]) + (f" ({theirs[level]:.1f})" if theirs else "") for level in levels]
        print(f"{name:14}" + "".join(f"{cell:>20}" for cell in cells))


def _collect_over(studies: Sequence[Mapping[str, Any]], figure: str, method: str) -> dict[str, list[float]]:
    return {level: [each[figure][method][level] for each in studies] for level in studies[0][figure][method]}


def _spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation over seeds, in per cent."""
    mean = f"{100 * statistics.mean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {100 * statistics.stdev(values):.1f}"


def draw_figures(net: Network, curves: Mapping[str, Sequence[tuple[int, float]]], plan: Plan, target: Path) -> None:
    """Draw figures 3.7 (at the highest level) and 3.8, as TARGET_curves.svg and TARGET_scatter.svg."""
    networks = {"as trained": net, "randomly rescaled": rescale(net, plan.settings.seed)}
    draw(lambda path: magnitude_against_cost(networks, path), Path(f"{target}_scatter.svg"))
    highest = f" {max(plan.levels):.0%}"
    chosen = {name: curve for name, curve in curves.items() if name.endswith(("dense", highest))}
    dashed = (RESCALED + highest,)
    draw(lambda path: training_curves(chosen, path, dashed), Path(f"{target}_curves.svg"))


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser("phi-pruning", __doc__, "all levels, 90 epochs, all of CIFAR-10: for a GPU")
    parser.add_argument("--model", default="resnet20", choices=[name for name in MODELS if name in CIFAR_RESNETS])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=1, help="trainings at a time")
    parser.add_argument("--seeds", type=int, default=1, help="how many dense networks to begin from")
    parser.add_argument("--directory", type=Path, default=Path("out/phi_pruning"), help="of the trainings")
    arguments = parser.parse_args(options)
    if min(arguments.workers, arguments.seeds) < 1:
        parser.error("--workers and --seeds must be at least 1")
    plan = replace(FULL if arguments.full else SHORT, model=arguments.model)
    directory = arguments.directory / ("full" if arguments.full else "short") / arguments.model
    studies, net = run(plan, directory, arguments.device, arguments.workers, arguments.seeds)
    show(studies, plan)
    if arguments.results:
        target = arguments.results / ("phi_pruning" if arguments.full else "phi_pruning_short")
        tables = [{name: found for name, found in each.items() if name != "curves"} for each in studies]
        store(f"{target}.json", {"plan": asdict(plan), "studies": tables})
        draw_figures(net, studies[-1]["curves"], plan, target)
