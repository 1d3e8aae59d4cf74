"""What a sweep finds on the digits: the front, its certificates, and how long it takes.

    python benchmarks/sweep.py [--store]

The file is the one at the top of docs/sweeps.md, read from that page, and run by the commands of the page in a folder
that is thrown away: `digits_cnn` is trained for 20 epochs, and 24 networks are made of it. Seconds are CPU seconds of
the sweep's process, with one thread: 24 networks, the front's certificates and pages, and the start of Python.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from measure import RESULTS, store

PAGE = RESULTS.parent / "sweeps.md"
MODEL = "tamis.training.models:digits_cnn"
TRAIN = (
    f"train {MODEL} --data digits:train --test digits:test --epochs 20 --directory out/dense -o out/dense.safetensors"
)
SWEEP = "sweep sweep.yaml -o out/sweep"
KEPT = ("trial", "point", "bytes", "accuracy", "disagreement", "front", "certificate")


def file_of_the_page() -> str:
    """The indented block that begins with the file's name."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index("    # sweep.yaml")
    end = lines.index("", begin)
    return textwrap.dedent("\n".join(lines[begin:end])) + "\n"


def tamis(command: str, folder: Path) -> dict[str, Any]:
    """What a command prints for machines."""
    done = subprocess.run(
        [sys.executable, "-m", "tamis", *command.split(), "--json"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cpu_seconds() -> float:
    """Of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure() -> dict[str, Any]:
    """Train, sweep, and keep what was found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sweep.yaml").write_text(file_of_the_page(), encoding="utf-8")
        trained = tamis(TRAIN, folder)
        before = cpu_seconds()
        found = tamis(SWEEP, folder)
        seconds = cpu_seconds() - before
    candidates = [{key: row[key] for key in KEPT if key in row} for row in found["candidates"]]
    return {
        "before": {"command": f"tamis {TRAIN}", "bytes": trained["bytes"], "right": trained["accuracy"]["test"]},
        "sweep": {
            "command": f"tamis {SWEEP}",
            "networks": len(candidates),
            "failed": len(found["failed"]),
            "compared on the test data": found["compared_on_test_data"],
            "CPU seconds": seconds,
        },
        "front": [row for row in candidates if row["front"]],
        "others": [row for row in candidates if not row["front"]],
    }


def report(figures: dict[str, Any]) -> None:
    """The front."""
    before, swept = figures["before"], figures["sweep"]
    print(f"before: {before['bytes']:,} bytes, {before['right']:.1%} right on the test data")
    print(f"{swept['networks']} networks, {swept['failed']} failed, {swept['CPU seconds']:.0f} CPU seconds; the front:")
    for row in figures["front"]:
        print(
            f"  {row['bytes']:>7,} bytes, {row['accuracy']:.1%} right and at most {row['disagreement']:.1%} different "
            f"on held-out data; certified at most {row['certificate']['disagreement']:.1%}   {row['point']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/sweep.json")
    arguments = parser.parse_args()
    figures = measure()
    report(figures)
    if arguments.store:
        print(f"\nstored in {store('sweep', figures)}")


if __name__ == "__main__":
    main()
