"""The sparsity of a posterior says how many weights its networks have, and how many of them count.

A heavy-tailed law has no weight that is exactly 0: ‖w‖₀ is counted above a threshold.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tamis.bayes.prior import SIGN
from tamis.bayes.space import Structure
from tamis.errors import InvalidInput

if TYPE_CHECKING:
    from tamis.bayes.posterior import Posterior


@dataclass(frozen=True)
class Sparsity:
    """A `Sparsity` holds the numbers of weights of a posterior's networks, as means.

    Attributes:
        threshold: above which a weight counts.
        nonzero: E ‖w‖₀, of real weights and scales.
        weights: the mean number of real weights and scales.
        signs: the mean number of signs, p_bin.
        by_structure: ‖w‖₀, on average over the networks of each structure that has any.
    """

    threshold: float
    nonzero: float
    weights: float
    signs: float
    by_structure: dict[Structure, float]

    @property
    def share(self) -> float:
        """Return the share of the real weights and scales that counts."""
        return self.nonzero / self.weights if self.weights else 0.0

    @property
    def sign_cost(self) -> float:
        """Return p_bin log 2, the cost of signs in the divergence from the prior (Theorem 3.2)."""
        return self.signs * math.log(2)


def sparsity(posterior: Posterior, threshold: float) -> Sparsity:
    """Count the weights of a posterior's networks that are above a threshold.

    Args:
        posterior: the particles.
        threshold: ≥ 0, for |w|.

    Example:
        >>> sparsity(learner.posterior, threshold=0.01).share
        0.31

    Reference: chee2021xnor.
    """
    if not 0 <= threshold < math.inf:
        raise InvalidInput(f"threshold must be a number ≥ 0, got threshold = {threshold!r}")
    shares = posterior.log_weights.exp()
    nonzero = weights = signs = 0.0
    by_structure = {}
    for number, places in posterior.population.groups():
        structure = posterior.space.structures[number]
        kinds = posterior.space.kinds(structure)
        real = (kinds != SIGN).to(shares.device)
        above = ((posterior.weights(number, places).abs() > threshold) & real).sum(1).double()
        mass = float(shares[places].sum())
        nonzero += float(shares[places] @ above)
        weights += mass * int(real.sum())
        signs += mass * int((~real).sum())
        by_structure[structure] = float(shares[places] @ above) / mass if mass else float(above.mean())
    return Sparsity(threshold, nonzero, weights, signs, by_structure)
