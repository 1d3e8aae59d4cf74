"""Scripts under torchrun, which end in time or are killed with all their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tamis


def team_of(
    processes: int, *arguments: object, script: Path, seconds: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A script under torchrun, one thread to each process; after so many seconds something hangs."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    variables = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*launcher, str(script), *map(str, arguments)],
        env={**variables, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{processes} processes hang after {seconds} s:\n{output}")
    return subprocess.CompletedProcess(arguments, process.returncode, output)
