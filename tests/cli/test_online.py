"""`tamis online` as a user calls it: what it shows and writes, going on after an interruption, what it refuses."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

import tamis
from tamis.bayes import JOURNAL, LEAST_BOUND, RunSettings, find_experts, run_online
from tamis.bayes.journal import RoundJournal
from tamis.bayes.run import RECORDS_FILE, SETTINGS_FILE
from tamis.cli import online
from tamis.cli.main import app
from tamis.cli.online import PICTURE, SUMMARY, make_screen
from tamis.reports import line_panels

UNION = ("--layers", "1,2", "--filters", "2")
QUICK = ("--data", "graph", "--space", "graph", *UNION, "--rounds", 8, "--batch", 4, "--particles", 6, "--tau", 0.5)
ASKED = RunSettings("graph", "graph", 8, batch=4, particles=6, tau=0.5, layers=(1, 2), filters=(2,), subsample=32)


@pytest.fixture(autouse=True)
def quick_and_in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little training, and the words of a picture instead of the picture, which takes a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(online, "find_experts", lambda run: find_experts(run, steps=5))
    monkeypatch.setattr(online, "line_panels", lambda panels, path: path.write_text(repr(panels)))


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch, quick_and_in_an_empty_directory: None) -> None:
    """With pictures."""
    monkeypatch.setattr(online, "line_panels", line_panels)


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["online", *map(str, arguments)], catch_exceptions=False)


def run_command(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert all(line.startswith("learning ") for line in result.stderr.splitlines())
    return str(result.stdout)


def files(directory: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


def raising_after(rounds: int) -> Callable[..., None]:
    """`RoundJournal.update` that the user interrupts once so many rounds are learnt."""
    update = RoundJournal.update

    def interrupted(self: RoundJournal, *arguments: Any) -> None:
        if self.rounds == rounds:
            raise KeyboardInterrupt
        update(self, *arguments)

    return interrupted


def test_what_it_shows_and_writes() -> None:
    text = run_command(*QUICK)
    assert sorted(files("out/online")) == sorted([SETTINGS_FILE, RECORDS_FILE, JOURNAL, SUMMARY, PICTURE])
    told = json.loads(Path("out/online", SUMMARY).read_text())
    run = run_online(ASKED)
    assert told["loss"] == run.learner.regret.loss and told["error of the averaged prediction"] == run.error()
    assert told["bounds"][LEAST_BOUND]["value"] == run.bounds[-1]
    for part in (
        "graph, 90 examples, 3 classes",
        "2 architectures, 9 to 12 weights",
        "6 particles, λ 1, τ 0.5, seed 0; moves see 32 past rounds",
        "8 of 4 examples",
        "bound of that, Theorem 4.1",
        "saved out/online/summary.json, out/online/losses.svg",
    ):
        assert part in text
    rows = [line.split() for line in text.splitlines()]
    loss = told["loss"]
    assert ["networks", "drawn", "for", "each", "round", f"{loss:.1f}", f"{loss / 8:.3f}"] in rows
    for name, share in told["architectures"].items():
        assert [*name.split(), f"{share:.1%}"] in rows
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.usefixtures("pictures")
def test_the_picture() -> None:
    run_command(*QUICK)
    assert ElementTree.parse(f"out/online/{PICTURE}").getroot().tag.endswith("svg")


def test_json() -> None:
    told = json.loads(run_command(*QUICK, "--json", "-o", "new/run"))
    assert told.pop("files") == ["new/run/summary.json", "new/run/losses.svg"]
    assert told == json.loads(Path("new/run", SUMMARY).read_text())
    assert told["asked"]["layers"] == [1, 2] and told["asked"]["subsample"] == 32


def test_every_option_reaches_the_run() -> None:
    given = ("--data", "digits:test[:40]", "--space", "conv2d", "--rounds", 2, "--batch", 3, "--particles", 4)
    more = ("--lam", 0.5, "--tau", 0.2, "--seed", 7, "--layers", "2", "--filters", "1,3", "--sizes", "2", "--pool", 2)
    told = json.loads(run_command(*given, *more, "--subsample", 0, "--device", "cpu", "--json"))
    assert told["asked"] == {
        "data": "digits:test[:40]",
        "space": "conv2d",
        "rounds": 2,
        "batch": 3,
        "particles": 4,
        "lam": 0.5,
        "tau": 0.2,
        "seed": 7,
        "pool": 2,
        "layers": [2],
        "filters": [1, 3],
        "sizes": [2],
        "subsample": None,
        "spread": 0.5,
    }
    run = run_online(RunSettings("digits:test[:40]", "conv2d", 2, 3, 4, 0.5, 0.2, 7, 2, (2,), (1, 3), (2,), None))
    assert told["loss"] == run.learner.regret.loss


@pytest.mark.parametrize("rounds", [0, 5])
def test_an_interrupted_run_goes_on_to_the_same_files(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run_command(*QUICK, "-o", "whole")
    with monkeypatch.context() as patch:
        patch.setattr(RoundJournal, "update", raising_after(rounds))
        result = invoke(*QUICK, "-o", "broken")
    assert result.exit_code == 130
    assert "what is finished lies in broken, and the same command goes on from there:\n  tamis online " in result.stderr
    assert sorted(files("broken")) == sorted([SETTINGS_FILE, RECORDS_FILE, JOURNAL])  # nothing half-written
    begun = "8 of 4 examples, going on from what is in broken" in run_command(*QUICK, "-o", "broken")
    assert begun == (rounds > 0)
    assert files("broken") == files("whole")


def test_an_interruption_of_the_last_account_keeps_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(online, "find_experts", interrupted)
        result = invoke(*QUICK)
    assert result.exit_code == 130 and "what is finished lies in out/online" in result.stderr
    assert "saved" in run_command(*QUICK)


@pytest.mark.usefixtures("pictures")
def test_without_matplotlib_there_is_a_summary_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # makes importing it raise
    result = invoke(*QUICK)
    assert result.exit_code == 0 and "no picture was drawn: figures need matplotlib" in result.stderr
    assert "saved out/online/summary.json\n" in result.stdout and not Path("out/online", PICTURE).exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("--space", "conv2d"), "space conv2d does not take the numbers of nodes of 'graph': take one of graph"),
        (("--space", "nets"), "space must be one of dense"),
        (("--data", "nowhere"), "nowhere"),
        (("--layers", "1,two"), "--layers must be whole numbers with commas between, as 1,2,3; got '1,two'"),
        (("--rounds", 0), "rounds"),
        (("--batch", 0), "batch"),
        (("--particles", 1), "particles"),
        (("--lam", 0), "lam"),
        (("--tau", -1), "tau"),
        (("--seed", -1), "seed"),
        (("--subsample", 2), "subsample"),
        (("--pool", 2), "pool is for images"),
        (("--device", "abacus"), "--device must be cpu or cuda, got 'abacus'"),
    ],
)
def test_what_is_refused_leaves_nothing(changed: tuple[object, ...], message: str) -> None:
    result = invoke(*QUICK, *changed)
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1
    assert not Path("out").exists()


def test_a_run_that_failed_in_its_first_round_does_not_hold_its_directory() -> None:
    result = invoke(*QUICK, "--lam", 1e308)
    assert result.exit_code == 2 and "take a smaller lam" in result.stderr
    assert "going on" not in run_command(*QUICK)
    before = files("out/online")
    run_command(*QUICK, "-o", "whole")
    assert before == files("whole")


def test_another_run_in_the_directory_is_refused() -> None:
    run_command(*QUICK)
    before = files("out/online")
    result = invoke(*QUICK, "--lam", 0.5)
    assert result.exit_code == 2 and "'out/online' holds another run, with lam 1.0 and not 0.5" in result.stderr
    assert files("out/online") == before


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, ["jumps", "Langevin steps"]),
        ({"layers": (2,)}, ["Langevin steps"]),
        (
            {"data": "digits:test[:40]", "space": "xnor", "layers": (3,), "sizes": (3,), "rounds": 2},
            ["Langevin steps", "flips"],
        ),
    ],
    ids=["several structures", "one", "xnor"],
)
def test_every_kind_of_move_is_told_with_its_acceptance(changes: dict[str, Any], kinds: list[str]) -> None:
    told: list[dict[str, float]] = []
    run_online(
        replace(ASKED, lam=20.0, particles=20, **changes),
        listen=lambda learner: told.append(online._collect_figures(learner)),
    )
    assert list(told[0])[:2] == ["loss", "effective sample"]
    assert list(told[-1])[2:] == [f"{kind} accepted" for kind in kinds]
    assert all(0 <= share <= 1 for name, share in told[-1].items() if name.endswith("accepted"))


def test_the_screen() -> None:
    bar = Progress(auto_refresh=False)
    paper = Console(file=io.StringIO(), width=80)
    paper.print(make_screen(bar, {"loss": 0.5, "effective sample": 41.0}, {"1 layer": 0.75, "2 layers": 0.25}))
    assert isinstance(paper.file, io.StringIO)
    lines = [line.rstrip() for line in paper.file.getvalue().splitlines()]
    assert lines[-3:] == [
        "loss 0.5   effective sample 41",
        f"1 layer   {'━' * 18}  75%",
        f"2 layers  {'━' * 6}              25%",
    ]


# A shell that runs tests in the background has them, and all that they start, ignore Ctrl-C.
HEARING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("tamis", run_name="__main__", alter_sys=True)
"""


