"""Scripts by several processes, under torchrun or forked, which end in time or are killed with all their processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

import tamis

FORKED = Path(__file__).with_name("forked_team.py")


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


@contextmanager
def forked_teams(log: Path, *, seconds: int) -> Iterator[Callable[..., list[int]]]:
    """What runs a script by two processes as torchrun does, without importing torch anew for each of them.

    It returns the exit codes of both. What they print is in the log.
    """
    path = os.pathsep.join((str(Path(tamis.__file__).parents[1]), str(FORKED.parent)))
    with (
        log.open("w") as messages,
        subprocess.Popen(
            [sys.executable, str(FORKED)],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()

        def team(script: Path, *arguments: object, **environment: str) -> list[int]:
            process.stdin.write(json.dumps([environment, str(script), *map(str, arguments)]) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, f"{script} hangs after {seconds} s, or its processes failed:\n{log.read_text()}"
            return json.loads(line)

        try:
            yield team
        finally:
            process.stdin.close()
            process.wait()
            timer.cancel()
