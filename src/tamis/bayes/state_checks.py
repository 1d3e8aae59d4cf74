"""What an entry of a learner's state must be; InvalidInput names one from which no learner can go on."""

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


def checked_tensor(
    name: str,
    found: Any,
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    least: float = -LARGEST,
    most: float = LARGEST,
) -> Tensor:
    """A copy of a tensor of this shape and dtype, whose numbers lie from `least` to `most`.

    Example:
        >>> checked_tensor("step", torch.zeros(3), (2,))
        InvalidInput: … 'step' must be a tensor (2,) of torch.float64, got (3,) of torch.float32
    """
    if not isinstance(found, Tensor):
        raise refused(name, f"a tensor {shape} of {dtype}", f"a {type(found).__name__}")
    if found.dtype != dtype or tuple(found.shape) != shape:
        raise refused(name, f"a tensor {shape} of {dtype}", f"{tuple(found.shape)} of {found.dtype}")
    beyond = int((~((found >= least) & (found <= most))).sum())
    if beyond:
        raise refused(name, f"numbers from {least:g} to {most:g}", f"{beyond} of {found.numel()} that are not")
    return found.detach().clone()


def checked_log_weights(name: str, found: Any, count: int) -> Tensor:
    """A copy of the logarithms of so many weights, which sum to 1."""
    logs = checked_tensor(name, found, (count,), least=-math.inf)
    total = float(logs.exp().sum())
    if not abs(total - 1) < ROUNDING:
        raise refused(name, "logarithms of weights that sum to 1", f"a sum of {total:g}")
    return logs


def checked_generator(name: str, found: Any) -> Tensor:
    """A copy of the state of a generator, which one was seen to take."""
    trial = torch.Generator()
    usual = trial.get_state()
    state = checked_tensor(name, found, tuple(usual.shape), usual.dtype).cpu()
    try:
        trial.set_state(state)
    except RuntimeError as error:
        raise refused(name, "the state of a torch.Generator", f"what it does not take: {error!s:.100}") from error
    return state


def checked_list(name: str, found: Any, count: int | None = None, why: str = "") -> list[Any]:
    """The items of a list, of so many where a count is given, and why it is that many."""
    if not isinstance(found, list | tuple):
        raise refused(name, "a list", f"a {type(found).__name__}")
    if count is not None and len(found) != count:
        raise refused(name, f"a list of {count}, {why}", f"one of {len(found)}")
    return list(found)


def checked_number(name: str, found: Any, least: float = -LARGEST) -> float:
    """A finite number of at least `least`."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found <= LARGEST:
        raise refused(name, f"a number from {least:g} to {LARGEST:g}", f"{found!r:.50}")
    return float(found)


def checked_numbers(name: str, found: Any, count: int | None = None, why: str = "") -> list[float]:
    """A list of finite numbers; arguments as of `checked_list`."""
    items = checked_list(name, found, count, why)
    return [checked_number(f"{name}[{place}]", item) for place, item in enumerate(items)]


def checked_whole(name: str, found: Any, most: float = math.inf) -> int:
    """A whole number from 0 to `most`."""
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= most:
        raise refused(name, f"a whole number from 0 to {most:g}", f"{found!r:.50}")
    return found


def checked_shares(name: str, found: Any) -> dict[str, float]:
    """Numbers of at least 0, by name."""
    if not isinstance(found, Mapping):
        raise refused(name, "numbers by name", f"{found!r:.50}")
    return {str(kind): checked_number(f"{name}[{kind}]", share, least=0.0) for kind, share in found.items()}


def refused(name: str, wanted: str, got: str) -> InvalidInput:
    """What is said of an entry that is something else."""
    advice = "take one that is as state_dict gave it"
    return InvalidInput(f"a learner cannot go on from this state: '{name}' must be {wanted}, got {got}; {advice}")
