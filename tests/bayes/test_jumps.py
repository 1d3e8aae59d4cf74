"""Jumps between structures: the flow between any two states is the same either way, and the prior is kept."""

import math

import numpy as np
import pytest
import torch
from bayes.toys import MANY, Lines, flows_are_even, numbered, seeded, sign_states, some_rounds
from scipy.stats import kstest

from tamis.bayes.jumps import jump
from tamis.bayes.moves import Population, sample_from_prior
from tamis.bayes.networks import Conv1d, Dense
from tamis.bayes.prior import SIGN, Prior
from tamis.bayes.space import StructurePrior
from tamis.bayes.target import Rounds, Target
from tamis.bayes.xnor import Xnor

PRIOR = Prior(0.5, 3.0)


def test_jumps_are_in_detailed_balance() -> None:
    space = Lines([1, 2, 3], SIGN, [0.5, 0.2, 0.3])
    target = Target(space, PRIOR, some_rounds(3, 4), 0.8)
    population = sign_states(target, 5)
    after, mean = jump(target, population, seeded(6))
    assert 0 < mean < 1
    offsets = np.array([0, 2, 6])

    def states(of: Population) -> np.ndarray:
        found = np.zeros(MANY, dtype=np.int64)
        for number, places in of.groups():
            signs = of.latent[places, : space.structures[number].filters]
            found[places.numpy()] = offsets[number] + numbered(signs)
        return found

    assert flows_are_even(states(population), states(after))
    for number, places in after.groups():
        width = space.structures[number].filters
        assert torch.allclose(after.energy[places], target.energy(number, after.latent[places, :width]))
        assert not bool(after.latent[places, width:].any())


@pytest.mark.parametrize(
    "space",
    [
        Dense((1,), 2, [1, 2, 3], [1, 2], structure_prior=StructurePrior(alpha=[0.2, 0.5, 0.3])),
        Conv1d((1, 4), 2, [2, 3], [1], [1, 2]),
        Xnor((2,), 2, [3, 4], [1, 2], structure_prior=StructurePrior(beta=[0.7, 0.3])),
    ],
    ids=["dense", "conv1d", "xnor"],
)
def test_jumps_keep_the_prior(space: Dense) -> None:
    """Coordinates stay normal, and structures as likely as they were."""
    target = Target(space, PRIOR, Rounds(), 1.0)
    before = sample_from_prior(space, PRIOR, MANY, seeded(7))
    after, mean = jump(target, before, seeded(8))
    assert mean > 0.1
    assert flows_are_even(before.structures.numpy(), after.structures.numpy())
    for number, places in after.groups():
        structure = space.structures[number]
        share = len(places) / MANY
        assert abs(share - space.probabilities[structure]) < 4 * math.sqrt(share / MANY)
        normal = after.latent[places, : space.count(structure)][:, space.kinds(structure) != SIGN]
        worst = min(kstest(column.numpy(), "norm").pvalue for column in normal.T)
        assert worst > 1e-3 / (normal.shape[1] * len(space.structures))


def test_jumps_change_nothing_that_they_are_given() -> None:
    space = Xnor((2,), 2, [3], [1, 2])
    target = Target(space, PRIOR, some_rounds(2, 2), 0.5)
    before = sample_from_prior(space, PRIOR, 20, seeded())
    structures, latent, energy = before.structures.clone(), before.latent.clone(), before.energy.clone()
    jump(target, before, seeded(1))
    assert torch.equal(before.structures, structures)
    assert torch.equal(before.latent, latent) and torch.equal(before.energy, energy)


def test_a_lone_structure_stays() -> None:
    target = Target(Lines([2], SIGN), PRIOR, some_rounds(2, 2), 0.5)
    population = sign_states(target, 0)
    after, mean = jump(target, population, seeded())
    assert mean == 1 and torch.equal(after.latent, population.latent)
