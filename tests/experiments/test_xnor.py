"""The comparison of scales: what is trained, what is stored, what is shown."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import xnor
from experiments.xnor import FORMS, FULL, PARTS, REAL, ROWS, SHORT, SPARSE, Job, Plan, main, network, sort_rows
from tamis.binary import binarize, binary_layers
from tamis.training import Settings

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

STAGE = Settings(epochs=1, batch=64, optimizer="adamw", learning_rate=5e-3, weight_decay=0.0)
TINY = Plan("digits:train[:192]", "digits:test[:100]", (4, 8), STAGE, replace(STAGE, epochs=2), penalty=2e-2)


def test_the_network_halves_the_image_with_each_stage() -> None:
    for channels, size, widths in ((1, 28, (8, 16)), (3, 32, (4, 8, 16))):
        model = network(channels, size, widths)
        assert model(torch.zeros(2, channels, size, size)).shape == (2, 10)
        layers = binary_layers(binarize(model, example=torch.zeros(1, channels, size, size)))
        assert len(layers) == 2 * len(widths) - 1


def test_plans_are_of_all_data_and_of_few() -> None:
    assert list(FULL) == list(SHORT) == list(PARTS) == ["mnist", "cifar10"]
    for part in PARTS:
        assert FULL[part].data == f"{part}:train" and FULL[part].test == f"{part}:test"
        assert SHORT[part].data.startswith(f"{part}:train[:") and FULL[part].second.amp


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("xnor")


@pytest.fixture(scope="module")
def rows(root: Path) -> list[dict[str, Any]]:
    return [Job(row, TINY, root / "tiny", "cpu").run() for row in ROWS]


def test_every_row_has_its_figures(rows: list[dict[str, Any]]) -> None:
    assert [row["row"] for row in rows] == [REAL, *FORMS]
    assert all(0 <= row["accuracy"] <= 1 and row["seconds"] >= 0 for row in rows)
    by_name = {row["row"]: row for row in rows}
    scales = {FORMS[name]: by_name[name]["scales"] for name in FORMS if name != SPARSE}
    # convolutions of 4 channels on 8×8, and twice 8 channels on 4×4
    assert scales["analytic"] == 0 and scales["channel"] == 4 + 8 + 8
    assert scales["full"] == 4 * 64 + 16 * 16 and scales["spatial"] == 20 + 64 + 2 * 16
    assert scales["rank_one"] == by_name[SPARSE]["scales"] == 20 + 16 + 16
    assert {row["signs"] for row in rows[1:]} == {9 * (16 + 32 + 64)}
    assert by_name["XNOR-Net, mean |W|"]["penalty of scales"] == pytest.approx(0, abs=1e-3)
    assert by_name[SPARSE]["penalty of scales"] < by_name["α ⊗ β ⊗ γ"]["penalty of scales"]
    assert not math.isnan(by_name["α"]["accuracy with real weights"])


def test_what_is_trained_is_read(rows: list[dict[str, Any]], root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*.pt")}
    assert len(before) == 1 + 2 * len(FORMS)
    for name in ("α", REAL):
        again = Job(name, TINY, root / "tiny", "cpu").run()
        assert again["accuracy"] == next(row for row in rows if row["row"] == name)["accuracy"]
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*.pt")} == before


@pytest.fixture
def program(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The program with its rows done, the last ones first."""
    monkeypatch.setattr(xnor, "measure_rows", lambda *_: iter(rows[::-1]))

    def started(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["xnor.py", *map(str, arguments)])
        main()

    return started


def test_rows_are_stored_as_they_come_and_shown_in_order(
    program: Callable[..., None], rows: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program("--only", "cifar10", "--results", tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("\nThis is the short mode")
    lines = shown.splitlines()
    places = [next(i for i, line in enumerate(lines) if line.startswith(f"{name:22}")) for name in ROWS]
    assert places == sorted(places)
    program("--only", "mnist", "--results", tmp_path)
    stored = json.loads((tmp_path / "xnor_short.json").read_text())["figures"]
    assert list(stored) == ["mnist", "cifar10"]
    assert stored["cifar10"]["rows"] == json.loads(json.dumps(rows))
    assert stored["mnist"]["plan"] == json.loads(json.dumps(asdict(SHORT["mnist"])))


def test_a_run_that_dies_leaves_the_rows_that_were_done(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*_: object) -> Any:
        yield from rows[:2]
        raise KeyboardInterrupt

    monkeypatch.setattr(xnor, "measure_rows", dying)
    monkeypatch.setattr(sys, "argv", ["xnor.py", "--full", "--results", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        main()
    stored = json.loads((tmp_path / "xnor.json").read_text())["figures"]
    assert [row["row"] for row in stored["mnist"]["rows"]] == list(ROWS[:2])


def test_rows_are_sorted_as_the_table_has_them() -> None:
    assert [row["row"] for row in sort_rows([{"row": name} for name in ROWS[::-1]])] == list(ROWS)


def test_missing_data_ends_the_program_with_one_line(failing_program: Callable[..., tuple[object, str, str]]) -> None:
    status, _, said = failing_program("xnor", "--only", "mnist")
    assert status == 1
    assert said.startswith("error: there is no dataset 'mnist:train'") and said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_come_from_one_process_or_several(
    rows: list[dict[str, Any]], root: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setitem(SHORT, "mnist", TINY)
    (root / "mnist").exists() or (root / "mnist").symlink_to(root / "tiny")
    found = sort_rows(list(xnor.measure_rows("mnist", False, root, "cpu", workers)))
    assert [row["accuracy"] for row in found] == [row["accuracy"] for row in rows]