def started(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", HEARING, "online", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def held_between(first: int, last: int, *arguments: object) -> subprocess.Popen[str]:
    """A run that was stopped after so many rounds; begun anew where this process was too slow to stop it in time."""
    for _ in range(20):
        process, notes = started(*arguments, "-o", "broken"), Path("broken", RECORDS_FILE)

        def rounds(notes: Path = notes) -> int:
            return len(notes.read_text().splitlines()) if notes.exists() else 0

        while process.poll() is None and rounds() < first:
            time.sleep(0.002)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        if first <= rounds() < last:
            return process
        process.send_signal(signal.SIGCONT)
        process.communicate()
        shutil.rmtree("broken")
    raise AssertionError(f"no run could be held between {first} and {last} rounds")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_from_outside_goes_on_to_the_same_files(how: signal.Signals) -> None:
    longer = (*QUICK, "--rounds", 150)
    process = held_between(20, 100, *longer)
    process.send_signal(how)
    process.send_signal(signal.SIGCONT)
    _, stderr = process.communicate()
    if how == signal.SIGINT:
        assert process.returncode == 130 and "the same command goes on from there" in stderr
    for directory in ("broken", "whole"):
        process = started(*longer, "-o", directory)
        process.communicate()
        assert process.returncode == 0
    left = [path for path in Path("broken").iterdir() if path.suffix != ".part"]  # a kill may leave such
    assert {path.name: path.read_bytes() for path in left if path.suffix != ".snapshot"} == {
        name: content for name, content in files("whole").items() if not name.endswith(".snapshot")
    }
