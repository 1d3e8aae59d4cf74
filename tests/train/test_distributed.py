"""Two processes over gloo against one: the same steps, the same figures, the same files."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ddp_worker
import pytest
import torch
import torch.distributed as dist
from ddp_worker import RUNS, masks, result, trained

import tamis
from tamis.train.checkpoint import read_checkpoint
from tamis.train.distributed import Team

WORKER = Path(ddp_worker.__file__)
SECONDS = 120  # after which something hangs


def team_of(processes: int, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The worker under torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    variables = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*launcher, str(WORKER), *map(str, arguments)],
        env={**variables, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{processes} processes hang after {SECONDS} s:\n{output}")
    return subprocess.CompletedProcess(arguments, process.returncode, output)


def results(folder: Path, name: str) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{name}_{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every training of the worker, by two processes; one of them after these processes were killed."""
    folder = tmp_path_factory.mktemp("two_processes")
    killed = team_of(2, folder, "broken off", KILL_AFTER="2")
    checkpoint = read_checkpoint(folder / "broken off")
    assert killed.returncode != 0 and not list(folder.glob("*.pt")), killed.stdout
    assert checkpoint is not None and checkpoint.epoch == 2, killed.stdout
    finished = team_of(2, folder, *RUNS)
    assert finished.returncode == 0, finished.stdout
    return folder


@pytest.mark.parametrize("name", ["last batch uneven", "last batch of one", "masked"])
def test_two_processes_train_like_one(folder: Path, name: str) -> None:
    alone = result(trained(name))
    for together in results(folder, name):
        for parameter, value in alone["weights"].items():
            torch.testing.assert_close(together["weights"][parameter], value, rtol=1e-4, atol=1e-6, msg=parameter)
        for epoch, expected in zip(together["history"], alone["history"], strict=True):
            assert epoch == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_both_processes_end_with_the_same(folder: Path, name: str) -> None:
    first, second = results(folder, name)
    assert first["history"] == second["history"]
    for parameter, value in first["weights"].items():
        assert torch.equal(value, second["weights"][parameter]), parameter


def test_pruned_weights_stay_zero_in_both(folder: Path) -> None:
    for together in results(folder, "masked"):
        for name, mask in masks().items():
            assert torch.equal(together["weights"][name] != 0, mask)


def test_a_team_that_was_killed_goes_on_as_if_nothing_had_happened(folder: Path) -> None:
    for resumed, whole in zip(results(folder, "broken off"), results(folder, "whole"), strict=True):
        assert resumed["history"] == whole["history"]
        for parameter, value in whole["weights"].items():
            assert torch.equal(resumed["weights"][parameter], value), parameter


def test_a_process_group_of_the_callers_is_used_and_left_to_them(tmp_path: Path) -> None:
    alone = result(trained("last batch uneven"))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        joined = result(trained("last batch uneven"))
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
    assert joined["history"] == alone["history"]
    assert all(torch.equal(value, alone["weights"][name]) for name, value in joined["weights"].items())


@pytest.mark.parametrize(("examples", "size"), [(12, 4), (10, 4), (3, 4), (1, 3)])
def test_shares_are_the_batch(examples: int, size: int) -> None:
    batch = torch.arange(examples) + 100
    shares = [Team(torch.device("cpu"), rank, size).share(batch) for rank in range(size)]
    counted = [part for part, counts in shares if counts]
    assert torch.equal(torch.cat(counted), batch)
    assert max(map(len, counted)) - min(map(len, counted)) <= 1 and shares[0][1] == 1
    assert all(torch.equal(part, batch[:1]) for part, counts in shares if not counts)
