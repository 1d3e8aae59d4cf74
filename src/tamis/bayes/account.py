"""The last account of a run of the online learner: losses beside those of experts and beside bounds, and curves.

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
from tamis.bayes.run import Followed, least_bound
from tamis.bayes.space import Structure
from tamis.bayes.target import losses
from tamis.bayes.xnor import Xnor
from tamis.bounds import Bound

DRAWS, STEPS = 100, 500
SHOWN, MOST_POINTS = 4, 250  # architectures in a picture, and points of a curve
LEARNER, BOUND, GUESS = "drawn networks", "bound, Theorem 4.1", "uniform guess"
BEST, TRAINED = "best particle so far", "network trained offline"
LEAST, PARTICLE, OFFLINE = "least over all laws", "around the best particle", "around the network trained offline"


@dataclass(frozen=True)
class Experts:
    """Networks that a learner is compared with: the best of its particles, and one trained on all rounds."""

    particle: Comparator
    offline: Comparator


def experts(run: Followed, steps: int = STEPS) -> Experts:
    """Those of a run; the second is of the architecture that is the most probable in the end.

    Args:
        run: one that is over.
        steps: of training.
    """
    regret, shares = run.learner.regret, run.learner.posterior.probabilities()
    likeliest = max(shares, key=lambda structure: shares[structure])
    return Experts(regret.best_particle(), regret.offline(likeliest, steps=steps))


def account(run: Followed, beside: Experts, draws: int = DRAWS) -> dict[str, Any]:
    """What was lost, what experts would have lost, what the theorems say of it, and what the learner is left with.

    Args:
        run: one that is over.
        beside: its experts.
        draws: from the laws around an expert, for the bounds.
    """
    posterior, regret = run.learner.posterior, run.learner.regret
    bounds: dict[str, Any] = {LEAST: {"value": least_bound(run.learner), "source": "chee2021xnor, Theorem 4.1"}}
    for name, expert in ((PARTICLE, beside.particle), (OFFLINE, beside.offline)):
        bounds[name] = _told(regret.theorem_4_1(expert.structure, expert.weights, draws=draws))
    own = _own_theorem(regret, beside.offline, draws)
    if own is not None:
        bounds[f"{OFFLINE}, {own.source.split(', ')[1]}"] = _told(own)
    shares, sparsity = posterior.probabilities(), posterior.sparsity(run.asked.tau)
    return {
        "asked": asdict(run.asked),
        "loss": regret.loss,
        "expected loss": regret.expected_loss,
        "loss of a uniform guess": regret.uniform_loss,
        "loss of the best particle": beside.particle.loss,
        "loss of the network trained offline": beside.offline.loss,
        "architecture trained offline": called(beside.offline.structure),
        "regret": regret.expected_loss - beside.offline.loss,
        "bounds": bounds,
        "error of the averaged prediction": run.error(),
        "architectures": {called(each): shares[each] for each in sorted(shares, key=lambda each: -shares[each])},
        "sparsity": {
            "threshold": sparsity.threshold,
            "nonzero": sparsity.nonzero,
            "weights": sparsity.weights,
            "share": sparsity.share,
            "signs": sparsity.signs,
        },
        "resampled": posterior.resampled,
    }


def _own_theorem(regret: Regret, expert: Comparator, draws: int) -> Bound | None:
    """What the text says of just these networks; it says nothing of graphs."""
    if isinstance(regret.space, Xnor):
        return regret.theorem_3_2(expert.structure, expert.weights, draws=draws)
    if isinstance(regret.space, Chain):
        return regret.theorem_3_1(expert.structure, expert.weights, draws=draws)
    return None


def _told(bound: Bound) -> dict[str, Any]:
    return {"value": bound.value, "source": bound.source, "terms": dict(bound.terms)}


def called(structure: Structure) -> str:
    """A structure in words.

    Example:
        >>> called(Structure(2, 4, 3)), called(Structure(1, 0, 0))
        ('2 layers, 4 filters of 3', '1 layer')
    """
    if structure.layers == 1:
        return "1 layer"
    filters = f"{structure.filters} filter{'s' if structure.filters > 1 else ''}"
    return f"{structure.layers} layers, {filters} of {structure.size}"


Points = list[tuple[int, float]]


def curves(run: Followed, beside: Experts) -> dict[str, dict[str, Points]]:
    """Losses so far, of the learner, of experts and of a guess, with the bound; and the likeliest architectures."""
    learner, regret = run.learner, run.learner.regret
    number = learner.space.structures.index(beside.offline.structure)
    weights = beside.offline.weights[None].to(learner.device)
    by_round = losses(learner.space, number, weights, regret.seen)[0].tolist()
    best = [(rounds, note.best) for rounds, note in enumerate(run.notes) if note.best is not None]
    last = learner.architectures[-1]
    likeliest = sorted(last, key=lambda structure: -last[structure])[:SHOWN]
    return {
        "losses": {
            LEARNER: _points(accumulate(regret.losses)),
            BOUND: _points(run.bounds),
            BEST: [*best, (regret.rounds, beside.particle.loss)],
            TRAINED: _points(accumulate(by_round)),
            GUESS: [(1, regret.uniform_loss / regret.rounds), (regret.rounds, regret.uniform_loss)],
        },
        "architectures": {called(each): _points(after[each] for after in learner.architectures) for each in likeliest},
    }


def _points(values: Iterable[float]) -> Points:
    """After round 1, 2, …: some of them, evenly, and the last."""
    found = list(enumerate(values, start=1))
    step = math.ceil(len(found) / MOST_POINTS)
    return found[(len(found) - 1) % step :: step]
