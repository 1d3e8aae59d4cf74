"""Regret: Theorem 4.1 by enumeration of all that can be drawn, and the theorems' right-hand sides term by term."""

import itertools
import math

import numpy as np
import pytest
import torch
from bayes.toys import Lines, every_sign, seeded, some_rounds
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.bayes.networks import Conv1d, Conv2d, Dense, Graph, Nodes
from tamis.bayes.online import OnlineLearner
from tamis.bayes.prior import REAL, SCALE, SIGN, ExpertDistribution, Prior
from tamis.bayes.regret import ERROR, Regret, gibbs_bound
from tamis.bayes.space import Space, StructurePrior
from tamis.bayes.target import losses
from tamis.bayes.xnor import Xnor
from tamis.bounds import dense_layer, kl_bound, kl_xnor, perturbation_penalties
from tamis.errors import AssumptionViolated, InvalidInput

PRIOR = Prior(0.2, 2.0)
LAM = 0.8


def told(space: Space, shape: tuple[int, ...], rounds: int = 5, seed: int = 0) -> OnlineLearner:
    generator = torch.Generator().manual_seed(seed)
    learner = OnlineLearner(space, PRIOR, LAM, 30, seed)
    for _ in range(rounds):
        x = torch.randn(4, *shape, generator=generator)
        learner.update(x, (x.flatten(1).sum(1) > 0).long())
    return learner


# -- Theorem 4.1 on finite spaces --------------------------------------------------------------------------------------


def played(loss: np.ndarray, prior: np.ndarray, lam: float) -> tuple[float, np.ndarray]:
    """Algorithm 1 on a finite space, over every sequence of draws: E Σ ℓ_t(w_t), and E h_T(w) for each w.

    Args:
        loss: (rounds, members).
        prior: (members,).
        lam: λ.
    """
    lost, energy = 0.0, np.zeros(loss.shape[1])
    for draws in itertools.product(range(loss.shape[1]), repeat=len(loss)):
        probability, h, total = 1.0, np.zeros(loss.shape[1]), 0.0
        for of_round, drawn in zip(loss, draws, strict=True):
            gibbs = prior * np.exp(-lam * (h - h.min()))
            probability *= gibbs[drawn] / gibbs.sum()
            total += of_round[drawn]
            h = h + of_round + lam / 2 * (of_round - of_round[drawn]) ** 2
        lost += probability * total
        energy += probability * h
    return lost, energy


def least_right_hand_side(energy: np.ndarray, prior: np.ndarray, lam: float) -> float:
    """min_ρ { E_ρ h + KL(ρ, π)/λ } = −(1/λ) log E_π exp(−λh)."""
    lowest = float(energy.min())
    return lowest - math.log(float(prior @ np.exp(-lam * (energy - lowest)))) / lam


@settings(deadline=None, max_examples=60)
@given(
    losses=st.lists(st.lists(st.floats(0, 5), min_size=3, max_size=3), min_size=1, max_size=4),
    masses=st.lists(st.floats(0.01, 1), min_size=3, max_size=3),
    lam=st.floats(0.05, 10),
)
def test_theorem_4_1_is_never_violated(losses: list[list[float]], masses: list[float], lam: float) -> None:
    prior = np.array(masses) / sum(masses)
    lost, energy = played(np.array(losses), prior, lam)
    assert lost <= least_right_hand_side(energy, prior, lam) + 1e-9


def test_theorem_4_1_on_a_space_of_signs() -> None:
    space, rounds = Lines([1, 2], SIGN, [0.4, 0.6]), some_rounds(2, 3)
    tables = [losses(space, number, every_sign(each.filters), rounds) for number, each in enumerate(space.structures)]
    shares = [np.full(len(t), space.probabilities[s] / len(t)) for t, s in zip(tables, space.structures, strict=True)]
    lost, energy = played(torch.cat(tables).T.numpy(), np.concatenate(shares), LAM)
    assert lost <= least_right_hand_side(energy, np.concatenate(shares), LAM) + 1e-12


