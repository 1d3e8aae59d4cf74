"""These checks of a learner's state raise InvalidInput, naming an entry from which no learner can continue."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput

LARGEST = sys.float_info.max  # so that numbers are finite
ROUNDING = 1e-6  # by how much the sum of all weights may be off 1


def check_tensor(
    name: str,
    found: Any,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    least: float = -LARGEST,
    most: float = LARGEST,
) -> Tensor:
    """Copy a tensor of this shape and dtype, whose numbers lie from `least` to `most`.

    Example:
        >>> check_tensor("step", torch.zeros(3), (2,))
        Traceback (most recent call last):
        tamis.errors.InvalidInput: ... 'step' must be a tensor (2,) of torch.float64, got (3,) of torch.float32; ...
    """
    if not isinstance(found, Tensor):
        raise state_error(name, f"a tensor {shape} of {dtype}", f"a {type(found).__name__}")
    if found.dtype != dtype or tuple(found.shape) != shape:
        raise state_error(name, f"a tensor {shape} of {dtype}", f"{tuple(found.shape)} of {found.dtype}")
    # Negated as a whole, because NaN fails both comparisons and must count as beyond.
    beyond = int((~((found >= least) & (found <= most))).sum())
    if beyond:
        raise state_error(name, f"numbers from {least:g} to {most:g}", f"{beyond} of {found.numel()} that are not")
    # A copy, so that a learner does not share memory with the state that its caller may go on changing.
    return found.detach().clone()


def check_log_weights(name: str, found: Any, count: int) -> Tensor:
    """Copy the logarithms of `count` weights, which must sum to 1."""
    logs = check_tensor(name, found, (count,), least=-math.inf)
    total = float(logs.exp().sum())
    if not abs(total - 1) < ROUNDING:
        raise state_error(name, "logarithms of weights that sum to 1", f"a sum of {total:g}")
    return logs


def check_generator(name: str, found: Any) -> Tensor:
    """Copy the state of a generator, after a generator has accepted it."""
    # Tried on another generator: a state that is refused halfway must leave the learner's own as it was.
    trial = torch.Generator()
    usual = trial.get_state()
    state = check_tensor(name, found, tuple(usual.shape), usual.dtype).cpu()
    try:
        trial.set_state(state)
    except RuntimeError as error:
        raise state_error(name, "the state of a torch.Generator", f"what it does not take: {error!s:.100}") from error
    return state


def check_list(name: str, found: Any, count: int | None = None, why: str = "") -> list[Any]:
    """Return the items of a list; with a count, there must be that many, and `why` gives the reason."""
    if not isinstance(found, list | tuple):
        raise state_error(name, "a list", f"a {type(found).__name__}")
    if count is not None and len(found) != count:
        raise state_error(name, f"a list of {count}, {why}", f"one of {len(found)}")
    return list(found)


def check_number(name: str, found: Any, least: float = -LARGEST) -> float:
    """Return a finite number of at least `least`."""
    # bool is an int to Python: True would pass for the number 1.
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found <= LARGEST:
        raise state_error(name, f"a number from {least:g} to {LARGEST:g}", f"{found!r:.50}")
    return float(found)


def check_numbers(name: str, found: Any, count: int | None = None, why: str = "") -> list[float]:
    """Return a list of finite numbers, with arguments as for `check_list`."""
    items = check_list(name, found, count, why)
    return [check_number(f"{name}[{place}]", item) for place, item in enumerate(items)]


def check_whole(name: str, found: Any, most: float = math.inf) -> int:
    """Return a whole number from 0 to `most`."""
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= most:
        raise state_error(name, f"a whole number from 0 to {most:g}", f"{found!r:.50}")
    return found


def check_shares(name: str, found: Any) -> dict[str, float]:
    """Return numbers of at least 0, by name."""
    if not isinstance(found, Mapping):
        raise state_error(name, "numbers by name", f"{found!r:.50}")
    return {str(kind): check_number(f"{name}[{kind}]", share, least=0.0) for kind, share in found.items()}


def state_error(name: str, wanted: str, got: str) -> InvalidInput:
    """Return the error for an entry that has a wrong value."""
    advice = "take one that is as state_dict gave it"
    return InvalidInput(f"a learner cannot go on from this state: '{name}' must be {wanted}, got {got}; {advice}")
