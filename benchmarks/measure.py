"""What every benchmark needs: a clock that a busy machine does not disturb, and a place for its figures."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
sys.path.append(str(ROOT))  # for `experiments`, which no installation has

from experiments.record import store as store_record  # noqa: E402


def best_cpu_seconds(tasks: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least CPU seconds of one thread for each task, over rounds in which the tasks take turns."""
    assert torch.get_num_threads() == 1, "CPU time of one thread is only the whole time with one thread"
    return best_seconds(tasks, rounds, time.thread_time)


def best_seconds(
    tasks: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The least seconds of each task, over rounds in which the tasks take turns."""
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            start = clock()
            task()
            best[name] = min(best[name], clock() - start)
    return best


def best_seconds_reported(programs: dict[str, str], rounds: int) -> dict[str, float]:
    """The least seconds that each Python program prints, run in processes of its own that take turns."""
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(rounds):
        for name, program in programs.items():
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            best[name] = min(best[name], float(done.stdout))
    return best


def peak_memory(task: Callable[[], Any]) -> int:
    """How many bytes more than before the process holds at the worst moment of a task (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed before would be used again, and not be counted
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = _resident("VmRSS")
    result = task()
    peak = _resident("VmHWM")
    del result
    return peak - before


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def store(name: str, figures: Any) -> Path:
    """Write figures with their environment to docs/results."""
    store_record(RESULTS / f"{name}.json", figures)
    return RESULTS / f"{name}.json"
