"""What stands beside stored figures, and that they are stored whole or not at all."""

import json
import os
import platform
import runpy
import sys
from datetime import date
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.record import WIDTH, describe_environment, keep, store, write_json
from tamis.errors import InvalidInput

STORING = 'from experiments.record import store\nstore("figures.json", {"Φ": [1, 2.5]})\n'


def command(monkeypatch: pytest.MonkeyPatch, module: str | None, *argv: str) -> str:
    """The command of a process that runs a module, or what its arguments begin with."""
    main = ModuleType("__main__")
    main.__spec__ = None if module is None else ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", list(argv))
    return str(describe_environment()["command"])


def test_the_command_the_day_and_the_machine() -> None:
    before = date.today()
    found = describe_environment()
    assert list(found) == ["command", "date", "processor", "gpu", "torch", "python"]
    assert found["command"].startswith("python ")
    assert before <= date.fromisoformat(found["date"]) <= date.today()
    assert f", {os.cpu_count()} cores, " in found["processor"]
    assert found["gpu"] == (torch.cuda.get_device_name() if torch.cuda.is_available() else None)
    assert (found["torch"], found["python"]) == (torch.__version__, platform.python_version())


def test_the_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a fast one")
    assert describe_environment()["gpu"] == "a fast one"


def test_the_command_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(Path("experiments", "__main__.py").absolute())
    wanted = "python -m experiments phi-pruning --full"
    assert command(monkeypatch, "experiments.__main__", path, "phi-pruning", "--full") == wanted
    assert command(monkeypatch, "study.first", path, "--full") == "python -m study.first --full"


def test_the_command_of_a_script_is_written_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(Path("benchmarks", "paths.py").absolute())
    assert command(monkeypatch, None, path, "--store") == f"python {Path('benchmarks', 'paths.py')} --store"
    assert command(monkeypatch, None, "run.py") == "python run.py"


def test_arguments_are_written_as_a_shell_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "python run.py --data 'cifar10:train[:10]' 'a b'"
    assert command(monkeypatch, None, "run.py", "--data", "cifar10:train[:10]", "a b") == wanted


def test_an_interactive_session_has_no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, None, "") == "python"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("study.first", "python -m study.first --now"), ("study/first.py", "python study/first.py --now")],
    ids=["module", "script"],
)
def test_figures_stored_by_a_program_say_how_it_was_run(
    name: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "first.py").write_text(STORING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, "--now"])
    # As `python` runs them, which names the program in sys.modules["__main__"] and sys.argv, but in this process.
    if name.endswith(".py"):
        runpy.run_path(name, run_name="__main__")
    else:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    stored = json.loads((tmp_path / "figures.json").read_text())
    assert stored["environment"]["command"] == wanted
    assert stored["figures"] == {"Φ": [1, 2.5]}


def test_figures_are_stored_with_their_environment_in_a_new_folder(tmp_path: Path) -> None:
    figures = {"Φ-GP": {"0.1": 0.5}, "pairs": [(1, None), (2, True)]}
    path = tmp_path / "new" / "folder" / "figures.json"
    store(path, figures)
    store(str(path), figures)  # once more, in the place of the first
    stored = json.loads(path.read_text())
    assert list(stored) == ["environment", "figures"] and stored["environment"].keys() == describe_environment().keys()
    assert stored["figures"] == {"Φ-GP": {"0.1": 0.5}, "pairs": [[1, None], [2, True]]}
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("wrong", [{"weights": torch.zeros(2)}, {(1, 2): "a"}], ids=["a tensor", "a tuple as a name"])
def test_what_json_cannot_say_leaves_the_figures_that_were_there(wrong: Any, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    store(path, {"good": 1})
    before = path.read_bytes()
    with pytest.raises(TypeError):
        store(path, {"good": 2, "bad": wrong})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=50)
@given(values)
def test_figures_are_read_as_they_were_written(value: Any) -> None:
    assert json.loads(write_json(value)) == value


def test_numbers_fill_lines_and_what_fits_into_one_stands_in_it() -> None:
    rows = [{"c": 0.5, "losses": [0.25, 0.125]}] * 2
    figures = {"curve": [1 / 3] * 100, "rows": rows, "by c": {0.1: 1, None: 2}, "name": "x" * WIDTH}
    lines = write_json(figures).split("\n")
    assert lines[:2] == ["{", ' "curve": [']
    assert 100 / len([line for line in lines if "0.333" in line]) == 5  # numbers to a line
    assert ' "rows": [' + ", ".join([json.dumps(rows[0])] * 2) + '], "by c": {"0.1": 1, "null": 2},' in lines
    assert max(len(line) for line in lines if "xxx" not in line) <= WIDTH
    assert write_json(rows[0]) == json.dumps(rows[0])


def test_a_part_is_kept_beside_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    for part in ("second", "elsewhere", "first"):
        keep(path, part, {"Φ": part}, [part] if part == "elsewhere" else ["first", "second"])
    figures = json.loads(path.read_text())["figures"]
    assert [(part, found["Φ"]) for part, found in figures.items()] == [
        ("first", "first"),
        ("second", "second"),
        ("elsewhere", "elsewhere"),
    ]


@pytest.mark.parametrize("content", [b"", b'{"figures": {"fir', b"[1]", b"{}", b'{"figures": [1]}', b"\xff"])
def test_a_part_is_not_kept_in_a_damaged_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"figures\.json' is damaged or holds no figures by part \(.*move it away"):
        keep(path, "first", {"Φ": 1}, ["first"])
    assert path.read_bytes() == content


def test_a_full_disk_leaves_the_figures_that_were_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Path, text: str) -> None:
        self.write_bytes(text.encode()[:10])
        raise OSError("the disk is full")

    path = tmp_path / "figures.json"
    store(path, {"good": 1})
    before = path.read_bytes()
    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="full"):
        store(path, {"good": 2})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
