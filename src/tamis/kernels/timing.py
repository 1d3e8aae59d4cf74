"""Computations are timed in turns, so that whatever slows a machine down slows all of them.

On a GPU a time is that of the device alone, by its events, with its cache emptied before each run. The device is kept
waiting meanwhile, so that all of a run is asked for before it begins and nothing waits for Python, unless a run waits
for the device itself or asks for more than fits into its queue. On a CPU it is wall-clock time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from tamis.errors import InvalidInput

FEWEST, MOST = 3, 50  # rounds
AHEAD = 2.0  # times as long as Python takes to ask for a run, a device waits
LONGEST = 0.2  # seconds, and no longer
CYCLES = 10**6  # by which the device's clock is measured
CACHE = 64 * 2**20  # bytes to write over, where torch does not say how large a cache is
Tasks = Mapping[str, Callable[[], Any]]


def time_in_turns(tasks: Tasks, device: str | torch.device = "cpu", seconds: float = 0.2) -> dict[str, float]:
    """Return the median seconds of each task.

    Args:
        tasks: by name. Each is called once or twice more, to begin with.
        device: where they compute.
        seconds: that all rounds together take, about; there are 3 to 50 rounds.

    Example:
        >>> x = torch.randn(8, 64)
        >>> seconds = time_in_turns({"once": lambda: x @ x.T, "twice": lambda: x @ x.T @ x}, "cpu", seconds=0.01)
        >>> sorted(seconds)
        ['once', 'twice']
    """
    if not tasks:
        raise InvalidInput("there is nothing to time: no tasks were given")
    device = torch.device(device)
    if device.type == "cuda":
        with torch.cuda.device(device):
            return _time_on_gpu(tasks, seconds)
    for task in tasks.values():
        task()
    times = {name: [_measure_wall_seconds(task)] for name, task in tasks.items()}
    for _ in range(_count_rounds(sum(first for first, *_ in times.values()), seconds) - 1):
        for name, task in tasks.items():
            times[name].append(_measure_wall_seconds(task))
    return _compute_medians(times)


def _measure_wall_seconds(task: Callable[[], Any]) -> float:
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def _count_rounds(one: float, seconds: float) -> int:
    return min(max(int(seconds / max(one, 1e-9)), FEWEST), MOST)


def _compute_medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in times.items()}


def _time_on_gpu(tasks: Tasks, seconds: float) -> dict[str, float]:
    # Twice the cache, so that writing it leaves none of a run's tensors there: each run begins from memory.
    scratch = torch.empty(2 * _cache_bytes(), dtype=torch.int8, device="cuda")
    for task in tasks.values():
        task()  # compiles what is to be compiled
    torch.cuda.synchronize()
    rate = _measure_cycles_per_second()
    # The device sleeps while Python launches a run. Otherwise short runs would be timed by how fast Python issues them.
    waits = {name: int(rate * min(AHEAD * _launch_seconds(task), LONGEST)) for name, task in tasks.items()}

    def one_round() -> list[tuple[str, EventPair]]:
        return [(name, _record(task, scratch, waits[name])) for name, task in tasks.items()]

    began = time.perf_counter()
    times = {name: [_read_elapsed_seconds(marks)] for name, marks in one_round()}
    rounds = _count_rounds(time.perf_counter() - began, seconds)
    for name, marks in [each for _ in range(rounds - 1) for each in one_round()]:
        times[name].append(_read_elapsed_seconds(marks))
    return _compute_medians(times)


def _cache_bytes() -> int:
    return int(getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0)) or CACHE


def _launch_seconds(task: Callable[[], Any]) -> float:
    """Return the seconds that Python takes to launch a run, which the device may still be computing."""
    took = _measure_wall_seconds(task)
    torch.cuda.synchronize()
    return took


def _measure_cycles_per_second() -> float:
    """Measure the clock that `torch.cuda._sleep` counts."""
    nothing = torch.empty(0, device="cuda")
    # A sleep of known cycles against the device's own events.
    slept = [_read_elapsed_seconds(_record(lambda: torch.cuda._sleep(CYCLES), nothing)) for _ in range(2)]
    return CYCLES / min(slept)  # the first may have been slow to begin


class EventPair(NamedTuple):
    """An event pair holds the device's events before and after a run."""

    begin: torch.cuda.Event
    end: torch.cuda.Event


def _record(run: Callable[[], Any], scratch: torch.Tensor, wait: int = 0) -> EventPair:
    """Record a run after overwriting the cache and waiting for `wait` cycles."""
    marks = EventPair(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
    scratch.zero_()
    torch.cuda._sleep(wait)
    marks.begin.record()
    run()
    marks.end.record()
    return marks


def _read_elapsed_seconds(marks: EventPair) -> float:
    marks.end.synchronize()
    return marks.begin.elapsed_time(marks.end) / 1e3
