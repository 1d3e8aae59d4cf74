"""The list of experiments, and one of them run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tamis
from tamis.cli.reproduce import EXPERIMENTS, NAMES, experiments, stored_of
from tamis.errors import InvalidInput

PAPERS = Path(tamis.__file__).parent / "papers"
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def run_tamis(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tamis", *arguments], capture_output=True, text=True, check=False)


def test_every_experiment_is_listed() -> None:
    """An experiment is a module of tamis.papers that can be run."""
    runnable = {path.stem for path in PAPERS.glob("*.py") if '\nif __name__ == "__main__":' in path.read_text()}
    assert runnable == set(EXPERIMENTS)
    assert all(experiment.summary for experiment in experiments(RESULTS))


def test_what_is_stored_is_named_with_its_command(tmp_path: Path) -> None:
    said = {"command": "python -m tamis.papers.gpfq --full", "date": "2026-01-02", "gpu": None, "processor": "p"}
    (tmp_path / "gpfq.json").write_text(json.dumps({"environment": said, "figures": {}}))
    (tmp_path / "gpfq_speed.json").write_text(json.dumps({"environment": {**said, "command": "python benchmarks/x"}}))
    for name, text in (("other", "{}"), ("list", "[]"), ("odd", '{"environment": {"command": 5}}')):
        (tmp_path / f"gpfq_{name}.json").write_text(text)
    (found,) = stored_of("gpfq", tmp_path)
    assert (found.date, found.hardware, found.command) == ("2026-01-02", "p", said["command"])
    assert stored_of("xnor", tmp_path) == ()
    (tmp_path / "xnor.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match=r"'.*xnor\.json' holds no figures, for it is no JSON"):
        stored_of("xnor", tmp_path)


def test_the_list_for_machines() -> None:
    listed = json.loads(run_tamis("reproduce", "--json", "--results", str(RESULTS)).stdout)
    assert [entry["name"] for entry in listed] == list(NAMES)
    assert next(entry for entry in listed if entry["name"] == "gpfq")["stored"]


@pytest.mark.slow
def test_a_part_is_run_and_its_figures_printed() -> None:
    finished = run_tamis("reproduce", "bounds", "--only", "table-7.1", "--json")
    assert finished.returncode == 0, finished.stderr
    (stored,) = json.loads(finished.stdout).values()
    assert list(stored["figures"]) == ["table-7.1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bonds"], "there is no experiment 'bonds'; there are phi-pruning, gpfq"),
        (["--only", "table-7.1"], "say which experiment"),
        (["bounds", "--only", "table-9"], "invalid choice: 'table-9'"),
        (["bounds", "--json", "--", "--results=x"], "--json prints the figures instead of storing them"),
    ],
)
def test_bad_input(arguments: list[str], message: str) -> None:
    finished = run_tamis("reproduce", *arguments)
    assert (finished.returncode, message in finished.stderr) == (2, True), finished.stderr
