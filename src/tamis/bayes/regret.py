"""Regret compares what an online learner lost with what an expert would have lost, and bounds the difference.

Expectations over ρ, the prior shifted to an expert (`tamis.bayes.prior.ExpertDistribution`), are means over draws from
it; the standard error of what they give is among the terms of each bound.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tamis.bayes.networks import Chain
from tamis.bayes.offline_training import train_offline
from tamis.bayes.posterior import Posterior
from tamis.bayes.prior import REAL, SCALE, SIGN, ExpertDistribution, Prior
from tamis.bayes.space import Space, Structure
from tamis.bayes.target import Rounds, losses
from tamis.bayes.xnor import Xnor
from tamis.bounds import (
    EXPECTED,
    LEARNER,
    OBLIVIOUS,
    Bound,
    Expert,
    PerturbedLayer,
    check_count,
    check_number,
    convolution_layer,
    dense_layer,
    kl_bound,
    kl_xnor,
    log_rounded_up,
    perturbation_penalties,
    price_of_lambda,
    sparse_regret,
    sum_rounded_up,
    xnor_regret,
)
from tamis.errors import InvalidInput

PARTICLES = "particles stand for π_t: the learner's draws are from Gibbs_λ(h_t) only as far as they do"
MEASURED = "the expectations over ρ are means over draws: the value may be off by a few of its standard errors"
ERROR = "standard error of the means over draws"


class WeightDistribution(Protocol):
    """This protocol is a distribution ρ over the weights of one structure, as Theorem 4.1 takes it."""

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw weights (count, p) independently."""

    def kl(self) -> float:
        """Compute the divergence from the prior over all structures."""


@dataclass(frozen=True)
class Comparator:
    """A comparator is a network that the learner is compared with, and Σ_t ℓ_t(w), its own loss."""

    structure: Structure
    weights: Tensor
    loss: float


