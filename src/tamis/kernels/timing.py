"""How long computations take, side by side: they take turns, so that what slows a machine down slows all of them.

On a GPU a time is that of the device alone, by its events, with its cache emptied before each run; short computations
are recorded as a CUDA graph first, so that nothing waits for Python. On a CPU it is wall-clock time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tamis.errors import InvalidInput

FEWEST, MOST = 3, 50  # rounds
GRAPHED = 3e-4  # seconds below which Python would not be ahead of the device
CACHE = 64 * 2**20  # bytes to write over, where torch does not say how large a cache is
Tasks = Mapping[str, Callable[[], Any]]


def in_turns(tasks: Tasks, device: str | torch.device = "cpu", seconds: float = 0.2) -> dict[str, float]:
    """The median seconds of each task.

    Args:
        tasks: by name. Each is called once or twice more, to begin with.
        device: where they compute.
        seconds: that all rounds together take, about; there are 3 to 50 rounds.

    Example:
        >>> in_turns({"linear": lambda: layer(x), "product": lambda: other(x)}, "cuda")  # doctest: +SKIP
        {'linear': 0.00021, 'product': 0.00013}
    """
    if not tasks:
        raise InvalidInput("there is nothing to time: no tasks were given")
    device = torch.device(device)
    if device.type == "cuda":
        with torch.cuda.device(device):
            return _on_gpu(tasks, seconds)
    for task in tasks.values():
        task()
    times = {name: [_wall(task)] for name, task in tasks.items()}
    for _ in range(_rounds(times, seconds) - 1):
        for name, task in tasks.items():
            times[name].append(_wall(task))
    return _medians(times)


def _wall(task: Callable[[], Any]) -> float:
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def _rounds(times: Mapping[str, list[float]], seconds: float) -> int:
    whole = sum(first for first, *_ in times.values())
    return min(max(int(seconds / max(whole, 1e-9)), FEWEST), MOST)


def _medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(each) for name, each in times.items()}


def _on_gpu(tasks: Tasks, seconds: float) -> dict[str, float]:
    scratch = torch.empty(2 * _cache_bytes(), dtype=torch.int8, device="cuda")
    for task in tasks.values():
        task()  # compiles what is to be compiled
    torch.cuda.synchronize()
    times = {name: [_read(_marked(task, scratch))] for name, task in tasks.items()}
    runs = {name: _graphed(task) if times[name][0] < GRAPHED else task for name, task in tasks.items()}
    for name in [name for name, run in runs.items() if run is not tasks[name]]:
        times[name] = [_read(_marked(runs[name], scratch))]
    marks = [(name, _marked(run, scratch)) for _ in range(_rounds(times, seconds) - 1) for name, run in runs.items()]
    for name, pair in marks:
        times[name].append(_read(pair))
    return _medians(times)


def _cache_bytes() -> int:
    return int(getattr(torch.cuda.get_device_properties(), "L2_cache_size", 0)) or CACHE


def _marked(run: Callable[[], Any], scratch: torch.Tensor) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    scratch.zero_()  # which takes long enough for the rest to be asked for meanwhile
    begin.record()
    run()
    end.record()
    return begin, end


def _read(pair: tuple[torch.cuda.Event, torch.cuda.Event]) -> float:
    pair[1].synchronize()
    return pair[0].elapsed_time(pair[1]) / 1e3


def _graphed(task: Callable[[], Any]) -> Callable[[], Any]:
    """The same computation as a CUDA graph; the task itself where that cannot be."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            task()
    except RuntimeError:  # something in it waits for the host
        torch.cuda.synchronize()
        return task
    return graph.replay
