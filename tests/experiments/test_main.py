"""The list of experiments, one of them run by its name, and what a mistake is answered with."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import RESULTS, __main__
from experiments.catalogue import EXPERIMENTS, NAMES, find_module, find_stored, list_experiments
from experiments.record import store
from tamis.errors import InvalidInput

ROOT = RESULTS.parents[1]


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_experiment_is_listed() -> None:
    """An experiment is a module of the package with a main of its own."""
    modules = [path for path in RESULTS.parent.glob("*.py") if path.stem != "__main__"]
    assert {path.stem for path in modules if "\ndef main(" in path.read_text()} == set(EXPERIMENTS)
    assert all(experiment.summary for experiment in list_experiments(RESULTS))


def test_what_is_stored_is_named_with_its_command(tmp_path: Path) -> None:
    said = {"command": "python -m experiments gpfq --full", "date": "2026-01-02", "gpu": None, "processor": "p"}
    (tmp_path / "gpfq.json").write_text(json.dumps({"environment": said, "figures": {}}))
    (tmp_path / "gpfq_speed.json").write_text(json.dumps({"environment": {**said, "command": "python benchmarks/x"}}))
    for name, text in (("other", "{}"), ("list", "[]"), ("odd", '{"environment": {"command": 5}}')):
        (tmp_path / f"gpfq_{name}.json").write_text(text)
    (found,) = find_stored("gpfq", tmp_path)
    assert (found.date, found.hardware, found.command) == ("2026-01-02", "p", said["command"])
    assert find_stored("xnor", tmp_path) == ()
    (tmp_path / "xnor.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"'.*xnor\.json' is not JSON"):
        find_stored("xnor", tmp_path)


def test_every_experiment_has_stored_figures() -> None:
    assert all(experiment.stored for experiment in list_experiments(RESULTS))


def test_names_may_have_either_dash() -> None:
    assert [find_module(name) for name in NAMES] == [find_module(module) for module in EXPERIMENTS] == list(EXPERIMENTS)


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    __main__.main(["list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(NAMES)
    __main__.main(["list"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES) and "python -m experiments NAME" in shown


def test_the_list_does_not_wait_for_torch() -> None:
    program = "import sys; from experiments.__main__ import main; main(['list']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    __main__.main(arguments)
    shown = capsys.readouterr().out
    assert "python -m experiments list" in shown and "phi-pruning" in shown


@pytest.fixture
def known_options(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands for an experiment: notes its options, prints a table, and stores where it is told to."""
    noted: list[str] = []

    def main(options: list[str]) -> None:
        noted.extend(options)
        print("a table for people")
        if "--results" in options:
            store(Path(options[options.index("--results") + 1]) / "gpfq.json", {"Φ": [1, 2]})

    monkeypatch.setattr(__main__, "import_module", lambda name: SimpleNamespace(main=main))
    return noted


def test_options_are_those_of_the_experiment(known_options: list[str]) -> None:
    __main__.main(["gpfq", "--only", "decay", "--full", "--device", "cuda"])
    assert known_options == ["--only", "decay", "--full", "--device", "cuda"]


def test_figures_alone_are_printed_for_programs(known_options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    __main__.main(["gpfq", "--json", "--full"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["gpfq"]["figures"] == {"Φ": [1, 2]}
    assert printed.err == "a table for people\n"
    assert known_options[:2] == ["--full", "--results"] and not Path(known_options[2]).exists()


@pytest.mark.slow
def test_a_part_is_run_and_its_figures_printed() -> None:
    finished = run_program("bounds", "--only", "table-7.1", "--json")
    assert finished.returncode == 0, finished.stderr
    (stored,) = json.loads(finished.stdout).values()
    assert list(stored["figures"]) == ["table-7.1"]
    assert stored["environment"]["command"] == "python -m experiments bounds --only table-7.1 --json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bonds"], "there is no experiment 'bonds'; there are phi-pruning, gpfq"),
        (["--only", "table-7.1"], "name an experiment before its options: phi-pruning, gpfq"),
        (["--json"], "name an experiment before its options: phi-pruning, gpfq"),
        (["gpfq", "--json", "--results=x"], "--json prints the figures instead of storing them"),
    ],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        __main__.main(arguments)


def test_a_mistake_ends_the_program_with_one_line() -> None:
    finished = run_program("bonds")
    assert finished.returncode == 2 and finished.stdout == ""
    assert finished.stderr.startswith("error: there is no experiment 'bonds'; there are")
    assert finished.stderr.count(os.linesep) == 1
    assert all(name in finished.stderr for name in NAMES)


def test_an_unknown_part_ends_the_program_with_one_line(
    failing_program: Callable[..., tuple[object, str, str]],
) -> None:
    status, shown, said = failing_program("bounds", "--only", "table-9")
    assert status == 2 and shown == ""
    assert said.startswith("error: argument --only: invalid choice: 'table-9'") and said.count("\n") == 1
    assert all(part in said for part in ("table-4.1", "l1inf"))
