"""The sparsity prior of Chee and Loustau comes with its shift to an expert and the divergence between the two.

    real weights      c (1 + |w|/τ)^−4 on [−R, R],    c = (3/2τ) / (1 − (1 + R/τ)^−3)      (Theorem 3.1)
    positive scales   c' (1 + w/τ)^−4 on [0, R],      c' = 2c                              (Theorem 3.2)
    signs             ½ on −1 and ½ on +1

Samplers work on *latent* coordinates: a standard normal number u for each real weight and each scale, of which the
weight is a rising function w(u) that carries the normal law to the prior. So the support needs no care, and a step that
keeps the normal law keeps the prior, however heavy its tails.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tamis.bounds import NODES, WEIGHTS, as_expert_weights, check_positive, kl_exact
from tamis.errors import InvalidInput

REAL, SCALE, SIGN = 0, 1, 2
FAR = 20.0  # in log(1 + |w|/τ): beyond it lies e^−60 of the prior


@dataclass(frozen=True)
class HeavyTailed:
    """The heavy-tailed law of one weight has a density ∝ (1 + |w|/τ)^−4 on [−R, R], or on [0, R].

    Args:
        tau: τ, the scale; the standard deviation where R is infinite and the law is not positive.
        R: where it is truncated; infinite for not at all.
        positive: whether it lives on [0, R].

    Example:
        >>> law = HeavyTailed(tau=0.1, R=2.0)
        >>> law.sample((3,), torch.Generator().manual_seed(0)).shape
        torch.Size([3])

    Reference: chee2021xnor.
    """

    tau: float
    R: float = math.inf
    positive: bool = False

    def __post_init__(self) -> None:
        check_positive("tau", self.tau)
        if not self.R > 0:
            raise InvalidInput(f"R must be above 0, got R = {self.R!r}")

    @property
    def mass(self) -> float:
        """Return 1 − (1 + R/τ)^−3, the mass of the untruncated law within the support."""
        return -math.expm1(-3 * math.log1p(self.R / self.tau)) if math.isfinite(self.R) else 1.0

    def log_density(self, w: Tensor) -> Tensor:
        """Compute the logarithm of the density at w, −∞ outside the support."""
        # ∫₀^∞ (1 + w/τ)^−4 dw = τ/3, and twice that over both signs; `mass` accounts for the truncation at R.
        log_c = math.log((3 if self.positive else 1.5) / (self.tau * self.mass))
        inside = (w.abs() <= self.R) & (w >= 0) if self.positive else w.abs() <= self.R
        return torch.where(inside, log_c - 4 * torch.log1p(w.abs() / self.tau), -math.inf)

    def cdf(self, w: Tensor) -> Tensor:
        """Compute the probability that a weight is at most w."""
        # expm1 and log1p throughout: near 0 the direct formula would lose the digits that small weights have.
        size = w.clamp(min=0 if self.positive else -self.R, max=self.R).abs()
        share = -torch.expm1(-3 * torch.log1p(size / self.tau)) / self.mass
        return share if self.positive else (1 + w.sign() * share) / 2

    def sample(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw independent float64 weights, exactly: |w| = τ((1 − mass · v)^(−1/3) − 1) for v uniform on [0, 1)."""
        share = torch.rand(shape, generator=generator, dtype=torch.float64)
        # v < 1 strictly, so that no weight is infinite even where R is, and mass = 1.
        size = self.tau * torch.expm1(-torch.log1p(-self.mass * share) / 3)
        return size if self.positive else size * draw_signs(shape, generator)

    def from_latent(self, u: Tensor) -> Tensor:
        """Compute w(u), the weight with cdf(w) = Φ(u), which is smooth in u and exact in the tails as well."""
        # Near the middle Φ(u) keeps its digits, in the tail 1 − Φ(u) does: each side takes the form that does not
        # subtract nearly equal numbers. Both forms are computed and one is chosen, as vmap asks.
        if self.positive:
            tail = torch.special.erfc(u / math.sqrt(2)) / 2
            near = torch.log1p(-self.mass * torch.special.ndtr(u))
            log_rest = torch.where(u < 0, near, torch.log((1 - self.mass) + self.mass * tail))
            return self.tau * torch.expm1(-log_rest / 3)
        distance = u.abs() / math.sqrt(2)
        # The clamp keeps log1p of the form that is not chosen finite: its gradient would turn the chosen one to NaN.
        near = torch.log1p(-self.mass * torch.special.erf(distance.clamp(max=1)))
        far = torch.log((1 - self.mass) + self.mass * torch.special.erfc(distance))
        return u.sign() * self.tau * torch.expm1(-torch.where(distance < 1, near, far) / 3)