@dataclass(frozen=True)
class Regret:
    """A regret holds the rounds of a learner, as `OnlineLearner.regret` gives them.

    Attributes:
        space, prior, lam: of the learner.
        seen: the rounds.
        expected_losses: E_{π_t} ℓ_t for each round, over the particles.
        posterior: the particles after the last round, for `best_particle`.
    """

    space: Space
    prior: Prior
    lam: float
    seen: Rounds
    expected_losses: tuple[float, ...]
    posterior: Posterior | None = None

    @property
    def rounds(self) -> int:
        """Return T, the number of rounds."""
        return len(self.seen)

    @property
    def losses(self) -> tuple[float, ...]:
        """Return ℓ_t(ŵ_t) of each round."""
        return tuple(self.seen.drawn_losses)

    @property
    def loss(self) -> float:
        """Return Σ_t ℓ_t(ŵ_t), the loss of the learner's draws."""
        # fsum: over many rounds plain sums drift, and the regret is a small difference of two of them.
        return math.fsum(self.seen.drawn_losses)

    @property
    def expected_loss(self) -> float:
        """Return Σ_t E_{π_t} ℓ_t, which the theorems bound (in expectation over earlier draws)."""
        return math.fsum(self.expected_losses)

    @property
    def uniform_loss(self) -> float:
        """Return T log K, the loss of a uniform guess."""
        return self.rounds * math.log(self.space.classes)

    @cached_property
    def input_norms(self) -> tuple[float, ...]:
        """Return ‖x_t‖ of each round; for a mini-batch, the mean."""
        # ℓ_t is a mean over the mini-batch and the lemmas hold for each of its inputs, so that the mean norm bounds its
        # rise.
        return tuple(float(x.flatten(1).norm(dim=1).mean()) for x in self.seen.inputs)

    def comparator(self, structure: Structure, weights: Tensor) -> float:
        """Compute Σ_t ℓ_t(w*), the loss that an expert would have had.

        Args:
            structure: of the expert, one of the space's.
            weights: w*, flat (p,).
        """
        return float(self._compute_losses(structure, self._check_expert(structure, weights)[None]).sum())

    def best_particle(self) -> Comparator:
        """Return the particle with the least Σ_t ℓ_t(w) among those that are alive."""
        self._check_begun()
        if self.posterior is None:
            raise InvalidInput("best_particle needs the particles: take `regret` from an OnlineLearner")
        # By their losses alone and not by h: h has the second-order term, which an expert does not pay.
        totals = self.posterior.round_losses(self.seen).sum(1)
        place = int(totals.argmin())
        number = int(self.posterior.population.structures[place])
        weights = self.posterior.weights(number, torch.tensor([place]))[0].cpu()
        return Comparator(self.space.structures[number], weights, float(totals[place]))

    def offline(self, structure: Structure, *, steps: int = 500, seed: int = 0) -> Comparator:
        """Train a network of a structure on the whole sequence (`tamis.bayes.offline_training`).

        Args:
            structure: of the network, one of the space's.
            steps: of training.
            seed: of its first weights.
        """
        self._check_begun()
        self._check_member(structure)
        weights = train_offline(self.space, self.prior, self.seen, structure, steps=steps, seed=seed).cpu()
        return Comparator(structure, weights, self.comparator(structure, weights))

    def theorem_3_1(self, structure: Structure, weights: Tensor, *, draws: int = 200, seed: int = 0) -> Bound:
        """Compute Theorem 3.1, corrected (ERRATA 1 to 4, 7), for an expert among dense or convolutional networks.

            E Σ_t H_t(w_t) ≤ Σ_t H_t(w*) + 2 pen₁ Σ_t ‖x_t‖ + 2T pen₂ + (λ/2) V_T + KL/λ.

        V_T is the mean over draws from ρ of Σ_t (ℓ_t(w) − ℓ_t(ŵ_t))²; KL is the bound of Lemma 4.6. Each stands among
        the terms, and so does the sum of the two with pen₁ and pen₂.

        Args:
            structure, weights: of the expert, as `comparator` takes them.
            draws: from ρ, for V_T.
            seed: of the draws.

        Reference: chee2021xnor.
        """
        # An Xnor is a Chain too, but its signs and normalization are none of what Lemmas 4.3 and 4.4 propagate.
        if not isinstance(self.space, Chain) or isinstance(self.space, Xnor):
            raise InvalidInput(
                f"Theorem 3.1 speaks of dense and convolutional ReLU networks, not of {type(self.space).__name__}: "
                "theorem_4_1 holds for any"
            )
        expert = self._check_expert(structure, weights)
        found = self._evaluate_draws(structure, self._make_expert_distribution(structure, expert), draws, seed)
        # Lemmas 4.3 and 4.4 bound the rise of the loss under ρ, where `theorem_4_1` measures it: no draws for this
        # term.
        penalty = perturbation_penalties(self._describe_layers(structure, expert))
        bound = sparse_regret(
            Expert(
                self.comparator(structure, weights),
                kl_bound(expert.numpy(), self.prior.tau, self.prior.R, self.space.probabilities[structure]),
            ),
            penalty,
            self.input_norms,
            float(found.squares.mean()),
            self.lam,
            self.space.classes,
        )
        # Both penalties are in the bound already: they are listed one by one, for a reader to see what it is made of.
        rise = {
            "2 pen₁ Σ_t ‖x_t‖": 2 * penalty.pen1 * math.fsum(self.input_norms),
            "2T pen₂": 2 * self.rounds * penalty.pen2,
        }
        return _add_standard_error(replace(bound, terms={**bound.terms, **rise}), self.lam / 2 * found.squares)

    def theorem_3_2(self, structure: Structure, weights: Tensor, *, draws: int = 200, seed: int = 0) -> Bound:
        """Compute Theorem 3.2, corrected (ERRATA 4, 5, 7), for an expert of a space of XNOR networks.

            E Σ_t H_t(w_t) ≤ Σ_t H_t(w*) + rise + (λ/2) V_T + KL/λ,

        where the rise of the expert's loss under ρ and V_T are means over draws; arguments as of `theorem_3_1`.

        Reference: chee2021xnor.
        """
        if not isinstance(self.space, Xnor):
            raise InvalidInput(f"Theorem 3.2 speaks of XNOR networks, not of {type(self.space).__name__}")
        expert, kinds = self._check_expert(structure, weights), self.space.kinds(structure)
        found = self._evaluate_draws(structure, self._make_expert_distribution(structure, expert), draws, seed)
        loss = self.comparator(structure, weights)
        bound = xnor_regret(
            Expert(
                loss,
                kl_xnor(
                    expert[kinds == REAL].numpy(),
                    expert[kinds == SCALE].numpy(),
                    int((kinds == SIGN).sum()),
                    self.prior.tau,
                    self.prior.R,
                    self.space.probabilities[structure],
                ),
            ),
            # The rise E_ρ Σ_t ℓ_t(w) − Σ_t ℓ_t(w*), as measured; an expert that ρ improves on makes it negative.
            float(found.totals.mean()) - loss,
            float(found.squares.mean()),
            self.lam,
            self.rounds,
            self.space.classes,
        )
        return _add_standard_error(bound, found.totals + self.lam / 2 * found.squares)

    def theorem_4_1(self, structure: Structure, weights: Tensor, *, draws: int = 200, seed: int = 0) -> Bound:
        """Compute Theorem 4.1 for ρ, the prior shifted to an expert of any space.

            E Σ_t ℓ_t(w_t) ≤ E_ρ Σ_t ℓ_t + (λ/2) V_T + KL(ρ, π)/λ,

        with the divergence itself, and the other terms as means over draws; arguments as of `theorem_3_1`.

        Reference: chee2021xnor.
        """
        return self.theorem_4_1_under(
            structure,
            self._make_expert_distribution(structure, self._check_expert(structure, weights)),
            draws=draws,
            seed=seed,
        )

    def theorem_4_1_under(
        self, structure: Structure, rho: WeightDistribution, *, draws: int = 200, seed: int = 0
    ) -> Bound:
        """Compute Theorem 4.1 for any ρ over the weights of one structure, with the terms of `theorem_4_1`.

        Args:
            structure: of the networks, one of the space's.
            rho: ρ: `sample(count, generator)` gives weights (count, p), and `kl()` is KL(ρ, π), π the whole prior, so
                that it has −log of the structure's probability in it.
            draws, seed: as of `theorem_3_1`.

        Reference: chee2021xnor.
        """
        self._check_begun()
        self._check_member(structure)
        found = self._evaluate_draws(structure, rho, draws, seed)
        bound = gibbs_bound(
            float(found.totals.mean()), float(found.squares.mean()), rho.kl(), self.lam, self.uniform_loss
        )
        return _add_standard_error(bound, found.totals + self.lam / 2 * found.squares)

    def _check_expert(self, structure: Structure, weights: Tensor) -> Tensor:
        self._check_member(structure)
        self._check_begun()
        count = self.space.count(structure)
        if tuple(weights.shape) != (count,):
            raise InvalidInput(f"an expert of {structure} has weights of shape ({count},), got {tuple(weights.shape)}")
        # On the CPU in float64, as the draws are: the same seed gives the same bound for a learner on any device.
        return weights.detach().cpu().double()

    def _check_member(self, structure: Structure) -> None:
        if structure not in self.space.probabilities:
            raise InvalidInput(f"{structure} is none of the {len(self.space.structures)} structures of the space")

    def _check_begun(self) -> None:
        if not self.rounds:
            raise InvalidInput("there is nothing to compare before the first update")

    def _make_expert_distribution(self, structure: Structure, expert: Tensor) -> ExpertDistribution:
        return ExpertDistribution(self.prior, self.space.kinds(structure), expert, self.space.probabilities[structure])

    def _compute_losses(self, structure: Structure, weights: Tensor) -> Tensor:
        """Compute ℓ_t(w), (n, T)."""
        device = self.seen.labels[0].device
        return losses(self.space, self.space.structures.index(structure), weights.to(device), self.seen).cpu()

    def _evaluate_draws(self, structure: Structure, rho: WeightDistribution, draws: int, seed: int) -> _DrawTotals:
        check_count("draws", draws, least=2)
        # The same draws for both sums: their errors then cancel in part, and the standard error is of their sum.
        drawn = rho.sample(draws, torch.Generator().manual_seed(seed))
        found = self._compute_losses(structure, drawn)
        # The losses that were observed, ℓ_t(ŵ_t): V_T compares with what the learner drew, and not with its mean.
        learner = torch.tensor(self.seen.drawn_losses, dtype=torch.float64)
        return _DrawTotals(found.sum(1), ((found - learner) ** 2).sum(1))

    def _describe_layers(self, structure: Structure, expert: Tensor) -> Sequence[PerturbedLayer]:
        """Return the facts about each layer of a chain that the recursions of Lemmas 4.3 and 4.4 need."""
        assert isinstance(self.space, Chain)
        tau, R = self.prior.tau, self.prior.R
        weights = {name: part.numpy() for name, part in self.space.split(structure, expert).items()}
        hidden = []
        for layer in range(structure.layers - 1):
            weight, bias = weights[f"hidden.{layer}.weight"], weights[f"hidden.{layer}.bias"]
            # A filter's bias, and its error, come once at every position of the output.
            positions = math.prod(self.space.positions(structure, layer + 1))
            hidden.append(convolution_layer(weight, bias, positions, tau, R))
        # The last layer is fully connected: filters and positions together are its inputs.
        last = weights["last.weight"].reshape(self.space.classes, -1)
        return [*hidden, dense_layer(last, weights["last.bias"], tau, R)]


