"""An online learner draws a network for each round from Gibbs_λ(h_{t−1}) (Algorithm 1 of Chee and Loustau)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import load_archive, replace_file
from tamis.bayes.posterior import Posterior, Sampling
from tamis.bayes.prior import Prior
from tamis.bayes.regret import Regret
from tamis.bayes.space import Space, Structure
from tamis.bayes.states import read_state
from tamis.bayes.target import Rounds
from tamis.bounds import check_count, check_positive
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.settings import OnlineLearning, documents


@dataclass(frozen=True)
class Tuning:
    """A tuning holds λ and τ of order 1/√T, which give Theorems 3.1 and 3.2 a regret of order √T."""

    lam: float
    tau: float


def tune(rounds: int, lam: float = 1.0, tau: float = 1.0) -> Tuning:
    """Return λ/√T and τ/√T for T rounds.

    Args:
        rounds: T.
        lam, tau: what is divided by √T.

    Example:
        >>> tune(100)
        Tuning(lam=0.1, tau=0.1)

    Reference: chee2021xnor.
    """
    check_count("rounds", rounds)
    check_positive("lam", lam)
    check_positive("tau", tau)
    return Tuning(lam / math.sqrt(rounds), tau / math.sqrt(rounds))


@dataclass(frozen=True)
class Member:
    """A member is one network of a space."""

    structure: Structure
    weights: Tensor

    def probabilities(self, space: Space, x: Tensor) -> Tensor:
        """Compute the network's class probabilities (batch, classes)."""
        return space.logits(self.structure, self.weights[None], x)[0].softmax(-1)


