"""Tuning measures once which backend is the fastest on this machine, and stores the result in the tuned table."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tamis.errors import InvalidInput
from tamis.kernels import time_in_turns
from tamis.kronecker.backends import BACKENDS
from tamis.kronecker.multiply import check_layout, multiply
from tamis.kronecker.pattern import Pattern, PatternLike, as_pattern
from tamis.kronecker.tuned_table import Tuned, machine, make_entry_key, write_entry

LARGEST_DENSE = 2**26  # entries of a matrix that is still multiplied with its zeros


def tune(
    pattern: PatternLike,
    batch: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    layout: str = "batch_first",
) -> Tuned:
    """Measure every backend that accepts, with torch's number of threads, and let the fastest be chosen from now on.

    It takes a second or two. The table is written whole or not at all; of two processes that tune at the same moment,
    one may lose what the other one wrote.

    Args:
        pattern, dtype, layout: as of `tamis.kronecker.multiply`.
        batch: the number of vectors.
        device: where they are multiplied.

    Example:
        >>> tune((1, 192, 48, 2), 256).forward  # doctest: +SKIP
        'cpu'
    """
    pattern, device = as_pattern(pattern), torch.device(device)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidInput(f"batch must be a whole number ≥ 1, got {batch!r}")
    if not dtype.is_floating_point:
        raise InvalidInput(f"tune measures with real numbers, got {dtype}")
    tasks = {training: _make_tasks(pattern, batch, dtype, device, layout, training) for training in (False, True)}
    seconds = {"forward": time_in_turns(tasks[False], device), "training": time_in_turns(tasks[True], device)}
    forward, training = (min(times, key=lambda name: times[name]) for times in seconds.values())
    tuned = Tuned(forward, training, seconds)
    write_entry(machine(device), make_entry_key(pattern, layout, dtype, batch), tuned)
    return tuned


def _make_tasks(
    pattern: Pattern, batch: int, dtype: torch.dtype, device: torch.device, layout: str, training: bool
) -> dict[str, Callable[[], Any]]:
    """Make one task for each backend that accepts, which is the product, or the product and its gradients."""
    check_layout(layout)
    sizes = [(batch, pattern.columns), (batch, pattern.rows)]
    shapes = sizes if layout == "batch_first" else [size[::-1] for size in sizes]
    draw = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=draw).to(device, dtype) for shape in shapes)
    weight = ((2 * torch.rand(pattern.shape, generator=draw) - 1) / math.sqrt(pattern.c)).to(device, dtype)
    x.requires_grad_(training), weight.requires_grad_(training)

    def task(name: str) -> Any:
        y = multiply(x, weight, pattern, layout, name)
        return torch.autograd.grad(y, (x, weight), gradient) if training else y

    large = pattern.rows * pattern.columns > LARGEST_DENSE
    names = [name for name, backend in BACKENDS.items() if not backend.accepts(x, weight, pattern, layout)]
    return {name: partial(task, name) for name in names if not (large and name == "dense")}