def test_the_gibbs_law_attains_the_least_right_hand_side() -> None:
    rng = np.random.default_rng(0)
    loss, drawn, prior = rng.random((6, 5)), rng.random(6), np.full(5, 0.2)
    squares = ((loss - drawn[:, None]) ** 2).sum(0)
    h = loss.sum(0) + LAM / 2 * squares
    least = least_right_hand_side(h, prior, LAM)

    def bound(rho: np.ndarray) -> float:
        kl = float((rho * np.log(rho / prior)).sum())
        return gibbs_bound(float(rho @ loss.sum(0)), float(rho @ squares), kl, LAM, 6 * math.log(2)).value

    gibbs = prior * np.exp(-LAM * h)
    assert math.isclose(bound(gibbs / gibbs.sum()), least, rel_tol=1e-14)
    for _ in range(200):
        assert bound(rng.dirichlet(np.ones(5))) >= least - 1e-12


# -- the theorems for an expert ----------------------------------------------------------------------------------------


def test_what_was_lost() -> None:
    learner = told(Dense((3,), 2, [1, 2], [2]), (3,))
    regret = learner.regret
    assert regret.rounds == 5 and math.isclose(regret.loss, sum(regret.losses))
    assert math.isclose(regret.uniform_loss, 5 * math.log(2))
    structure = regret.space.structures[0]
    assert math.isclose(regret.comparator(structure, torch.zeros(8)), 5 * math.log(2))
    assert regret.input_norms[0] == pytest.approx(float(regret.seen.inputs[0].norm(dim=1).mean()))


def test_theorem_4_1_by_draws_is_within_its_error() -> None:
    """One weight: E_ρ and KL by quadrature."""
    space, rounds = Lines([1], REAL), some_rounds(1, 6)
    regret = Regret(space, PRIOR, LAM, rounds, (0.0,) * 6)
    expert = torch.tensor([0.7], dtype=torch.float64)
    law = ExpertDistribution(PRIOR, torch.tensor([REAL]), expert)
    grid = torch.linspace(-2, 2, 40_001, dtype=torch.float64)
    (shifted, _) = law._make_parts()
    density = shifted.log_density(grid[:, None])[:, 0].exp()
    share = density / density.sum()
    table = losses(space, 0, grid[:, None], rounds)
    drawn = torch.tensor(rounds.drawn_losses, dtype=torch.float64)
    exact = float(share @ (table + LAM / 2 * (table - drawn) ** 2).sum(1)) + law.kl() / LAM
    off = []
    for seed in range(20):
        bound = regret.theorem_4_1(space.structures[0], expert, draws=500, seed=seed)
        off.append((bound.value - exact) / bound.terms[ERROR])
    assert max(map(abs, off)) < 4.5 and 0.6 < float(np.std(off)) < 1.5
    again = losses(space, 0, law.sample(500, torch.Generator().manual_seed(19)), rounds)
    each = (again + LAM / 2 * (again - drawn) ** 2).sum(1)
    assert bound.terms[ERROR] == pytest.approx(float(each.std()) / math.sqrt(500))
    assert bound.source == "chee2021xnor, Theorem 4.1"


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (Dense((3,), 2, [1, 2, 3], [2]), (3,)),
        (Conv1d((1, 5), 2, [2, 3], [2], [2]), (1, 5)),
        (Conv2d((1, 4, 4), 2, [2], [2], [2]), (1, 4, 4)),
    ],
    ids=["dense", "conv1d", "conv2d"],
)
def test_theorem_3_1_is_above_theorem_4_1(space: Space, shape: tuple[int, ...]) -> None:
    """Both have the same ρ; Theorem 3.1 bounds the rise of the loss and the divergence, which 4.1 measures."""
    regret = told(space, shape).regret
    for structure in space.structures:
        kinds = space.kinds(structure)
        expert = PRIOR.weights(PRIOR.sample_latent(kinds, 1, seeded(3)), kinds)[0]
        measured = regret.theorem_4_1(structure, expert)
        bounded = regret.theorem_3_1(structure, expert)
        assert bounded.value >= measured.value - 4 * measured.terms[ERROR]
        assert bounded.terms["(λ/2) V_T"] == measured.terms["(λ/2) V_T"]
        assert bounded.terms["KL/λ"] >= measured.terms["KL/λ"]
        rise = measured.terms["mean loss under ρ"] - bounded.terms["loss of the expert"]
        assert bounded.terms["rise of its loss under the shifted prior"] >= rise - 4 * measured.terms[ERROR]


