"""The sparsity of a posterior says how many weights its networks have, and how many of them count.

A heavy-tailed law has no weight that is exactly 0: ‖w‖₀ is counted above a threshold.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tamis.bayes.space import Structure


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
    # Structures without a particle are not in it, rather than at 0, which would read as a network without weights.
    by_structure: dict[Structure, float]

    @property
    def share(self) -> float:
        """Return the share of the real weights and scales that counts."""
        # A ratio of means, and not the mean of each network's ratio: large networks count for more. A space may have
        # signs only, and then there is nothing to be 0 or not.
        return self.nonzero / self.weights if self.weights else 0.0

    @property
    def sign_cost(self) -> float:
        """Return p_bin log 2, the cost of signs in the divergence from the prior (Theorem 3.2)."""
        # ρ fixes each sign to the expert's, and the prior gives it ½: KL = log 2 for each (ERRATA 5).
        return self.signs * math.log(2)
