"""`tamis sweep` as a user calls it: what it prints and refuses; workers that are killed, on SQLite and PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest
from postgres import postgres_server
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner

import tamis
import tamis.reports.comparison
from tamis.cli.main import app
from tamis.sweeps.study import FIGURES, POINT, RETRY, SURPLUS

SPEC = """model: tamis.training.models:mlp
data: {train: "digits:train[:200]", test: "digits:test[:100]"}
recipe:
  steps:
    - {step: quantize, method: msq, c_alpha: 2.0, levels: {choices: [3, 8]}}
objectives: [bytes, disagreement]
trials: 9
"""
LONG = """name: long
model: tamis.training.models:digits_cnn
data: digits
recipe:
  steps:
    - {step: prune, amount: {low: 30%, high: 80%}}
    - {step: retrain, epochs: 6, learning_rate: 0.02, seed: {choices: [0, 1]}}
    - {step: quantize, levels: {choices: [3, 4]}, method: msq, c_alpha: 2.0}
objectives: [bytes, accuracy, disagreement]
trials: 5
"""
LIMIT = 240.0  # seconds for anything to happen


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)
    Path("s.yaml").write_text(SPEC)


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, list(map(str, arguments)), catch_exceptions=False)


def test_a_sweep_shows_what_it_tried() -> None:
    result = invoke("sweep", "s.yaml", "-o", "out")
    assert result.exit_code == 0, result.stderr
    assert "optuna-dashboard sqlite:///" in result.stderr and "candidates 2/2" in result.stderr
    assert "levels 3" in result.stdout and "each certificate pays for" in result.stdout
    assert "warning: the weights of 'tamis.training.models:mlp' were just initialised at random" in result.stderr
    certificates = [json.loads(path.read_text()) for path in Path("out/candidates").glob("*/certificate.json")]
    assert certificates and all(each["network"]["just_initialised"] for each in certificates)
    for rate, code, word in (("100%", 0, "PASS: a network"), ("0.01pt", 3, "FAIL: no network")):
        required = invoke("sweep", "s.yaml", "-o", "out", "--max-disagreement", rate)
        assert required.exit_code == code and required.stdout.startswith(f"{word} is certified to be as good as")
    again = invoke("sweep", "run", "s.yaml", "-o", "out", "--json")
    shown = json.loads(again.stdout)
    assert shown == json.loads(Path("out/results.json").read_text()) and len(shown["candidates"]) == 2
    assert Path("out/report.html").exists()


@pytest.mark.slow
def test_a_worker_tells_machines_what_it_tried() -> None:
    for tried in (["levels 3", "levels 8"], []):  # the second finds everything made
        found = json.loads(invoke("sweep", "worker", "s.yaml", "-o", "out", "--json").stdout)
        assert found["folder"] == "out"
        assert sorted(each.split(".")[-1] for each in found["tried here"]) == tried


@pytest.mark.slow
def test_nothing_within_the_limits_ends_with_1() -> None:
    Path("s.yaml").write_text(SPEC + "choose: {best: bytes, within: {bytes: 10}}\n")
    result = invoke("sweep", "s.yaml", "-o", "out")
    assert result.exit_code == 1
    assert "no candidate is within the limits: nothing was certified" in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "options", "part"),
    [
        ("trials: 9", "trials: no", {}, "s.yaml:7:9: trials: it should be a valid integer; got False"),
        ("[3, 8]", "[3, 8, 0]", {}, "s.yaml:5:59: steps[0].levels: it should be"),
        (
            "model: tamis.training.models:mlp\n",
            "",
            {},
            "s.yaml: 'model' is missing: a .pt2 file, or package.module:fac",
        ),
        ("models:mlp", "models:nlp", {}, "has no 'nlp'; did you mean mlp"),
        ("digits:test[", "digits:train[", {}, "samples in common"),
        ("", "", {"-o": "s.yaml"}, "-o must be a folder, and 's.yaml' is a file"),
        ("", "", {"--storage": "here"}, "--storage is the address of a database"),
        ("", "", {"--device": "tpu9"}, "--device must be cpu or cuda, got 'tpu9'"),
    ],
)
@pytest.mark.parametrize("command", ["run", "worker"])
def test_errors_are_one_line_and_leave_nothing(
    command: str, old: str, new: str, options: dict[str, str], part: str
) -> None:
    Path("s.yaml").write_text(SPEC.replace(old, new, 1) if old else SPEC)
    words = [word for pair in {"-o": "out", **options}.items() for word in pair]
    result = invoke("sweep", command, "s.yaml", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert [path.name for path in Path().iterdir()] == ["s.yaml"]


# -- kills -------------------------------------------------------------------------------------------------------------


def started(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tamis", "sweep", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_until(happens: Callable[[], Any], *processes: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LIMIT
    while not happens():
        for process in processes:
            assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)


def ended_well(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors


def is_at_work(folder: str) -> bool:
    """Whether a candidate is being made there: a step of it is done, another is not."""
    return any(Path(folder).glob("candidates/*/.tamis-compress/step_01_prune.tamis"))


def kill_at_work(process: subprocess.Popen[str], folder: str) -> None:
    """Kill it in the middle of a candidate, for certain: it is held still while one looks."""
    process.send_signal(signal.SIGSTOP)
    while not is_at_work(folder):
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: is_at_work(folder), process)
        process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def has_made(folder: str, count: int) -> bool:
    """Whether so many are made, and another one is being made."""
    return len([*Path(folder).glob("candidates/*/figures.json")]) == count and is_at_work(folder)


def study(url: str) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    address = url.replace("postgresql:", "postgresql+psycopg:")
    return optuna.load_study(
        study_name="long", storage=optuna.storages.RDBStorage(address, engine_kwargs={"poolclass": NullPool})
    )


def finished(url: str) -> dict[str, Any]:
    """What is finished, by point."""
    complete = [trial for trial in study(url).trials if trial.state.name == "COMPLETE"]
    found = {trial.user_attrs[POINT]: trial.user_attrs[FIGURES] for trial in complete}
    assert len(found) == len(complete)
    return found


def comparable(folder: str) -> list[Any]:
    """What a sweep found, whichever trial found it."""
    shown = json.loads(Path(folder, "results.json").read_text())
    assert shown["failed"] == []
    keys = ("point", "bytes", "sha256", "accuracy", "disagreement", "front", "certified", "certificate")
    return [shown["compared_on_test_data"], [[each.get(key) for key in keys] for each in shown["candidates"]]]


@pytest.mark.slow
def test_kills_change_nothing_on_sqlite() -> None:
    Path("s.yaml").write_text(LONG)
    ended_well(started("s.yaml", "-o", "whole"))
    for done in (1, 2, 4):  # it is killed in the middle of the one after that
        process = started("s.yaml", "-o", "out")
        wait_until(partial(has_made, "out", done), process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    ended_well(started("s.yaml", "-o", "out"))
    assert comparable("out") == comparable("whole")
    assert any(RETRY in trial.user_attrs for trial in study(f"sqlite:///{Path('out/sweep.db').resolve()}").trials)


@pytest.mark.slow
def test_two_workers_on_one_machine_one_of_which_is_killed() -> None:
    Path("s.yaml").write_text(LONG)
    url = f"sqlite:///{Path('out/sweep.db').resolve()}"
    victim = started("worker", "s.yaml", "-o", "out")
    wait_until(lambda: is_at_work("out"), victim)
    other = started("worker", "s.yaml", "-o", "out")
    wait_until(lambda: len(finished(url)) >= 2 and is_at_work("out"), victim, other)
    kill_at_work(victim, "out")
    before = finished(url)
    ended_well(other)
    ended_well(started("s.yaml", "-o", "out"))
    after = finished(url)
    assert before.items() <= after.items() and len(after) == 5
    assert len(json.loads(Path("out/results.json").read_text())["candidates"]) == 5


@pytest.mark.slow
def test_two_workers_on_postgresql_one_of_which_is_killed() -> None:
    """As on two machines: each has its own folder, and only the database in common."""
    Path("s.yaml").write_text(LONG)
    with postgres_server() as url:
        workers = {name: started("worker", "s.yaml", "-o", name, "--storage", url) for name in ("one", "two")}
        wait_until(lambda: is_at_work("one") and is_at_work("two"), *workers.values())
        kill_at_work(workers["one"], "one")
        before = finished(url)
        ended_well(workers["two"])
        trials = study(url).trials
        (again,) = [trial for trial in trials if RETRY in trial.user_attrs]
        assert trials[again.user_attrs[RETRY]].state.name == "FAIL" and again.state.name == "COMPLETE"
        assert again.user_attrs[POINT] == trials[again.user_attrs[RETRY]].user_attrs[POINT]
        assert before.items() <= finished(url).items() and len(finished(url)) == 5
        failed = [trial for trial in trials if trial.state.name == "FAIL" and SURPLUS not in trial.user_attrs]
        assert [trial.number for trial in failed] == [again.user_attrs[RETRY]]
        # The best are certified on a third machine, which has none of the files, and makes them again.
        ended_well(started("s.yaml", "-o", "three", "--storage", url))
    shown = json.loads(Path("three/results.json").read_text())
    certified = [each for each in shown["candidates"] if each["certified"]]
    assert len(shown["candidates"]) == 5 and shown["compared_on_test_data"] == len(certified) > 0
    for each in certified:
        assert Path(each["folder"], "small.tamis").stat().st_size == each["bytes"]
        elsewhere = [*Path().glob(f"t*/candidates/{Path(each['folder']).name}/small.tamis")]
        assert len({path.read_bytes() for path in elsewhere}) == 1


@pytest.mark.slow
def test_the_live_page_shows_a_sweep() -> None:
    assert invoke("sweep", "s.yaml", "-o", "out").exit_code == 0
    url = f"sqlite:///{Path('out/sweep.db').resolve()}"
    program = Path(sys.executable).with_name("optuna-dashboard")
    command = [str(program), url, "--host", "127.0.0.1", "--port", "18765"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def studies() -> Any:
        try:
            with urllib.request.urlopen("http://127.0.0.1:18765/api/studies", timeout=10) as answer:
                return json.load(answer)["study_summaries"]
        except OSError:
            return None

    try:
        wait_until(studies, process)
        (summary,) = studies()
        assert summary["study_name"] == "sweep" and len(summary["directions"]) == 2
    finally:
        process.terminate()
        process.communicate()
