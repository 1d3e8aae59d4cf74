"""What every benchmark needs: a clock that a busy machine does not disturb, and a record of where it ran."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def best_cpu_seconds(tasks: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least CPU seconds of one thread for each task, over rounds in which the tasks take turns."""
    assert torch.get_num_threads() == 1, "CPU time of one thread is only the whole time with one thread"
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            start = time.thread_time()
            task()
            best[name] = min(best[name], time.thread_time() - start)
    return best


def environment() -> dict[str, Any]:
    """The command, the day and the machine, to store beside figures."""
    return {
        "command": "python " + shlex.join([os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "processor": _processor(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def store(name: str, figures: Any) -> Path:
    """Write figures with their environment to docs/results, whole or not at all."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    target = RESULTS / f"{name}.json"
    part = target.with_suffix(".json.part")
    part.write_text(json.dumps({"environment": environment(), "figures": figures}, indent=2) + "\n")
    os.replace(part, target)
    return target


def _processor() -> str:
    """Model name and the widest vector instructions."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines.items()}
    flags = set(fields.get("flags", "").split())
    widest = next((name for name in ("avx512f", "avx2", "sse2") if name in flags), "unknown")
    return f"{fields.get('model name', platform.processor() or 'unknown')}, {os.cpu_count()} cores, {widest}"
