"""A criterion is what `tamis.prune(by=…)` takes; those that ship are listed here by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.pruning.magnitude import magnitude_scores
from tamis.pruning.phi import phi_scores
from tamis.pruning.random import random_scores
from tamis.pruning.selection import Sweep, Visitor


class Criterion(Protocol):
    """A criterion is a function that scores the weights of a network; those with the smallest scores are pruned.

    It returns a *sweep*: a function that shows the scores of every parameter named, one after the other and in any
    order, to the function that it is called with. Scores are floating-point tensors of the parameters' shapes, without
    NaN. There are two sweeps, rarely three, and they must show the same scores.

    A criterion may have a `name`, which recipes and files then call it by; otherwise it goes by its `__name__`.
    """

    def __call__(self, net: Network, names: Sequence[str], seed: int, /) -> Sweep: ...


CRITERIA: dict[str, Criterion] = {
    "phi": phi_scores,
    "magnitude": magnitude_scores,
    "random": random_scores,
}
OBS = "obs"  # optimal brain surgeon, which is no criterion of weights alone: it needs data, and refits what is left


def criterion_of(by: str | Criterion) -> Criterion:
    """Return the criterion of a name, or the object itself where it is one already.

    With "obs" the amount is shared out among layers as magnitudes would.
    """
    if callable(by):
        return _check_scores_of(by)
    if by not in (*CRITERIA, OBS):
        raise InvalidInput(f"by={by!r} is not a criterion; these are: {', '.join(CRITERIA)}, {OBS}")
    return CRITERIA["magnitude" if by == OBS else by]


def name_criterion(by: str | Criterion) -> str:
    """Return what recipes and files call a criterion."""
    if isinstance(by, str):
        return by
    return str(getattr(by, "name", None) or getattr(by, "__name__", None) or type(by).__name__)


def _check_scores_of(criterion: Criterion) -> Criterion:
    """Return a criterion of the user that refuses scores which pruning cannot compare."""
    called = name_criterion(criterion)

    def score_checked(net: Network, names: Sequence[str], seed: int) -> Sweep:
        own = criterion(net, names, seed)

        def sweep(visit: Visitor) -> None:
            # Anew for each sweep: a second one that leaves a parameter out would make the threshold of the first
            # meaningless.
            shown: set[str] = set()

            def check(name: str, scores: Tensor) -> None:
                if name not in names:
                    raise InvalidInput(f"by={called!r} scored '{name}', which is not to be pruned")
                if not scores.is_floating_point() or scores.shape != net.params[name].shape:
                    got, wanted = tuple(scores.shape), tuple(net.params[name].shape)
                    raise InvalidInput(
                        f"by={called!r} must score '{name}' with floats of shape {wanted}, got {scores.dtype} of {got}"
                    )
                if scores.isnan().any():
                    raise InvalidInput(f"by={called!r} scored '{name}' with NaN")
                shown.add(name)
                visit(name, scores)

            own(check)
            if missing := [name for name in names if name not in shown]:
                raise InvalidInput(f"by={called!r} did not score '{missing[0]}'")

        return sweep

    return score_checked
