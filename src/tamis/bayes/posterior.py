"""Sequential Monte Carlo follows Gibbs_λ(h_t) with particles in different structures, reweighted round by round.

A round multiplies each weight by exp(−λ δ_t), δ_t = h_t − h_{t−1}. Where that would leave too few particles that count,
only a part of it is taken: as much as leaves the effective sample size at its threshold. Then particles are resampled
among those of their structure (`tamis.bayes.resampling`) and moved (`tamis.bayes.moves`, `tamis.bayes.jumps`) under the
law so far, and the rest follows in the same way.

Printed: no sampler at all (ERRATA 8).

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tamis.bayes.jumps import jump
from tamis.bayes.moves import Population, StepSizes, SweepSettings, Tally, move_within_structures, sample_from_prior
from tamis.bayes.prior import SIGN, Prior
from tamis.bayes.resampling import Strata, effective_size, find_largest_part, group_by_structure, normalise_log_weights
from tamis.bayes.space import Space, Structure
from tamis.bayes.sparsity import Sparsity
from tamis.bayes.target import Rounds, Target, losses
from tamis.bounds import check_count, check_positive
from tamis.errors import InvalidInput
from tamis.settings import OnlineLearning, documents


@documents(OnlineLearning, "spread", "subsample")
@dataclass(frozen=True)
class Sampling:
    """These settings of the sampler say how particles are kept alive.

    Where moves see some of the past rounds and not all, a round's cost does not grow with t, and they keep a law that
    is near Gibbs_λ(h_t) only: see `tamis.bayes.moves`.

    Attributes:
        threshold: resample when the effective sample size falls below this part of what a resampling would make it.
        sweeps: how often each particle is moved after a resampling; a sweep is a jump, a Langevin step, and flips.
        leapfrog: gradient steps in one proposal of real weights: one is a Langevin step, more are Hamiltonian ones.
        <settings>
    """

    threshold: float = 0.5
    spread: float = 0.5
    sweeps: int = 5
    leapfrog: int = 1
    subsample: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise InvalidInput(f"threshold must lie between 0 and 1, got threshold = {self.threshold!r}")
        if not 0 <= self.spread < 1:
            raise InvalidInput(f"spread must be a number from 0 to below 1, got spread = {self.spread!r}")
        check_count("sweeps", self.sweeps, least=0)
        check_count("leapfrog", self.leapfrog)
        if self.subsample is not None:
            check_count("subsample", self.subsample, least=4)  # for the variance of what they add, and of half of them

    @property
    def sweep_settings(self) -> SweepSettings:
        """Return the settings of one sweep."""
        return SweepSettings(self.leapfrog, self.subsample)


@dataclass(frozen=True)
class Posterior:
    """A posterior is a set of weighted particles for Gibbs_λ(h_t); it is a value, which `advance` does not change.

    Attributes:
        space, prior, lam: what is sampled.
        sampling: how.
        population: the particles.
        log_weights: (N,), whose exponentials sum to 1.
        step_sizes: of the moves.
        log_normaliser: an estimate of log E_π exp(−λ h_t).
        resampled: how often, so far.
        accepted: the mean acceptance of each kind of move in the last renewal, "jumps" between structures, "steps" of
            real weights and "flips" of signs; of those kinds only that there were, so that it is empty before any.
    """

    space: Space
    prior: Prior
    lam: float
    sampling: Sampling
    population: Population
    log_weights: Tensor
    step_sizes: StepSizes
    log_normaliser: float = 0.0
    resampled: int = 0
    accepted: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def initial(
        cls,
        space: Space,
        prior: Prior,
        lam: float,
        particles: int,
        generator: torch.Generator,
        sampling: Sampling | None = None,
    ) -> Posterior:
        """Draw particles from the prior, all with the same weight.

        Example:
            >>> from tamis.bayes import Dense
            >>> space = Dense((4,), 3, layers=[1, 2], filters=[5])
            >>> posterior = Posterior.initial(space, Prior(0.1), 0.5, 100, torch.Generator().manual_seed(0))
            >>> round(posterior.effective_size)
            100
        """
        check_positive("lam", lam)
        check_count("particles", particles, least=2)
        # Particles are drawn before they go to a device: the generator is the CPU's, and one seed gives one run
        # anywhere.
        even = torch.full((particles,), -math.log(particles), dtype=torch.float64)
        population = sample_from_prior(space, prior, particles, generator)
        return cls(space, prior, lam, sampling or Sampling(), population, even, StepSizes.initial(space))

    def to(self, device: str | torch.device) -> Posterior:
        """Return the same posterior with its particles on a device."""
        return replace(self, population=self.population.to(device), log_weights=self.log_weights.to(device))

    @property
    def effective_size(self) -> float:
        """Compute how many particles count, by the effective sample size."""
        return effective_size(self.log_weights)

    def advance(self, rounds: Rounds, generator: torch.Generator, *, losses: Tensor | None = None) -> Posterior:
        """Return the posterior after the last of the rounds.

        Args:
            rounds: all so far, with the last, which this posterior has not seen.
            generator: of resampling and moves.
            losses: ℓ_t of each particle, (N,), where they are known already.
        """
        # Invariant: `now` stands for the law ∝ exp(−λ(h_{t−1} + done · δ_t)) dπ, from π_t at 0 to π_{t+1} at 1.
        now, done, increment = self, 0.0, self.increments(rounds, losses)
        while done < 1:
            rest = 1 - done
            # Tempering: exp(−λδ) is applied in parts φ₁ + φ₂ + … = 1, each no larger than the particles survive.
            part = now._find_largest_part(increment, rest)
            done = (
                1.0 if part == rest else done + part
            )  # done + (1 − done) may round to less than 1, and loop once more
            now = now._reweight(part, increment)
            if done == 1 and now.strata().relative_size >= self.sampling.threshold:
                return now
            # The law so far counts the last round by `done`: moves must keep it, and not the one that comes.
            now = now._renew(Target(self.space, self.prior, rounds, self.lam, done), generator)
            increment = now.increments(rounds)  # particles have moved: what was known of them no longer holds
        return now

    def strata(self) -> Strata:
        """Group the particles by structure, as they are resampled."""
        return Strata(group_by_structure(self.population.structures), self.log_weights, self.sampling.spread)

    def _find_largest_part(self, increment: Tensor, rest: float) -> float:
        members, spread = group_by_structure(self.population.structures), self.sampling.spread

        def enough(part: float) -> bool:
            # Measured against what resampling would restore: structures of little weight lower the effective size of
            # all, and no resampling would bring that back.
            strata = Strata(members, self.log_weights - self.lam * part * increment, spread)
            return strata.relative_size >= self.sampling.threshold

        # Where an increment evens out uneven weights, more of it may be better: bisection then still ends at a part
        # that is enough, if perhaps not at the largest.
        return find_largest_part(enough, rest)

    def _reweight(self, part: float, increment: Tensor) -> Posterior:
        log_weights = self.log_weights - self.lam * part * increment
        # h is kept up to date by what is added to it: a jump needs h(w) of where it begins, and all rounds would cost
        # O(t).
        population = replace(self.population, energy=self.population.energy + part * increment)
        return replace(
            self,
            population=population,
            log_weights=normalise_log_weights(log_weights),
            # Weights summed to 1 before: their sum now estimates E exp(−λφδ) under the law before, and the product of
            # all these factors estimates E_π exp(−λh_t).
            log_normaliser=self.log_normaliser + float(log_weights.logsumexp(0)),
        )

    def _renew(self, target: Target, generator: torch.Generator) -> Posterior:
        """Resample the particles, and move them so that copies of one particle separate again."""
        # Resampled before they are moved: moves are spent on particles that count, and it is copies that need them.
        places, log_weights = self.strata().resample(generator)
        population = self.population.select(places.to(self.log_weights.device))
        sizes, tally, sweep = self.step_sizes, Tally(), self.sampling.sweep_settings
        for _ in range(self.sampling.sweeps):
            # Jumps come first: the weights that they draw from the prior are then moved towards the target.
            if len(self.space.structures) > 1:
                population, accepted = jump(sweep.select_rounds(target, generator), population, generator)
                tally.add("jumps", accepted, len(population))
            population, sizes = move_within_structures(target, population, sizes, generator, sweep, tally)
        return replace(
            self,
            population=population,
            log_weights=log_weights.to(self.log_weights.device),
            step_sizes=sizes,
            # The normaliser stays as it was: a resampling keeps the sum of all weights at 1, and moves keep the law.
            resampled=self.resampled + 1,
            accepted=tally.means,
        )

    def increments(self, rounds: Rounds, losses: Tensor | None = None) -> Tensor:
        """Compute δ_t(w) = ℓ_t(w) + (λ/2)(ℓ_t(w) − ℓ_t(ŵ_t))² of each particle, (N,), for the last of the rounds.

        Args:
            rounds: all so far.
            losses: ℓ_t of each particle, (N,), where they are known already.
        """
        loss = self.round_losses(rounds.select([-1]))[:, 0] if losses is None else losses
        # The second-order term of Algorithm 1, with the observed loss of ŵ_t: it pays for V_T in Theorem 4.1 (ERRATA
        # 7).
        found = loss + self.lam / 2 * (loss - rounds.drawn_losses[-1]) ** 2
        # Refused before anything changes: one NaN among the log-weights would make all of them NaN by the
        # normalisation.
        beyond = int((~torch.isfinite(self.lam * found)).sum())
        if beyond:
            raise InvalidInput(
                f"λ(h_t − h_{{t−1}}) is no finite number for {beyond} of {len(found)} particles, with lam = "
                f"{self.lam:g}, {self.prior} and inputs up to {float(rounds.inputs[-1].abs().max()):.3g}: take a "
                "smaller lam or tau, or smaller inputs"
            )
        return found

    def round_losses(self, rounds: Rounds) -> Tensor:
        """Compute ℓ_s of each particle and round, (N, rounds)."""
        found = self.log_weights.new_empty(len(self.population), len(rounds))
        for number, places in self.population.groups():
            found[places] = losses(self.space, number, self.weights(number, places), rounds)
        return found

    def weights(self, number: int, places: Tensor) -> Tensor:
        """Return the weights (n, p) of particles of one structure."""
        kinds = self.space.kinds(self.space.structures[number])
        # What stands after the p coordinates of a structure is padding, up to the largest structure.
        latent = self.population.latent[places, : len(kinds)]
        return self.prior.weights(latent, kinds.to(latent.device))

    def draw(self, generator: torch.Generator) -> int:
        """Draw a particle by weight, and return its place."""
        # On the CPU, whatever the device: the generator lives there, and the same seed gives the same run.
        return int(torch.multinomial(self.log_weights.exp().cpu(), 1, generator=generator))

    def probabilities(self) -> dict[Structure, float]:
        """Compute the posterior probability of each structure.

        Example:
            >>> from tamis.bayes import Dense
            >>> space = Dense((4,), 3, layers=[1, 2], filters=[5])
            >>> posterior = Posterior.initial(space, Prior(0.1), 0.5, 100, torch.Generator().manual_seed(0))
            >>> [structure.layers for structure in posterior.probabilities()]
            [1, 2]
        """
        shares = torch.zeros(len(self.space.structures), dtype=torch.float64)
        # P(s) is the weight of all particles in s; their number says nothing, because `Strata` deals places unevenly.
        shares.index_add_(0, self.population.structures.cpu(), self.log_weights.exp().cpu())
        return dict(zip(self.space.structures, shares.tolist(), strict=True))

    def sparsity(self, threshold: float) -> Sparsity:
        """Count the weights of the posterior's networks that are above a threshold.

        Args:
            threshold: ≥ 0, for |w|.

        Example:
            >>> from tamis.bayes import Dense
            >>> space = Dense((4,), 3, layers=[1, 2], filters=[5])
            >>> posterior = Posterior.initial(space, Prior(0.1), 0.5, 100, torch.Generator().manual_seed(0))
            >>> round(posterior.sparsity(threshold=0.0).share, 9), posterior.sparsity(threshold=1e9).share
            (1.0, 0.0)

        Reference: chee2021xnor.
        """
        if not 0 <= threshold < math.inf:
            raise InvalidInput(f"threshold must be a number ≥ 0, got threshold = {threshold!r}")
        shares = self.log_weights.exp()
        nonzero = weights = signs = 0.0
        by_structure = {}
        for number, places in self.population.groups():
            structure = self.space.structures[number]
            real = (self.space.kinds(structure) != SIGN).to(shares.device)
            # Signs are never 0, and are counted apart: they cost p_bin log 2 whatever they are.
            above = ((self.weights(number, places).abs() > threshold) & real).sum(1).double()
            mass = float(shares[places].sum())
            nonzero += float(shares[places] @ above)
            weights += mass * int(real.sum())
            signs += mass * int((~real).sum())
            # Weights of particles may underflow to 0 for a whole structure, and leave nothing to divide by.
            by_structure[structure] = float(shares[places] @ above) / mass if mass else float(above.mean())
        return Sparsity(threshold, nonzero, weights, signs, by_structure)
