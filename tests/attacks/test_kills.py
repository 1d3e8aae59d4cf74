"""Runs that are killed at every touch of the file system, or in the middle of a write, and started again.

A forked child sends itself SIGKILL at its k-th event, for k = 1, 2, …; or the system ends it when a file grows past a
limit. Neither depends on how fast the machine is. What the same call then makes must be what an undisturbed one makes.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from attacks.attack_size import TIMES
from torch import Tensor, nn

import tamis
from tamis.training import Data, Settings, train

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.rmtree"}
MOST_KILLS = 14 * TIMES  # of one kind, in one run
Run = Callable[[Path], bytes]


def network() -> tuple[tamis.Network, nn.Module, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    data = torch.randn(40, 5)
    return tamis.trace(module, data[:2]), module, data


NET, MODULE, DATA = network()
IMPORTED = tamis.quantize, tamis.repair, np.ma  # now, or each child would import what they need


def quantize(folder: Path) -> bytes:
    """Layer by layer, with a journal."""
    small = tamis.quantize(NET, DATA, levels=3, c_alpha=2.0, directory=folder / "journal", progress=False)
    small.save(folder / "small.tamis")
    return (folder / "small.tamis").read_bytes()


def repair(folder: Path) -> bytes:
    """Of a pruned network, with a journal."""
    small = tamis.prune(NET, 0.5, by="magnitude")
    tamis.repair(NET, small, DATA, directory=folder / "journal", progress=False).save(folder / "small.tamis")
    return (folder / "small.tamis").read_bytes()


def retrain(folder: Path) -> bytes:
    """Three epochs, with a checkpoint after each."""
    labels = NET(DATA).argmax(1)
    settings = Settings(epochs=3, batch=16, learning_rate=0.01)
    result = train(MODULE, Data(DATA, labels, "drawn"), settings, directory=folder / "training", progress=False)
    return b"".join(value.numpy().tobytes() for value in result.model.state_dict().values())


def replace_file(folder: Path) -> bytes:
    """A small network's file takes the place of another one."""
    path = folder / "small.tamis"
    tamis.prune(NET, 0.5, by="magnitude").save(path)
    return path.read_bytes()


def compress(folder: Path) -> bytes:
    """A recipe of two steps with its certificate and its report, on shipped data."""
    recipe = {"steps": [{"step": "prune", "amount": "50%"}, {"step": "quantize", "levels": 3, "c_alpha": 2.0}]}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 10)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator))
    tamis.compress(model, recipe, data="digits", out=folder / "out", progress=False)
    said = json.loads((folder / "out" / "certificate.json").read_text())
    claims = json.dumps(said["claims"], sort_keys=True).encode()
    return (folder / "out" / "small.tamis").read_bytes() + claims


RUNS: list[Run] = [quantize, repair, retrain, replace_file]
SOME_SLOW = [(quantize, 7), *(pytest.param(run, MOST_KILLS, marks=pytest.mark.slow) for run in RUNS)]


class Ending(NamedTuple):
    """How a child ended, as `os.waitstatus_to_exitcode` says it, and the traceback of what it raised, if it did."""

    code: int
    raised: str