def test_theorem_3_1_term_by_term() -> None:
    space = Dense((3,), 2, [1, 2], [2], structure_prior=StructurePrior(alpha=[0.25, 0.75]))
    regret = told(space, (3,)).regret
    expert = torch.tensor([0.5, 0, -1, 0, 0.2, 0, 0, 0.1], dtype=torch.float64)
    bound = regret.theorem_3_1(space.structures[0], expert)
    layer = dense_layer(expert[:6].reshape(2, 3).numpy(), expert[6:].numpy(), PRIOR.tau, PRIOR.R)
    assert bound.terms["rise of its loss under the shifted prior"] == pytest.approx(
        perturbation_penalties([layer]).rise(regret.input_norms)
    )
    assert bound.terms["KL/λ"] == pytest.approx(kl_bound(expert.numpy(), PRIOR.tau, PRIOR.R, 0.25) / LAM)
    assert bound.terms["2 pen₁ Σ_t ‖x_t‖"] == 2 * perturbation_penalties([layer]).pen1 * math.fsum(regret.input_norms)
    assert bound.terms["2T pen₂"] == 2 * 5 * perturbation_penalties([layer]).pen2
    sums = ("loss of the expert", "2 pen₁ Σ_t ‖x_t‖", "2T pen₂", "(λ/2) V_T", "KL/λ")
    assert bound.value == pytest.approx(sum(bound.terms[name] for name in sums))
    assert bound.terms["loss of the expert"] == pytest.approx(regret.comparator(space.structures[0], expert))


def test_theorem_3_2_term_by_term() -> None:
    space = Xnor((3,), 2, [3, 4], [2])
    regret = told(space, (3,)).regret
    structure = space.structures[1]
    kinds = space.kinds(structure)
    expert = PRIOR.weights(PRIOR.sample_latent(kinds, 1, seeded(3)), kinds)[0]
    bound, measured = regret.theorem_3_2(structure, expert), regret.theorem_4_1(structure, expert)
    parts = [expert[kinds == kind].numpy() for kind in (REAL, SCALE)]
    assert bound.terms["KL/λ"] == pytest.approx(kl_xnor(*parts, 8, PRIOR.tau, PRIOR.R, 0.5) / LAM)
    assert bound.value >= measured.value
    loss = bound.terms["loss of the expert"] + bound.terms["rise of its loss under the shifted prior"]
    assert loss == pytest.approx(measured.terms["mean loss under ρ"])


class Uniform:
    """A law over two given vectors of signs of a structure, each as likely."""

    def __init__(self, signs: torch.Tensor, share: float) -> None:
        self.signs, self.share = signs, share

    def sample(self, count: int, generator: torch.Generator) -> torch.Tensor:
        return self.signs[torch.randint(2, (count,), generator=generator)]

    def kl(self) -> float:
        return math.log(0.5 / (self.share * 0.5 ** self.signs.shape[1]))


def test_theorem_4_1_for_any_law() -> None:
    space, rounds = Lines([2, 3], SIGN, [0.4, 0.6]), some_rounds(3, 6)
    regret = Regret(space, PRIOR, LAM, rounds, (0.0,) * 6)
    rho = Uniform(every_sign(3)[[6, 7]], 0.6)
    table = losses(space, 1, rho.signs, rounds)
    drawn = torch.tensor(rounds.drawn_losses, dtype=torch.float64)
    exact = float((table + LAM / 2 * (table - drawn) ** 2).sum(1).mean()) + rho.kl() / LAM
    bound = regret.theorem_4_1_under(space.structures[1], rho, draws=400)
    assert abs(bound.value - exact) < 4 * bound.terms[ERROR]
    masses = torch.tensor([space.probabilities[each] * 0.5**each.filters for each in space.structures])
    h = [(losses(space, n, every_sign(s.filters), rounds), masses[n]) for n, s in enumerate(space.structures)]
    total = sum(float((mass * (-LAM * (each + LAM / 2 * (each - drawn) ** 2).sum(1)).exp()).sum()) for each, mass in h)
    assert exact >= -math.log(total) / LAM - 1e-9  # the least over all laws