@documents(OnlineLearning, "lam", "particles", "seed")
class OnlineLearner:
    """An online learner predicts with ŵ_t drawn from π_t, sees the labels, and turns π_t into π_{t+1}.

        h_t(w) = h_{t−1}(w) + ℓ_t(w) + (λ/2)(ℓ_t(w) − ℓ_t(ŵ_t))²,      π_{t+1} = Gibbs_λ(h_t)

    ℓ_t is the mean cross-entropy over round t's mini-batch. ŵ_t is drawn once a round, so that `predict` gives the same
    until the next `update`. The same seed gives the same run; an `update` that fails leaves all as it was. For T
    rounds, λ is of order 1/√T: see `tune`. Above 1 or so, the second-order term holds networks near the loss of a draw.

    Args:
        space: the union of networks, such as `tamis.bayes.networks.Dense`.
        prior: of their weights.
        <settings>
        sampling: how particles are kept alive.
        device: where networks are computed.

    Example:
        >>> from tamis.bayes import Dense
        >>> stream = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(3)]
        >>> learner = OnlineLearner(Dense((4,), 3, layers=[1, 2], filters=[5]), Prior(0.1), lam=0.5, particles=20)
        >>> for x, y in stream:
        ...     probabilities = learner.predict(x)
        ...     learner.update(x, y)
        >>> learner.regret.loss > 0
        True

    Reference: chee2021xnor.
    """

    def __init__(
        self,
        space: Space,
        prior: Prior,
        lam: float,
        particles: int = 200,
        seed: int = 0,
        *,
        sampling: Sampling | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        # bool is an int to Python, and a seed of True would be a run that nobody asked for.
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise InvalidInput(f"{seed=} must be a whole number from 0 to 2⁶³ − 1")
        if isinstance(lam, bool) or not isinstance(lam, int | float):
            raise InvalidInput(f"lam must be a number above 0, got lam = {lam!r}")
        self.space, self.prior, self.lam, self.device = space, prior, float(lam), torch.device(device)
        self._generator = torch.Generator().manual_seed(seed)
        self.posterior = Posterior.initial(space, prior, self.lam, particles, self._generator, sampling).to(self.device)
        self._rounds = Rounds()
        self._expected: list[float] = []
        # ŵ_1 is drawn here, from the prior, and ŵ_{t+1} at the end of round t: asking for predictions draws nothing, so
        # that runs that ask more often are the same runs.
        self._members = [self._draw()]
        self._architectures: list[list[float]] = []

    @property
    def rounds(self) -> int:
        """Return the number of rounds learnt so far."""
        return len(self._rounds)

    @property
    def member(self) -> Member:
        """Return ŵ_t, the network drawn for the round to come."""
        return self._members[-1]

    @property
    def regret(self) -> Regret:
        """Return the losses so far, with the bounds of the theorems."""
        return Regret(self.space, self.prior, self.lam, self._rounds, tuple(self._expected), self.posterior)

    @property
    def architectures(self) -> tuple[dict[Structure, float], ...]:
        """Return the posterior probability of each structure after each round.

        Example:
            >>> from tamis.bayes import Dense
            >>> space = Dense((4,), 3, layers=[1, 2], filters=[5])
            >>> learner = OnlineLearner(space, Prior(0.1), lam=0.5, particles=20)
            >>> learner.update(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))
            >>> (shares,) = learner.architectures
            >>> shares.keys() == set(space.structures), round(sum(shares.values()), 9)
            (True, 1.0)
        """
        return tuple(dict(zip(self.space.structures, shares, strict=True)) for shares in self._architectures)

    def predict(self, x: Tensor) -> Tensor:
        """Compute class probabilities (batch, classes) by the network drawn for this round.

        Args:
            x: a mini-batch, as the space takes it.
        """
        return self.member.probabilities(self.space, self._check_inputs(x))

    def predict_mean(self, x: Tensor) -> Tensor:
        """Compute class probabilities (batch, classes), averaged over π_t; x as for `predict`."""
        x = self._check_inputs(x)
        shares = self.posterior.log_weights.exp()
        mean = torch.zeros(len(x), self.space.classes, dtype=torch.float64, device=self.device)
        for number, places in self.posterior.population.groups():
            weights = self.posterior.weights(number, places)
            probabilities = self.space.logits(self.space.structures[number], weights, x).softmax(-1)
            # Probabilities are averaged, and not logits: the mean of softmaxes is the prediction of the mixture π_t.
            mean = mean + torch.einsum("n,nbk->bk", shares[places], probabilities)
        return mean

    def update(self, x: Tensor, y: Tensor) -> None:
        """Learn the labels of a round.

        Args:
            x: the mini-batch, as `predict` takes it.
            y: its labels, integers (batch,) from 0 to classes − 1.
        """
        x, y = self._copy_round(x, y)
        # The generator is the only thing that changes on the way; all else is set at the end of `_learn`.
        before = self._generator.get_state()
        try:
            self._learn(x, y)
        except BaseException:
            self._generator.set_state(before)
            raise

    def check_round(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return a round's inputs and labels as they are computed with; raise InvalidInput if they are refused."""
        x = self._check_inputs(x)
        return x, self._check_labels(y, x)

    def _copy_round(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Check a round and copy it, since the caller may reuse its tensors for the next one."""
        x, y = self.check_round(x, y)
        return x.clone(), y.clone()

    def average(self) -> Average:
        """Return the mean prediction of ŵ_1, …, ŵ_T, the networks drawn for the rounds so far (mirror averaging).

        For independent, identically distributed rounds its expected loss is at most 1/T of the bounds of `regret`,
        since the cross-entropy is convex in the prediction (Remark 1).

        Reference: chee2021xnor.
        """
        if not self.rounds:
            raise InvalidInput("there is nothing to average before the first update")
        # Not the last member, which is drawn for the round to come and has predicted nothing yet.
        return Average(self.space, tuple(self._members[: self.rounds]), self.device)

    def _learn(self, x: Tensor, y: Tensor) -> None:
        # The loss of the draw is not yet known and does not matter here: 0.0 stands in its place.
        losses = self.posterior.round_losses(Rounds([x], [y], [0.0]))[:, 0]
        # Under π_t, before this round's labels count: the theorems bound the sum of these means.
        expected = float((self.posterior.log_weights.exp() * losses).sum())
        weights = self.member.weights
        drawn = float(self.space.round_losses(self.member.structure, weights, x[None], y[None])[0])
        rounds = self._rounds.with_round(x, y, drawn)
        posterior = self.posterior.advance(rounds, self._generator, losses=losses)
        member = self._draw(posterior)
        # Whatever may refuse the round is done: from here on the posterior and the lists change together.
        self.posterior, self._rounds = posterior, rounds
        self._expected.append(expected)
        self._members.append(member)
        self._architectures.append(list(posterior.probabilities().values()))

    def _draw(self, posterior: Posterior | None = None) -> Member:
        posterior = posterior or self.posterior
        place = posterior.draw(self._generator)
        number = int(posterior.population.structures[place])
        return Member(self.space.structures[number], posterior.weights(number, torch.tensor([place]))[0])

    def _check_inputs(self, x: Tensor) -> Tensor:
        return _check_inputs(self.space, x, self.device)

    def _check_labels(self, y: Tensor, x: Tensor) -> Tensor:
        if not isinstance(y, Tensor) or y.is_floating_point() or y.is_complex() or y.dtype is torch.bool:
            got = y.dtype if isinstance(y, Tensor) else type(y).__name__
            raise InvalidInput(f"labels must be a tensor of integers, got {got}")
        if tuple(y.shape) != (len(x),):
            raise InvalidInput(f"labels must be one for each of {len(x)} inputs, got shape {tuple(y.shape)}")
        y = y.detach().to(self.device, torch.int64)
        if bool((y < 0).any() | (y >= self.space.classes).any()):
            raise InvalidInput(
                f"labels must lie from 0 to {self.space.classes - 1} for {self.space.classes} classes, got "
                f"{int(y.min())} to {int(y.max())}"
            )
        return y

    # -- states --------------------------------------------------------------------------------------------------------

    def _describe_identity(self) -> str:
        """Return what a state must share with the learner that loads it."""
        sampling = asdict(self.posterior.sampling)
        # Not the seed: the generator's state, which a state holds, has taken its place.
        own = {"tau": self.prior.tau, "R": self.prior.R, "lam": self.lam, "particles": len(self.posterior.population)}
        return json.dumps({**self.space.identity, **own, **sampling}, sort_keys=True)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue, as tensors, numbers and text that `torch.save` writes.

        The inputs and labels of all rounds are part of it, since h_t is a function of them.
        """
        posterior = self.posterior
        return {
            "identity": self._describe_identity(),
            "generator": self._generator.get_state(),
            "structures": posterior.population.structures.cpu().clone(),
            "latent": posterior.population.latent.cpu().clone(),
            "energy": posterior.population.energy.cpu().clone(),
            "log_weights": posterior.log_weights.cpu().clone(),
            "step": posterior.step_sizes.step.clone(),
            "reserve": posterior.step_sizes.reserve.clone(),
            "curvature": posterior.step_sizes.curvature.clone(),
            "log_normaliser": posterior.log_normaliser,
            "resampled": posterior.resampled,
            "accepted": dict(posterior.accepted),
            "inputs": [x.cpu().clone() for x in self._rounds.inputs],
            "labels": [y.cpu().clone() for y in self._rounds.labels],
            "drawn": list(self._rounds.drawn_losses),
            "expected": list(self._expected),
            "architectures": [list(shares) for shares in self._architectures],
            "member_structures": [self.space.structures.index(member.structure) for member in self._members],
            "member_weights": [member.weights.cpu().clone() for member in self._members],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a learner of the same space, prior, λ, number of particles and sampling.

        A state that is refused changes nothing.
        """
        # All is read and checked before the first attribute is set, so that a bad entry leaves no half-loaded learner.
        self._check_origin(state)
        found = read_state(state, self.posterior, self._copy_round)
        self._generator.set_state(found.generator)
        self.posterior, self._rounds = found.posterior, found.rounds
        self._expected, self._architectures = found.expected, found.architectures
        self._members = [Member(self.space.structures[number], weights) for number, weights in found.members]

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidInput for anything but a state of this learner."""
        if not isinstance(state, Mapping):
            raise InvalidInput(f"the state of an OnlineLearner is what state_dict gives, not a {type(state).__name__}")
        # Before any entry is read: a state of an older version is named as such, and not by the first entry that fails.
        missing = [name for name in self.state_dict() if name not in state]
        if missing:
            raise InvalidInput(
                "this is not the state of an OnlineLearner, or it is one of an older version: "
                f"it lacks {', '.join(missing)}"
            )
        if state["identity"] != self._describe_identity():
            raise InvalidInput(
                f"this state is of another learner: {state['identity']}, and this one is {self._describe_identity()}"
            )

    def save(self, path: str | Path) -> None:
        """Write the state to a file, whole or not at all."""
        with replace_file(Path(path)) as part:
            torch.save(self.state_dict(), part)

    def load(self, path: str | Path) -> None:
        """Continue from a file that `save` wrote."""
        try:
            state = load_archive(Path(path))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise CorruptArtifact(f"{path} is not the state of an OnlineLearner: {error!s:.200}") from error
        if not isinstance(state, dict):
            raise CorruptArtifact(f"{path} is not the state of an OnlineLearner: it holds a {type(state).__name__}")
        self.load_state_dict(state)


def _check_inputs(space: Space, x: Tensor, device: torch.device) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidInput(f"inputs must be a tensor, got {type(x).__name__}")
    return space.check_inputs(x).to(device)


@dataclass(frozen=True)
class Average:
    """An average is the mean prediction of several networks."""

    space: Space
    members: tuple[Member, ...]
    device: torch.device

    def predict(self, x: Tensor) -> Tensor:
        """Compute class probabilities (batch, classes)."""
        x = _check_inputs(self.space, x, self.device)
        mean = torch.zeros(len(x), self.space.classes, dtype=torch.float64, device=self.device)
        # Grouped by structure, since only networks of one structure can be computed together; `dict` keeps the order of
        # rounds, and so the order of the sum.
        for structure in dict.fromkeys(member.structure for member in self.members):
            weights = torch.stack([member.weights for member in self.members if member.structure == structure])
            mean = mean + self.space.logits(structure, weights, x).softmax(-1).sum(0)
        return mean / len(self.members)
