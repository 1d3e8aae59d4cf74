"""A learner's state, read and checked as a whole before a learner takes any of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tamis.bayes.moves import SMALLEST_STEP, Pace, Population
from tamis.bayes.posterior import Posterior
from tamis.bayes.space import Space
from tamis.bayes.state_checks import (
    checked_generator,
    checked_list,
    checked_log_weights,
    checked_number,
    checked_numbers,
    checked_shares,
    checked_tensor,
    checked_whole,
    refused,
)
from tamis.bayes.target import Rounds
from tamis.errors import InvalidInput

Round = tuple[Tensor, Tensor]
LEAST_CURVATURE = 0.5  # it is 1, but for rounding


@dataclass(frozen=True, eq=False)
class Stored:
    """What a learner goes on from: copies, all of them.

    Attributes:
        generator: the state of its generator.
        posterior: the particles.
        rounds: what was seen.
        expected: the mean loss of the particles, by round.
        architectures: the probabilities of structures, by round.
        members: the structure's number and the weights of what was drawn for each round, and for the one to come.
    """

    generator: Tensor
    posterior: Posterior
    rounds: Rounds
    expected: list[float]
    architectures: list[list[float]]
    members: list[tuple[int, Tensor]]


def stored(state: Mapping[str, Any], fresh: Posterior, kept: Callable[[Tensor, Tensor], Round]) -> Stored:
    """What a state holds; InvalidInput names the entry that does not fit.

    Args:
        state: as `OnlineLearner.state_dict` gives it, with all its entries.
        fresh: a posterior of the same space, particles and sampling, on the device that all goes to.
        kept: inputs and labels as the learner computes with them; InvalidInput for what it refuses.
    """
    rounds = _rounds(state, kept)
    each = f"one for each of the {len(rounds)} rounds in 'drawn'"
    architectures = checked_list("architectures", state["architectures"], len(rounds), each)
    return Stored(
        generator=checked_generator("generator", state["generator"]),
        posterior=_posterior(state, fresh),
        rounds=rounds,
        expected=checked_numbers("expected", state["expected"], len(rounds), each),
        architectures=[
            checked_numbers(f"architectures[{place}]", shares, len(fresh.space.structures), "one for each structure")
            for place, shares in enumerate(architectures)
        ],
        members=_members(state, fresh, len(rounds)),
    )


def _posterior(state: Mapping[str, Any], fresh: Posterior) -> Posterior:
    device, count = fresh.log_weights.device, len(fresh.space.structures)
    particles, width = fresh.population.latent.shape
    population = Population(
        checked_tensor("structures", state["structures"], (particles,), torch.int64, 0, count - 1),
        checked_tensor("latent", state["latent"], (particles, width)),
        checked_tensor("energy", state["energy"], (particles,)),
    )
    pace = Pace(
        checked_tensor("step", state["step"], (count,), least=SMALLEST_STEP).cpu(),
        checked_tensor("reserve", state["reserve"], (count,), least=0).cpu(),
        checked_tensor("curvature", state["curvature"], (count, width), least=LEAST_CURVATURE).cpu(),
    )
    return replace(
        fresh,
        population=population.to(device),
        log_weights=checked_log_weights("log_weights", state["log_weights"], particles).to(device),
        pace=pace,
        log_normaliser=checked_number("log_normaliser", state["log_normaliser"]),
        resampled=checked_whole("resampled", state["resampled"]),
        accepted=checked_shares("accepted", state["accepted"]),
    )


def _rounds(state: Mapping[str, Any], kept: Callable[[Tensor, Tensor], Round]) -> Rounds:
    drawn = checked_numbers("drawn", state["drawn"])
    each = f"one for each of the {len(drawn)} rounds in 'drawn'"
    inputs, labels = (checked_list(name, state[name], len(drawn), each) for name in ("inputs", "labels"))
    pairs = []
    for number, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        try:
            pairs.append(kept(x, y))
        except InvalidInput as error:
            raise refused("inputs' and 'labels", "mini-batches", f"in round {number}: {error}") from error
    return Rounds([x for x, _ in pairs], [y for _, y in pairs], drawn)


def _members(state: Mapping[str, Any], fresh: Posterior, rounds: int) -> list[tuple[int, Tensor]]:
    space, device = fresh.space, fresh.log_weights.device
    why = f"one for each of the {rounds} rounds in 'drawn', and one for the round to come"
    names = ("member_structures", "member_weights")
    numbers, weights = (checked_list(name, state[name], rounds + 1, why) for name in names)
    return [_member(space, place, *pair, device) for place, pair in enumerate(zip(numbers, weights, strict=True))]


def _member(space: Space, place: int, number: Any, weights: Any, device: torch.device) -> tuple[int, Tensor]:
    number = checked_whole(f"member_structures[{place}]", number, len(space.structures) - 1)
    shape = (space.count(space.structures[number]),)
    return number, checked_tensor(f"member_weights[{place}]", weights, shape).to(device)
