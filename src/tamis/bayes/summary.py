"""The summary of a run sets the online learner's losses beside those of experts and bounds, with curves.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from tamis.bayes.networks import Chain
from tamis.bayes.regret import Comparator, Regret
from tamis.bayes.run import CompletedRun, least_bound
from tamis.bayes.space import Structure
from tamis.bayes.target import losses
from tamis.bayes.xnor import Xnor
from tamis.bounds import Bound

DRAWS, STEPS = 100, 500
SHOWN, MOST_POINTS = 4, 250  # architectures in a picture, and points of a curve
LEARNER, BOUND, GUESS = "drawn networks", "bound, Theorem 4.1", "uniform guess"
BEST, TRAINED = "best particle so far", "network trained offline"
LEAST_BOUND, PARTICLE, OFFLINE = "least over all laws", "around the best particle", "around the network trained offline"


@dataclass(frozen=True)
class Experts:
    """The experts that a learner is compared with are its best particle and a network trained on all rounds."""

    particle: Comparator
    offline: Comparator


def find_experts(run: CompletedRun, steps: int = STEPS) -> Experts:
    """Find the experts of a run; the one trained offline has the finally likeliest architecture.

    Args:
        run: one that is over.
        steps: of training.
    """
    regret, shares = run.learner.regret, run.learner.posterior.probabilities()
    # One architecture only: training every one of a union offline could cost more than the run itself.
    likeliest = max(shares, key=lambda structure: shares[structure])
    return Experts(regret.best_particle(), regret.offline(likeliest, steps=steps))


def summarise_run(run: CompletedRun, beside: Experts, draws: int = DRAWS) -> dict[str, Any]:
    """Summarise a run: its losses, those of experts, the bounds, and the final posterior.

    Args:
        run: one that is over.
        beside: its experts.
        draws: from the laws around an expert, for the bounds.
    """
    posterior, regret = run.learner.posterior, run.learner.regret
    bounds: dict[str, Any] = {LEAST_BOUND: {"value": least_bound(run.learner), "source": "chee2021xnor, Theorem 4.1"}}
    for name, expert in ((PARTICLE, beside.particle), (OFFLINE, beside.offline)):
        bounds[name] = _describe_bound(regret.theorem_4_1(expert.structure, expert.weights, draws=draws))
    # Printed beside Theorem 4.1, to show what the closed forms of the others give away: they bound from above what it
    # computes.
    own = _compute_own_theorem(regret, beside.offline, draws)
    if own is not None:
        bounds[f"{OFFLINE}, {own.source.split(', ')[1]}"] = _describe_bound(own)
    shares, sparsity = posterior.probabilities(), posterior.sparsity(run.settings.tau)
    return {
        "asked": asdict(run.settings),
        "loss": regret.loss,
        "expected loss": regret.expected_loss,
        "loss of a uniform guess": regret.uniform_loss,
        "loss of the best particle": beside.particle.loss,
        "loss of the network trained offline": beside.offline.loss,
        "architecture trained offline": describe_structure(beside.offline.structure),
        "regret": regret.expected_loss - beside.offline.loss,
        "bounds": bounds,
        "error of the averaged prediction": run.error(),
        "architectures": {
            describe_structure(each): shares[each] for each in sorted(shares, key=lambda each: -shares[each])
        },
        "sparsity": {
            "threshold": sparsity.threshold,
            "nonzero": sparsity.nonzero,
            "weights": sparsity.weights,
            "share": sparsity.share,
            "signs": sparsity.signs,
        },
        "resampled": posterior.resampled,
    }


def _compute_own_theorem(regret: Regret, expert: Comparator, draws: int) -> Bound | None:
    """Compute the theorem about exactly these networks; return None for graphs, which no theorem covers."""
    if isinstance(regret.space, Xnor):
        return regret.theorem_3_2(expert.structure, expert.weights, draws=draws)
    if isinstance(regret.space, Chain):
        return regret.theorem_3_1(expert.structure, expert.weights, draws=draws)
    return None


def _describe_bound(bound: Bound) -> dict[str, Any]:
    return {"value": bound.value, "source": bound.source, "terms": dict(bound.terms)}


def describe_structure(structure: Structure) -> str:
    """Describe a structure in words.

    Example:
        >>> describe_structure(Structure(2, 4, 3)), describe_structure(Structure(1, 0, 0))
        ('2 layers, 4 filters of 3', '1 layer')
    """
    if structure.layers == 1:
        return "1 layer"
    filters = f"{structure.filters} filter{'s' if structure.filters > 1 else ''}"
    return f"{structure.layers} layers, {filters} of {structure.size}"


Points = list[tuple[int, float]]


def compute_curves(run: CompletedRun, beside: Experts) -> dict[str, dict[str, Points]]:
    """Compute the cumulative losses of learner, experts and guess, the bound, and the likeliest architectures."""
    learner, regret = run.learner, run.learner.regret
    number = learner.space.structures.index(beside.offline.structure)
    weights = beside.offline.weights[None].to(learner.device)
    by_round = losses(learner.space, number, weights, regret.seen)[0].tolist()
    best = [(rounds, record.best) for rounds, record in enumerate(run.records) if record.best is not None]
    last = learner.architectures[-1]
    likeliest = sorted(last, key=lambda structure: -last[structure])[:SHOWN]
    return {
        "losses": {
            LEARNER: _make_points(accumulate(regret.losses)),
            BOUND: _make_points(run.bounds),
            BEST: [*best, (regret.rounds, beside.particle.loss)],
            TRAINED: _make_points(accumulate(by_round)),
            GUESS: [(1, regret.uniform_loss / regret.rounds), (regret.rounds, regret.uniform_loss)],
        },
        "architectures": {
            describe_structure(each): _make_points(after[each] for after in learner.architectures) for each in likeliest
        },
    }


def _make_points(values: Iterable[float]) -> Points:
    """Number values from round 1 on, and keep some, evenly spaced, and always the last."""
    found = list(enumerate(values, start=1))
    step = math.ceil(len(found) / MOST_POINTS)
    # Counted from the end, so that the last round is always among them.
    return found[(len(found) - 1) % step :: step]