def test_the_best_particle_lost_least() -> None:
    learner = told(Dense((3,), 2, [1, 2], [2]), (3,))
    best = learner.regret.best_particle()
    assert math.isclose(best.loss, learner.regret.comparator(best.structure, best.weights))
    assert best.loss == pytest.approx(float(learner.posterior.round_losses(learner.regret.seen).sum(1).min()))
    with pytest.raises(InvalidInput, match="OnlineLearner"):
        Regret(learner.space, PRIOR, LAM, learner.regret.seen, ()).best_particle()


@pytest.mark.parametrize("space", [Dense((3,), 2, [1, 2], [2]), Xnor((3,), 2, [3], [3])], ids=["dense", "xnor"])
def test_a_network_trained_offline_loses_little(space: Space) -> None:
    regret = told(space, (3,), rounds=6).regret
    for structure in space.structures:
        offline = regret.offline(structure, steps=100, seed=1)
        assert offline.loss == regret.comparator(structure, offline.weights)
        assert offline.loss < 0.7 * regret.uniform_loss and offline.loss < regret.expected_loss
        kinds = space.kinds(structure)
        assert torch.isfinite(PRIOR.log_density(offline.weights, kinds))
        assert bool((offline.weights[kinds == SIGN].abs() == 1).all())
        assert regret.theorem_4_1(structure, offline.weights).value > 0
    again = regret.offline(structure, steps=100, seed=1)
    assert torch.equal(again.weights, offline.weights)


@pytest.mark.slow
def test_the_learner_keeps_to_theorem_4_1() -> None:
    """What particles lost, against the bound around an expert for each seed, and on average against the least one.

    The least bound, by Gibbs_λ(h_T), is the one that the loss comes near to: by less than 1 % here.
    """
    space = Dense((3,), 2, [1, 2], [2])
    learners = [told(space, (3,), rounds=25, seed=seed) for seed in range(24)]
    beyond = torch.tensor([each.regret.expected_loss + each.posterior.log_normaliser / LAM for each in learners])
    slack = 3 * float(beyond.std()) / math.sqrt(len(learners))
    assert slack < 0.1 and float(beyond.mean()) <= slack
    for regret in [each.regret for each in learners[:8]]:
        for structure in space.structures:
            zero = torch.zeros(space.count(structure))
            bound = regret.theorem_4_1(structure, zero, draws=400)
            assert regret.expected_loss <= bound.value + 4 * bound.terms[ERROR]


def test_what_is_refused() -> None:
    dense, xnor = Dense((3,), 2, [1], [2]), Xnor((3,), 2, [3], [2])
    regret = told(dense, (3,)).regret
    structure = dense.structures[0]
    with pytest.raises(InvalidInput, match=r"\(8,\), got \(7,\)"):
        regret.comparator(structure, torch.zeros(7))
    with pytest.raises(InvalidInput, match="none of the 1 structures"):
        regret.comparator(xnor.structures[0], torch.zeros(8))
    with pytest.raises(AssumptionViolated, match="support"):
        regret.theorem_4_1(structure, torch.full((8,), 3.0))
    with pytest.raises(InvalidInput, match="draws"):
        regret.theorem_4_1(structure, torch.zeros(8), draws=1)
    with pytest.raises(InvalidInput, match="XNOR"):
        regret.theorem_3_2(structure, torch.zeros(8))
    with pytest.raises(InvalidInput, match="theorem_4_1 holds"):
        told(xnor, (3,)).regret.theorem_3_1(xnor.structures[0], torch.zeros(xnor.count(xnor.structures[0])))
    ring = Graph(Nodes(torch.eye(3), torch.eye(3)), 2, [1], [1])
    learner = OnlineLearner(ring, PRIOR, LAM, 10)
    with pytest.raises(InvalidInput, match="first update"):
        learner.regret.comparator(ring.structures[0], torch.zeros(6))
    learner.update(torch.tensor([1]), torch.tensor([0]))
    assert learner.regret.theorem_4_1(ring.structures[0], torch.zeros(6)).value > 0