@dataclass(frozen=True)
class _DrawTotals:
    """These totals are, for each draw from ρ, Σ_t ℓ_t(w) and Σ_t (ℓ_t(w) − ℓ_t(ŵ_t))²."""

    totals: Tensor
    squares: Tensor


def gibbs_bound(mean_loss: float, squared_differences: float, kl: float, lam: float, uniform_loss: float) -> Bound:
    """Compute Theorem 4.1 (Audibert) for one ρ: E Σ_t ℓ_t(w_t) ≤ E_ρ Σ_t ℓ_t + (λ/2) V_T + KL(ρ, π)/λ.

    Args:
        mean_loss: E_{w~ρ} Σ_t ℓ_t(w).
        squared_differences: V_T, the sum over rounds of E_{w~ρ} (ℓ_t(w) − ℓ_t(ŵ_t))².
        kl: KL(ρ, π).
        lam: λ.
        uniform_loss: what a uniform guess loses.

    Example:
        >>> round(gibbs_bound(10.0, squared_differences=4.0, kl=5.0, lam=1.0, uniform_loss=100.0).value, 9)
        17.0

    Reference: chee2021xnor.
    """
    check_number("kl", kl)
    # (λ/2) V_T grows with λ and KL/λ falls: this is what λ ~ 1/√T balances.
    variance, complexity = price_of_lambda(squared_differences, kl, lam)
    # Rounded up, so that the number printed is an upper bound also in floating point (ERRATA 33).
    value = sum_rounded_up(mean_loss, variance, complexity)
    return Bound(
        value=value,
        log_value=log_rounded_up(value),
        informative=value < uniform_loss,
        source="chee2021xnor, Theorem 4.1",
        assumptions=(LEARNER, OBLIVIOUS, EXPECTED),
        terms={
            "mean loss under ρ": mean_loss,
            "(λ/2) V_T": variance,
            "KL/λ": complexity,
            "loss of a uniform guess": uniform_loss,
        },
    )


def _add_standard_error(bound: Bound, draws: Tensor) -> Bound:
    """Add the standard error of the mean over draws to a bound's terms, and what it assumes to the assumptions."""
    # Each of `draws` is the whole random part of the bound for one draw, so that correlations within it are counted.
    error = float(draws.std() / math.sqrt(len(draws)))
    return replace(
        bound,
        assumptions=(*bound.assumptions, PARTICLES, MEASURED),
        terms={**bound.terms, ERROR: error},
    )
