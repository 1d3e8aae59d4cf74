"""The table of what was measured: written whole, read once, and believed only where it was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tamis.cli.doctor import _describe_findings, collect_findings
from tamis.errors import InvalidInput
from tamis.kernels import dispatch
from tamis.kronecker import tuned_table, tuning
from tamis.kronecker.backends import BACKENDS
from tamis.kronecker.choice import choose_backend
from tamis.kronecker.layer import KroneckerLinear
from tamis.kronecker.multiply import multiply
from tamis.kronecker.pattern import Pattern
from tamis.kronecker.tuning import tune

PATTERN = Pattern(2, 3, 4, 2)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TAMIS_CACHE", str(tmp_path / "cache"))
    tuned_table.read_table.cache_clear()
    yield tmp_path / "cache" / "kronecker.json"
    tuned_table.read_table.cache_clear()


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What the clock will say of every backend; those that are not named are slow."""
    said: dict[str, float] = {}

    def time_in_turns(tasks: dict[str, Any], device: torch.device) -> dict[str, float]:
        for task in tasks.values():
            task()
        return {name: said.get(name, 1.0) for name in tasks}

    monkeypatch.setattr(tuning, "time_in_turns", time_in_turns)
    return said


def drawn(batch: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.ones(batch, PATTERN.columns, dtype=dtype), torch.ones(PATTERN.shape, dtype=dtype)


def choice(batch: int = 5, dtype: torch.dtype = torch.float32) -> str:
    return choose_backend(*drawn(batch, dtype), PATTERN, "batch_first")[0].name


def test_the_fastest_is_remembered_and_chosen(cache: Path, times: dict[str, float]) -> None:
    default = choice()
    times["reference"] = 0.5
    tuned = tune((2, 3, 4, 2), 5)
    assert tuned.forward == tuned.training == "reference" and tuned.seconds["forward"]["reference"] == 0.5
    assert choice() == "reference" != default
    x, weight = drawn()
    y, why = multiply(x, weight, PATTERN, explain=True)
    assert why == f"reference: the fastest for (2, 3, 4, 2) when it was tuned here, in {cache}"
    assert torch.equal(y, torch.full((5, 12), 4.0))
    assert tuned_table.entries() == (1, 1)


def test_training_is_measured_apart(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    def time_in_turns(tasks: dict[str, Any], device: torch.device) -> dict[str, float]:
        gradients = isinstance(next(iter(tasks.values()))(), tuple)
        return {name: 0.5 if name == ("bmm" if gradients else "reference") else 1.0 for name in tasks}

    monkeypatch.setattr(tuning, "time_in_turns", time_in_turns)
    tune(PATTERN, 5)
    x, weight = drawn()
    assert choice() == "reference"
    assert choose_backend(x, weight.requires_grad_(), PATTERN, "batch_first")[0].name == "bmm"
    with torch.no_grad():
        assert choose_backend(x, weight, PATTERN, "batch_first")[0].name == "reference"


def test_an_entry_counts_for_what_was_measured_alone(times: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    default = choice()
    times["reference"] = 0.5
    tune(PATTERN, 5)
    assert [choice(batch) == "reference" for batch in (0, 1, 4, 5, 8, 9)] == [False, False, False, True, True, False]
    assert choice(dtype=torch.float64) != "reference"
    x, weight = drawn()
    assert choose_backend(x.T, weight, PATTERN, "batch_last")[0].name != "reference"
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert choice() == default and tuned_table.entries() == (0, 1)


def test_compiled_and_exported_networks_do_not_look_at_it(times: dict[str, float]) -> None:
    times["reference"] = 0.5
    tune((1, 3, 3, 2), 4)
    layer = KroneckerLinear([(1, 3, 3, 2)])
    exported = torch.export.export(layer, (torch.ones(4, 6),))
    assert "aten.bmm.default" in {str(node.target) for node in exported.graph.nodes}


def test_entries_are_added_and_replaced(cache: Path, times: dict[str, float]) -> None:
    tune(PATTERN, 5)
    tune(PATTERN, 64)
    times["dense"] = 0.1
    tune(PATTERN, 5)
    content = json.loads(cache.read_text())
    ((machine, of_machine),) = content["machines"].items()
    assert content["format"] == 1 and machine == tuned_table.machine(torch.device("cpu"))
    assert {key: entry["forward"] for key, entry in of_machine.items()}[
        "(2, 3, 4, 2), batch_first, float32, 8"
    ] == "dense"
    assert len(of_machine) == 2 and list(cache.parent.iterdir()) == [cache]


def test_a_backend_that_is_gone_or_refuses_is_not_chosen(
    cache: Path, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    default = choice()
    times["reference"] = 0.5
    tune(PATTERN, 5)
    others = {name: way for name, way in BACKENDS.items() if name != "reference"}
    monkeypatch.setattr("tamis.kronecker.choice.BACKENDS", others)
    assert choice() == default
    cache.write_text(cache.read_text().replace('"reference"', '"triton"'))
    tuned_table.read_table.cache_clear()
    assert choice() == default


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"format": 2, "machines": {}}',
        '{"format": 1}',
        '{"format": 1, "machines": []}',
        '{"format": 1, "machines": {"x": {"y": {"forward": 3, "training": "bmm"}}}}',
        '{"format": 1, "machines": {"x": {"y": 3}}}',
        b"\xff\xfe",
    ],
)
def test_a_table_that_is_broken_is_said_once_and_written_anew(
    cache: Path, times: dict[str, float], content: str | bytes
) -> None:
    default = choice()
    cache.parent.mkdir()
    cache.write_bytes(content if isinstance(content, bytes) else content.encode())
    tuned_table.read_table.cache_clear()
    with pytest.warns(UserWarning, match=r"the tuned table .*kronecker\.json is not used: .*; delete it, or let"):
        assert choice() == default
    assert choice() == default  # a second warning would be an error
    with pytest.warns(UserWarning, match="is not used"):
        tune(PATTERN, 5)
    assert tuned_table.entries() == (1, 1)


def test_where_the_table_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TAMIS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuned_table.file() == tmp_path / ".cache" / "tamis" / "kronecker.json"


def test_it_measures(cache: Path) -> None:
    tuned = tune((1, 2, 3, 2), 3, torch.float64, layout="batch_last")
    assert (
        set(tuned.seconds["forward"]) == set(tuned.seconds["training"]) >= {"reference", "bmm", "elementwise", "dense"}
    )
    assert "cpu" not in tuned.seconds["forward"]  # which does not multiply float64
    assert tuned.forward in BACKENDS and min(tuned.seconds["training"].values()) > 0 and cache.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PATTERN, 0), "batch must be a whole number ≥ 1, got 0"),
        ((PATTERN, 2.5), "batch must be a whole number"),
        (((1, 2), 4), "four whole numbers"),
        ((PATTERN, 4, torch.int32), "tune measures with real numbers, got torch.int32"),
        ((PATTERN, 4, torch.float32, "cpu", "middle"), "layout must be one of"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        tune(*arguments)


def test_doctor_says_where_it_is_and_which_kernel_runs(
    cache: Path, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAMIS_KERNEL", raising=False)
    found = collect_findings()
    assert found["kronecker_tuned"] == {"file": str(cache), "exists": False, "here": 0, "everywhere": 0}
    assert _describe_findings(found)["tuned"] == f"nothing yet; tamis kronecker bench --tune writes {cache}"
    name, reason = dispatch.kronecker_kernel()
    assert found["kronecker_kernel"] == {"name": name, "reason": reason}
    assert _describe_findings(found)["Kronecker layers"] == reason
    tune(PATTERN, 5)
    assert _describe_findings(collect_findings())["tuned"] == f"1 entries for this processor, of 1 in {cache}"
    monkeypatch.setenv("TAMIS_KERNEL", "abacus")
    assert _describe_findings(collect_findings())["Kronecker layers"].startswith("cannot run: TAMIS_KERNEL=abacus")