@dataclass(frozen=True)
class Shifted:
    """A shifted law is a heavy-tailed law moved to w* and truncated to the original support, weight by weight.

    Printed: not truncated, which leaves the support and has an infinite divergence (ERRATA 4).

    Args:
        centre: w*, (p,) float64.
        law: the prior of each weight.

    Reference: chee2021xnor.
    """

    centre: Tensor
    law: HeavyTailed

    def __post_init__(self) -> None:
        as_expert_weights(self.centre.numpy(), self.law.tau, self.law.R)
        if self.law.positive and bool((self.centre < 0).any()):
            raise InvalidInput(f"scales must not be negative, got {float(self.centre.min()):g}")

    def _compute_end_masses(self) -> tuple[Tensor, Tensor]:
        """Compute how much of one half of the law lies between w* and each end of the support."""
        below = self.centre if self.law.positive else self.centre + self.law.R
        above = self.law.R - self.centre
        return self._compute_half_mass(below), self._compute_half_mass(above)

    def _compute_half_mass(self, distance: Tensor) -> Tensor:
        """Compute 1 − (1 + d/τ)^−3, the mass of a half within a distance."""
        return -torch.expm1(-3 * torch.log1p(distance / self.law.tau))

    def log_density(self, w: Tensor) -> Tensor:
        """Compute the log-density of each weight, −∞ outside the support; w is (…, p)."""
        below, above = self._compute_end_masses()
        # c'' of ERRATA 4: each side has its own part of the mass left, and the whole must integrate to 1 over the
        # support.
        log_c = torch.log(3 / (self.law.tau * (below + above)))
        shifted = log_c - 4 * torch.log1p((w - self.centre).abs() / self.law.tau)
        # The prior's own support, to the letter: outside of it KL(ρ, π) would be infinite.
        return torch.where(self.law.log_density(w) > -math.inf, shifted, -math.inf)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw weights (count, p) independently and exactly, by the inverse of the distribution function."""
        below, above = self._compute_end_masses()
        # One uniform number chooses the side, by its mass, and then the distance within it.
        share = torch.rand((count, len(self.centre)), generator=generator, dtype=torch.float64) * (below + above)
        side = torch.where(share < below, share, share - below)
        size = self.law.tau * torch.expm1(-torch.log1p(-side) / 3)
        return torch.where(share < below, self.centre - size, self.centre + size)

    def kl(self) -> float:
        """Compute the divergence from the prior, Σ_u KL(ρ_u, π), by an integral for each weight."""
        # A network without scales, or without reals, has an empty part here, and the integral takes no empty array.
        if not len(self.centre):
            return 0.0
        if not self.law.positive:
            return kl_exact(self.centre.numpy(), self.law.tau, self.law.R)
        return float(_integrate_positive_kl(self.centre.numpy() / self.law.tau, self.law.R / self.law.tau).sum())


def _integrate_positive_kl(a: np.ndarray, r: float) -> np.ndarray:
    """Compute the divergence for scales a on [0, r], in units of τ.

    log(c''/c') + 4 E_ρ (log(1 + w) − log(1 + |w − a|)), where v = log(1 + |w − a|) has the density ∝ e^−3v either side.
    """
    below, above = 1 - (1 + a) ** -3.0, 1 - (1 + r - a) ** -3.0

    def side(sign: float, end: np.ndarray) -> np.ndarray:
        # Gauss–Legendre on [0, log(1 + end)]: in v the density is smooth, where in w it has a cusp and a long tail.
        half = np.minimum(np.log1p(end), FAR)[:, None] / 2
        v = half * (1 + NODES)
        ratio = np.log1p(np.maximum(a[:, None] + sign * np.expm1(v), 0)) - v
        return (ratio * 3 * np.exp(-3 * v) * WEIGHTS).sum(1) * half[:, 0]

    whole = 1 - (1 + r) ** -3.0
    return np.log(whole / (below + above)) + 4 * (side(-1.0, a) + side(1.0, r - a)) / (below + above)


def draw_signs(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw independent −1 and +1, each with probability ½ (Rademacher), in float64."""
    return torch.randint(0, 2, shape, generator=generator).double() * 2 - 1


@dataclass(frozen=True)
class Prior:
    """The prior covers all weights of an architecture, each by its kind: `REAL`, `SCALE` or `SIGN`.

    Args:
        tau: τ, the scale of the heavy-tailed laws.
        R: where they are truncated; infinite for not at all.

    Example:
        >>> prior = Prior(tau=0.1, R=2.0)
        >>> kinds = torch.tensor([REAL, SCALE, SIGN])
        >>> prior.weights(prior.sample_latent(kinds, 5, torch.Generator().manual_seed(0)), kinds).shape
        torch.Size([5, 3])

    Reference: chee2021xnor.
    """

    tau: float
    R: float = 10.0

    def __post_init__(self) -> None:
        HeavyTailed(self.tau, self.R)

    @property
    def real(self) -> HeavyTailed:
        """Return the law of a real weight."""
        return HeavyTailed(self.tau, self.R)

    @property
    def scale(self) -> HeavyTailed:
        """Return the law of a positive scale."""
        return HeavyTailed(self.tau, self.R, positive=True)

    def sample_latent(self, kinds: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Draw latent coordinates (count, p), which are normal numbers and signs."""
        # All are drawn for every kind, so that the draws of one weight do not depend on the kinds of the others.
        normal = torch.randn((count, len(kinds)), generator=generator, dtype=torch.float64)
        return torch.where(kinds.cpu() == SIGN, draw_signs((count, len(kinds)), generator), normal)

    def weights(self, latent: Tensor, kinds: Tensor) -> Tensor:
        """Compute the weights that latent coordinates (…, p) stand for."""
        # Both laws are computed for every coordinate and one is chosen: under vmap there is no choosing by value.
        weights = torch.where(kinds == SIGN, latent, self.real.from_latent(latent))
        # Most spaces have no scales, and need not pay for a second law.
        if bool((kinds == SCALE).any()):
            weights = torch.where(kinds == SCALE, self.scale.from_latent(latent), weights)
        return weights

    def log_density(self, weights: Tensor, kinds: Tensor) -> Tensor:
        """Compute the log-density of weights (…, p), summed over the last axis; a sign counts −log 2."""
        # The value of the form that is not chosen may be −∞, for a negative real as a scale: `where` drops it.
        each = torch.where(kinds == SCALE, self.scale.log_density(weights), self.real.log_density(weights))
        return torch.where(kinds == SIGN, -math.log(2), each).sum(-1)


@dataclass(frozen=True)
class ExpertDistribution:
    """The distribution ρ of the theorems shifts reals and scales to an expert, and fixes signs to the expert's.

    Args:
        prior: π.
        kinds: of each weight, (p,).
        expert: w*, (p,).
        architecture: the prior probability of the expert's architecture, α_k β_i γ_j.

    Reference: chee2021xnor.
    """

    prior: Prior
    kinds: Tensor
    expert: Tensor
    architecture: float = 1.0

    def __post_init__(self) -> None:
        signs = self.expert[self.kinds == SIGN]
        if not bool((signs.abs() == 1).all()):
            raise InvalidInput("the weights of an expert that are signs must be −1 or +1")
        if not 0 < self.architecture <= 1:
            raise InvalidInput(f"architecture must be a probability above 0, got {self.architecture!r}")

    def _make_parts(self) -> tuple[Shifted, Shifted]:
        expert = self.expert.double()
        return (
            Shifted(expert[self.kinds == REAL], self.prior.real),
            Shifted(expert[self.kinds == SCALE], self.prior.scale),
        )

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw all weights (count, p) independently."""
        real, scale = self._make_parts()
        # Signs stay as they are here: under ρ they are the expert's with probability 1.
        draws = self.expert.double().repeat(count, 1)
        draws[:, self.kinds == REAL] = real.sample(count, generator)
        draws[:, self.kinds == SCALE] = scale.sample(count, generator)
        return draws

    def kl(self) -> float:
        """Compute KL(ρ, π) = Σ over reals and scales + p_bin log 2 − log(architecture), exact (ERRATA 4, 5)."""
        real, scale = self._make_parts()
        signs = int((self.kinds == SIGN).sum())
        return real.kl() + scale.kl() + signs * math.log(2) - math.log(self.architecture)
