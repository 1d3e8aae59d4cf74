"""How long a user waits: for `tamis --help`, for the report of a ResNet-50, and for `tamis demo`.

    python benchmarks/startup.py [--store] [--rounds 5] [--only help report demo]

Each command runs in a process of its own; wall-clock seconds, the best of the rounds in which the commands take turns
(`tamis demo` runs once). Beside `tamis --help` stand an interpreter that does nothing and one that imports torch, which
tamis does not do before it must. The report is that of an untrained ResNet-50 (102 MB of floats), half pruned by
magnitude, certified on 16 random images: what is timed is `tamis.report` alone, with layers, costs and latencies.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import best_seconds, store

import tamis
from tamis.training.models import example_input, resnet50

ALLOWED = {"help": 0.3, "report": 5.0, "demo": 60.0}  # seconds


def process(*arguments: str, folder: Path) -> Callable[[], Any]:
    """A command of Python, ready to run."""
    told = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1])}
    command = [sys.executable, *arguments]
    return lambda: subprocess.run(command, cwd=folder, env=told, check=True, capture_output=True)


def start_up(rounds: int, folder: Path) -> dict[str, float]:
    """Seconds of `tamis --help` and of what it can be compared with."""
    commands = {
        "tamis --help": process("-m", "tamis", "--help", folder=folder),
        "python -c pass": process("-c", "pass", folder=folder),
        "python -c 'import torch'": process("-c", "import torch", folder=folder),
    }
    return best_seconds(commands, rounds)


def page(rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds and bytes of a report."""
    torch.manual_seed(0)
    net = tamis.trace(resnet50().eval(), example_input("resnet50"))
    tamis.prune(net, 0.5, by="magnitude").save(folder / "small.tamis")
    tamis.certify(net, folder / "small.tamis", torch.randn(16, 3, 224, 224)).save(folder / "small.json")
    path = folder / "report.html"
    best = best_seconds({"": lambda: tamis.report(folder / "small.json", path, original=net)}, rounds)
    return {"seconds": best[""], "bytes": path.stat().st_size, "threads": torch.get_num_threads()}


def demo(folder: Path) -> float:
    """Seconds of `tamis demo`."""
    start = time.perf_counter()
    process("-m", "tamis", "demo", folder=folder)()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/startup.json")
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts")
    parser.add_argument("--only", nargs="+", choices=list(ALLOWED), default=list(ALLOWED), help="measure these alone")
    options = parser.parse_args()
    if options.store and set(options.only) != set(ALLOWED):
        parser.error("--store needs all of it: leave out --only")
    figures: dict[str, Any] = {"allowed": ALLOWED}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "help" in options.only:
            figures["help"] = start_up(options.rounds, folder)
            for command, seconds in figures["help"].items():
                print(f"{command:28}{seconds:.3f} s")
        if "report" in options.only:
            figures["report"] = page(options.rounds, folder)
            made = figures["report"]
            print(f"{'report of a ResNet-50':28}{made['seconds']:.2f} s, {made['bytes']:,} bytes")
        if "demo" in options.only:
            figures["demo"] = {"seconds": demo(folder)}
            print(f"{'tamis demo':28}{figures['demo']['seconds']:.1f} s")
    if options.store:
        print(store("startup", figures))


if __name__ == "__main__":
    main()