def in_a_child(work: Callable[[], Any]) -> Ending:
    """Run it in a forked process, and return how that ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # whatever it is, the parent must not go on twice
            # `format_exc` reads the sources of the traceback: below the folder of the run no source lies, so that this
            # makes no event. A traceback longer than a pipe holds would wait for a reader for ever, hence its end only.
            os.write(writing, traceback.format_exc()[-8000:].encode("utf-8", "replace"))
            os._exit(1)
    os.close(writing)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(reading, "rb") as raised:
        return Ending(code, raised.read().decode("utf-8", "replace"))


def at_each_event(folder: Path, act: Callable[[int], None]) -> None:
    """From now on and for good, call `act` with the number of each event below the folder: for children only."""
    seen = 0

    def count(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if name in EVENTS and str(folder) in str(arguments):
            seen += 1
            act(seen)

    sys.addaudithook(count)


def killed_at(event: int, run: Run, folder: Path) -> bool:
    """Whether the run was killed at its event of this number; it may have fewer."""

    def work() -> None:
        at_each_event(folder, lambda seen: os.kill(os.getpid(), signal.SIGKILL) if seen == event else None)
        run(folder)

    code, raised = in_a_child(work)
    assert code in (0, -signal.SIGKILL), f"{run.__name__} ended with {code} instead of being killed:\n{raised}"
    return code != 0


def ended_at(size: int, run: Run, folder: Path) -> bool:
    """Whether the system ended the run when a file of it grew past a size."""

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        run(folder)

    code, raised = in_a_child(work)
    assert code in (0, -signal.SIGXFSZ), f"{run.__name__} ended with {code} instead of by its limit:\n{raised}"
    return code != 0


def finish(run: Run, folder: Path) -> bytes:
    """Run it undisturbed, in a child as well: where there is a GPU, a process that trained can train in no child."""
    result = folder.with_name(f"{folder.name}.result")
    code, raised = in_a_child(lambda: result.write_bytes(run(folder)))
    assert code == 0, f"{run.__name__} ended with {code}, undisturbed as it was:\n{raised}"
    return result.read_bytes()


def spread(last: int, most: int) -> Iterator[int]:
    """Numbers from 1 to `last`: all, or `most` of them that lie evenly."""
    yield from sorted({1 + i * (last - 1) // max(1, min(most, last) - 1) for i in range(min(most, last))})


def count_events(run: Run, folder: Path) -> int:
    """How often the whole run touches the file system below its folder."""
    reading, writing = os.pipe()

    def work() -> None:
        at_each_event(folder, lambda seen: os.write(writing, b".") and None)
        run(folder)

    code, raised = in_a_child(work)
    assert code == 0, f"{run.__name__} ended with {code}, undisturbed as it was:\n{raised}"
    os.close(writing)
    with os.fdopen(reading, "rb") as events:
        return len(events.read())


@pytest.mark.parametrize(("run", "kills"), [*SOME_SLOW, pytest.param(compress, MOST_KILLS, marks=pytest.mark.slow)])
def test_a_killed_run_ends_as_an_undisturbed_one(run: Run, kills: int, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    events = count_events(run, whole)
    expected = finish(run, whole)
    for event in spread(events, kills):
        folder = tmp_path / f"killed{event}"
        folder.mkdir()
        assert killed_at(event, run, folder)
        assert finish(run, folder) == expected


@pytest.mark.parametrize(("run", "kills"), SOME_SLOW)
def test_a_run_that_is_ended_in_the_middle_of_a_write_ends_as_an_undisturbed_one(
    run: Run, kills: int, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    expected = finish(run, whole)
    largest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file())
    for size in spread(largest - 1, kills):
        folder = tmp_path / f"ended{size}"
        folder.mkdir()
        assert ended_at(size, run, folder)
        assert finish(run, folder) == expected


@pytest.mark.slow
@pytest.mark.parametrize("times", [2, 5])
def test_a_run_that_is_killed_again_and_again_ends_as_an_undisturbed_one(times: int, tmp_path: Path) -> None:
    for run in RUNS:
        whole, folder = tmp_path / f"{run.__name__}_whole", tmp_path / run.__name__
        whole.mkdir()
        folder.mkdir()
        expected = finish(run, whole)
        for number in range(times):
            killed_at(3 + 4 * number, run, folder)
        assert finish(run, folder) == expected


def test_a_file_that_is_replaced_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "small.tamis"
    new = replace_file(tmp_path)
    tamis.prune(NET, 0.9, by="magnitude").save(path)
    old = path.read_bytes()
    assert old != new
    for event in range(1, 50):
        if not killed_at(event, replace_file, tmp_path):
            break
        assert path.read_bytes() in (old, new)
    assert path.read_bytes() == new


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    def fail(folder: Path) -> bytes:
        raise OSError(f"no space for {folder.name}")

    for watch in (lambda: killed_at(1, fail, tmp_path), lambda: ended_at(10, fail, tmp_path)):
        with pytest.raises(AssertionError, match=r"fail ended with 1 (?s:.*), in fail(?s:.*)no space for"):
            watch()
    with pytest.raises(AssertionError, match=r"undisturbed as it was(?s:.*)no space for"):
        count_events(fail, tmp_path)
