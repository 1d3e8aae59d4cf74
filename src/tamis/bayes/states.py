"""A learner's state is read and checked as a whole before a learner takes any of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tamis.bayes.moves import SMALLEST_STEP, Population, StepSizes
from tamis.bayes.posterior import Posterior
from tamis.bayes.space import Space
from tamis.bayes.state_checks import (
    check_generator,
    check_list,
    check_log_weights,
    check_number,
    check_numbers,
    check_shares,
    check_tensor,
    check_whole,
    state_error,
)
from tamis.bayes.target import Rounds
from tamis.errors import InvalidInput

Round = tuple[Tensor, Tensor]
LEAST_CURVATURE = 0.5  # it is 1, but for rounding


@dataclass(frozen=True, eq=False)
class LearnerState:
    """A learner's state is everything that it continues from, copied.

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


def read_state(
    state: Mapping[str, Any], fresh: Posterior, copy_round: Callable[[Tensor, Tensor], Round]
) -> LearnerState:
    """Read a state; raise InvalidInput, naming the entry, if one does not fit.

    Args:
        state: as `OnlineLearner.state_dict` gives it, with all its entries.
        fresh: a posterior of the same space, particles and sampling, on the device that all goes to.
        copy_round: copies inputs and labels as the learner computes with them; InvalidInput for what it refuses.
    """
    rounds = _restore_rounds(state, copy_round)
    each = f"one for each of the {len(rounds)} rounds in 'drawn'"
    architectures = check_list("architectures", state["architectures"], len(rounds), each)
    return LearnerState(
        generator=check_generator("generator", state["generator"]),
        posterior=_restore_posterior(state, fresh),
        rounds=rounds,
        expected=check_numbers("expected", state["expected"], len(rounds), each),
        architectures=[
            check_numbers(f"architectures[{place}]", shares, len(fresh.space.structures), "one for each structure")
            for place, shares in enumerate(architectures)
        ],
        members=_restore_members(state, fresh, len(rounds)),
    )


def _restore_posterior(state: Mapping[str, Any], fresh: Posterior) -> Posterior:
    device, count = fresh.log_weights.device, len(fresh.space.structures)
    particles, width = fresh.population.latent.shape
    population = Population(
        check_tensor("structures", state["structures"], (particles,), torch.int64, 0, count - 1),
        check_tensor("latent", state["latent"], (particles, width)),
        check_tensor("energy", state["energy"], (particles,)),
    )
    step_sizes = StepSizes(
        check_tensor("step", state["step"], (count,), least=SMALLEST_STEP).cpu(),
        check_tensor("reserve", state["reserve"], (count,), least=0).cpu(),
        # Step sizes live on the CPU whatever the device: they are read number by number.
        check_tensor("curvature", state["curvature"], (count, width), least=LEAST_CURVATURE).cpu(),
    )
    return replace(
        fresh,
        population=population.to(device),
        log_weights=check_log_weights("log_weights", state["log_weights"], particles).to(device),
        step_sizes=step_sizes,
        log_normaliser=check_number("log_normaliser", state["log_normaliser"]),
        resampled=check_whole("resampled", state["resampled"]),
        accepted=check_shares("accepted", state["accepted"]),
    )


def _restore_rounds(state: Mapping[str, Any], copy_round: Callable[[Tensor, Tensor], Round]) -> Rounds:
    drawn = check_numbers("drawn", state["drawn"])
    each = f"one for each of the {len(drawn)} rounds in 'drawn'"
    inputs, labels = (check_list(name, state[name], len(drawn), each) for name in ("inputs", "labels"))
    pairs = []
    for number, (x, y) in enumerate(zip(inputs, labels, strict=True)):
        try:
            # As a round is checked when it is learnt: a state from a file deserves no more trust than a caller's
            # tensors.
            pairs.append(copy_round(x, y))
        except InvalidInput as error:
            raise state_error("inputs' and 'labels", "mini-batches", f"in round {number}: {error}") from error
    return Rounds([x for x, _ in pairs], [y for _, y in pairs], drawn)


def _restore_members(state: Mapping[str, Any], fresh: Posterior, rounds: int) -> list[tuple[int, Tensor]]:
    space, device = fresh.space, fresh.log_weights.device
    # One more than rounds: ŵ_{t+1} is drawn at the end of round t, and `predict` must give it again after loading.
    why = f"one for each of the {rounds} rounds in 'drawn', and one for the round to come"
    names = ("member_structures", "member_weights")
    numbers, weights = (check_list(name, state[name], rounds + 1, why) for name in names)
    return [
        _restore_member(space, place, *pair, device) for place, pair in enumerate(zip(numbers, weights, strict=True))
    ]


def _restore_member(space: Space, place: int, number: Any, weights: Any, device: torch.device) -> tuple[int, Tensor]:
    number = check_whole(f"member_structures[{place}]", number, len(space.structures) - 1)
    shape = (space.count(space.structures[number]),)
    return number, check_tensor(f"member_weights[{place}]", weights, shape).to(device)
