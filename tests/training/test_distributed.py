"""Two processes over gloo against one: the same steps, the same figures, the same files."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import ddp_worker
import pytest
import torch
import torch.distributed as dist
from ddp_worker import RUNS, masks, result, trained
from torchrun import forked_teams, team_of

from tamis.progress import Progress
from tamis.training import Settings, load_data, train
from tamis.training.checkpoint import read_checkpoint
from tamis.training.distributed import Team, join_team, training_device

WORKER = Path(ddp_worker.__file__)
SECONDS = 120

IN_A_DIRECTORY_OF_ITS_OWN = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from tamis.errors import InvalidInput
from test_distributed import begin_training
folder, rank = Path(sys.argv[2]), os.environ["RANK"]
try:
    begin_training(folder / rank)
except InvalidInput as error:
    (folder / f"{rank}.txt").write_text(str(error))
torch.distributed.barrier()
"""


def results(folder: Path, name: str) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{name}_{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every training of the worker, by two processes; one of them after these processes were killed."""
    folder = tmp_path_factory.mktemp("two_processes")
    log = tmp_path_factory.mktemp("log") / "log.txt"
    with forked_teams(log, seconds=SECONDS) as team:
        killed = team(WORKER, folder, "broken off", KILL_AFTER="2")
        checkpoint = read_checkpoint(folder / "broken off")
        assert -signal.SIGKILL in killed and not list(folder.glob("*.pt")), log.read_text()
        assert checkpoint is not None and checkpoint.epoch == 2, log.read_text()
        assert team(WORKER, folder, *RUNS) == [0, 0], log.read_text()
    return folder


@pytest.mark.slow
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


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of threads here")
@pytest.mark.parametrize("rank", [0, 1])
def test_no_thread_of_the_group_is_left_to_abort_a_process_that_ends(folder: Path, rank: int) -> None:
    left = (folder / f"threads_{rank}.txt").read_text().splitlines()
    assert left and not [name for name in left if "gloo" in name]


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


# -- where they begin ----------------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


def begin_training(directory: Path, stop_after: int = 9) -> None:
    def listener(now: Progress) -> None:
        if now.done == stop_after:
            raise Stopped

    data = load_data("digits:train[:30]")
    train(ddp_worker.plain(), data, Settings(epochs=5), directory=directory, progress=listener)


@pytest.mark.slow
def test_processes_at_different_epochs_all_refuse_to_go_on(tmp_path: Path) -> None:
    """After epochs 1, 2 and 3 the middle one is at the mean of them all."""
    for rank in range(3):
        with pytest.raises(Stopped):
            begin_training(tmp_path / str(rank), stop_after=rank + 1)
    script = tmp_path / "script.py"
    script.write_text(IN_A_DIRECTORY_OF_ITS_OWN)
    finished = team_of(
        3, Path(__file__).parent, tmp_path, script=script, seconds=SECONDS, PYTHONPATH=os.pathsep.join(sys.path)
    )
    assert finished.returncode == 0, finished.stdout
    for rank in range(3):
        said = (tmp_path / f"{rank}.txt").read_text()
        assert f"process {rank} of 3 would go on after epoch {rank + 1}, but the team's are 1 to 3" in said


@pytest.mark.slow
def test_all_of_a_team_are_refused_where_another_training_is_at_work(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IN_A_DIRECTORY_OF_ITS_OWN)
    told = list[str]()

    def listener(now: Progress) -> None:
        if now.done == 1:
            finished = team_of(
                2, Path(__file__).parent, tmp_path, script=script, seconds=SECONDS, PYTHONPATH=os.pathsep.join(sys.path)
            )
            assert finished.returncode == 0, finished.stdout
            told.extend((tmp_path / f"{rank}.txt").read_text() for rank in range(2))

    data = load_data("digits:train[:30]")
    train(ddp_worker.plain(), data, Settings(epochs=5), directory=tmp_path / "0", progress=listener)
    assert len(told) == 2 and all("another training is at work in" in said for said in told)


def test_extremes_of_one_are_its_own() -> None:
    assert Team(torch.device("cpu")).extremes(7) == (7, 7)


def no_gpu_may_be_touched() -> int:
    raise AssertionError("asked for the current GPU, which takes memory on it")


def test_under_torchrun_each_process_takes_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", no_gpu_may_be_touched)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert join_team(torch.device("cuda")).device == torch.device("cuda:3")
    assert join_team(torch.device("cuda:1")).device == torch.device("cuda:1")
    assert join_team(torch.device("cpu")).device == torch.device("cpu")


def test_alone_cuda_is_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert join_team(torch.device("cuda")).device == torch.device("cuda:2")


@pytest.mark.parametrize(
    ("local_rank", "asked", "expected"),
    [
        (None, None, "cuda:0"),
        (None, "cpu", "cpu"),
        ("3", None, "cuda"),  # the GPU that the model is on is that of all of them
        ("3", "cuda:1", "cuda:1"),
        ("3", torch.device("cpu"), "cpu"),
    ],
)
def test_where_a_model_on_a_gpu_is_trained(
    local_rank: str | None, asked: str | torch.device | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    monkeypatch.setattr("tamis.training.distributed.device_of", lambda model: torch.device("cuda:0"))
    assert training_device(torch.nn.Linear(1, 1), asked) == torch.device(expected)
