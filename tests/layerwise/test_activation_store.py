"""Activations between two nodes: in files or in memory they are the same, and no file outlives the walk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tamis.layerwise.activation_store import ActivationStore, Values, count_bytes

CPU = torch.device("cpu")
EVERYTHING_IN_MEMORY = 2**40


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files of this test go."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def inputs(batches: int = 4) -> Iterator[Values]:
    for number in range(batches):
        x = torch.full((3, 2), float(number))
        yield {"x": (x, x)}


def passed_through(budget: int, passes: int = 4) -> list[Values]:
    """Some passes, in each of which something is added, dropped or changed in one of the networks."""
    with ActivationStore(inputs(), budget, CPU) as store:
        for turn in range(passes):
            for number, values in store:
                x, small = values["x"]
                y = x + number * turn
                values[f"y{turn}"] = (y, y) if turn < 2 else (y, small - turn)
                values["x"] = (y, y) if turn < 2 else (y, small * 2)
                values["size"] = (1000 + number, 1000 + number)
                both = (y[:1], y[1:])
                values["parts"] = (both, both)
                if turn == 2:
                    del values["y0"]
        return [dict(values) for _, values in store]


def flat(values: Values) -> list[object]:
    return [
        part
        for name in sorted(values)
        for value in values[name]
        for part in (value if isinstance(value, (tuple, list)) else [value])
    ]


@pytest.mark.parametrize("budget", [0, 1, 100, 200, 400])
def test_files_and_memory_give_the_same(budget: int) -> None:
    for found, expected in zip(passed_through(budget), passed_through(EVERYTHING_IN_MEMORY), strict=True):
        assert found.keys() == expected.keys()
        for a, b in zip(flat(found), flat(expected), strict=True):
            assert torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


@pytest.mark.parametrize("budget", [0, EVERYTHING_IN_MEMORY])
def test_what_both_networks_share_is_one_object(budget: int) -> None:
    """By that the walk knows that a node need not run twice; integers beyond 256 are objects, too."""
    with ActivationStore(inputs(), budget, CPU) as store:
        for number, values in store:
            size = 1000 + number
            parts = [torch.zeros(2), torch.ones(3)]
            values["size"], values["parts"] = (size, size), (parts, parts)
            values["apart"] = (torch.zeros(2), torch.zeros(2))
        for _ in range(2):
            for _, values in store:
                for name, (original, small) in values.items():
                    assert (original is small) is (name != "apart"), name


def test_batches_come_in_order_with_their_numbers() -> None:
    for budget in (0, 30, EVERYTHING_IN_MEMORY):
        with ActivationStore(inputs(), budget, CPU) as store:
            for _ in range(3):
                assert [(n, int(values["x"][0][0, 0])) for n, values in store] == [(n, n) for n in range(4)]


def test_inputs_are_taken_as_they_are_asked_for() -> None:
    taken: list[int] = []

    def noted() -> Iterator[Values]:
        for number, values in enumerate(inputs()):
            taken.append(number)
            yield values

    with ActivationStore(noted(), EVERYTHING_IN_MEMORY, CPU) as store:
        assert taken == []
        for number, _ in store:
            assert taken == list(range(number + 1))


def test_only_what_exceeds_the_budget_goes_to_files(folder: Path) -> None:
    x = next(inputs())["x"][0]
    with ActivationStore(inputs(), 2 * x.nbytes, CPU) as store:
        for _ in store:
            pass
        assert sorted(path.name for path in files(folder)) == ["2.pt", "3.pt"]
        for _, values in store:  # now they all fit
            values["x"] = (values["x"][0][:1],) * 2
    with ActivationStore(inputs(), EVERYTHING_IN_MEMORY, CPU) as store:
        for _ in store:
            pass
        assert not files(folder)


def test_memory_that_is_given_back_can_be_used_again(folder: Path) -> None:
    """However often batches are taken out and put back, what fits stays in memory."""
    x = next(inputs())["x"][0]
    with ActivationStore(inputs(), 4 * x.nbytes, CPU) as store:
        for _ in range(5):
            for _ in store:
                pass
        assert not files(folder)


def test_files_are_removed(folder: Path) -> None:
    with ActivationStore(inputs(), 0, CPU) as store:
        for _ in store:
            pass
        assert len(files(folder)) == 4
    assert not list(folder.iterdir())


def test_files_are_removed_after_an_error(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), ActivationStore(inputs(), 0, CPU) as store:
        for _ in store:
            pass
        for number, _ in store:
            assert files(folder)
            1 / (2 - number)
    assert not list(folder.iterdir())


def test_views_do_not_drag_what_they_are_cut_from(folder: Path) -> None:
    whole = torch.randn(100_000)
    cut = whole[:10]
    parts = list(whole[:20].split(5))
    with ActivationStore([{"x": (cut, whole[10:20]), "parts": (parts, parts)}], 0, CPU) as store:
        for _ in store:
            pass
        (path,) = files(folder)
        assert path.stat().st_size < 10_000
        ((_, values),) = store
    assert torch.equal(values["x"][0], cut) and torch.equal(values["x"][1], whole[10:20])
    assert all(torch.equal(a, b) for a, b in zip(values["parts"][0], parts, strict=True))


def test_sizes_count_shared_tensors_once() -> None:
    x, y = torch.zeros(10), torch.zeros(4, dtype=torch.float64)
    assert count_bytes({}) == 0
    assert count_bytes({"x": (x, x)}) == 40
    assert count_bytes({"x": (x, y), "again": (y, x), "size": (3, 3)}) == 40 + 32
    assert count_bytes({"parts": ((x, [y]), (x, [y]))}) == 40 + 32
