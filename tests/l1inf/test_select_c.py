"""Cross-validation over c: every sample held out once, the best mean chosen, finished folds not run again."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from l1inf_score import negative_loss
from torch import Tensor

from tamis.errors import CorruptArtifact, InvalidInput
from tamis.l1inf import Selection, select_c
from tamis.l1inf.select_c import deal_folds


def closeness(c: float, train: Tensor, held_out: Tensor, best: float = 0.3) -> float:
    """Best at one c; a little different on each fold."""
    assert not set(train.tolist()) & set(held_out.tolist())
    return -((c - best) ** 2) + float(held_out.double().mean()) / 1000 + len(train) / 1e6


def noting(folder: Path, c: float, train: Tensor, held_out: Tensor) -> float:
    """Leaves a file for every call."""
    (folder / f"{c}_{int(held_out[0])}").touch(exist_ok=False)
    return closeness(c, train, held_out)


def failing(folder: Path, after: int, c: float, train: Tensor, held_out: Tensor) -> float:
    if len(list(folder.iterdir())) == after:
        raise RuntimeError("the power is cut")
    return noting(folder, c, train, held_out)


@given(st.integers(2, 60), st.integers(2, 60), st.integers(0, 2**32))
def test_every_sample_is_held_out_once(samples: int, folds: int, seed: int) -> None:
    folds = min(folds, samples)
    parts = deal_folds(samples, folds, seed)
    assert sorted(torch.cat(parts).tolist()) == list(range(samples))
    sizes = {len(part) for part in parts}
    assert len(parts) == folds and max(sizes) - min(sizes) <= 1
    assert all(torch.equal(a, b) for a, b in zip(parts, deal_folds(samples, folds, seed), strict=True))


def test_the_table_and_the_choice() -> None:
    candidates = [1.0, 0.3, 0.1]
    found = select_c(closeness, 23, candidates, folds=4, progress=False)
    parts = deal_folds(23, 4, 0)
    for c in candidates:
        rest = [torch.cat([part for other, part in enumerate(parts) if other != fold]) for fold in range(4)]
        assert found.table[c] == tuple(closeness(c, rest[fold], parts[fold]) for fold in range(4))
        assert found.means[c] == pytest.approx(sum(found.table[c]) / 4)
    assert list(found.table) == candidates and found.c == 0.3


def test_of_equal_means_the_smallest_c_is_chosen() -> None:
    assert Selection({0.5: (1.0, 2.0), 0.1: (2.0, 1.0), 0.01: (0.0, 1.0)}).c == 0.1


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    select_c(closeness, 10, [0.1, 0.2], folds=3, progress=lambda now: seen.append((now.done, now.total)))
    assert seen == [(done, 6) for done in range(1, 7)]


def test_finished_folds_are_not_run_again(tmp_path: Path) -> None:
    calls, kept = tmp_path / "calls", tmp_path / "kept"
    calls.mkdir()
    with pytest.raises(RuntimeError, match="the power is cut"):
        select_c(partial(failing, calls, 4), 12, [0.1, 0.3], folds=3, directory=kept, progress=False)
    assert len(list(calls.iterdir())) == 4
    # `noting` refuses to be called twice for one fold.
    resumed = select_c(partial(failing, calls, -1), 12, [0.1, 0.3], folds=3, directory=kept, progress=False)
    assert resumed == select_c(closeness, 12, [0.1, 0.3], folds=3, progress=False)
    more = select_c(partial(failing, calls, -1), 12, [0.3, 0.5], folds=3, directory=kept, progress=False)
    assert more.table[0.3] == resumed.table[0.3] and len(list(calls.iterdir())) == 9
    assert not list(kept.glob("*.part"))


def test_another_cross_validation_is_not_gone_on_from(tmp_path: Path) -> None:
    select_c(closeness, 12, [0.1], folds=3, directory=tmp_path, progress=False)
    with pytest.raises(InvalidInput, match="choose another directory"):
        select_c(closeness, 12, [0.1], folds=4, directory=tmp_path, progress=False)
    with pytest.raises(InvalidInput, match="noting"):
        select_c(partial(noting, tmp_path), 12, [0.1], folds=3, directory=tmp_path, progress=False)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"c": 0.2, "fold": 0, "score": 1.0}', '{"c": 0.1, "fold": 0}'])
def test_files_that_are_not_scores_are_named(content: str, tmp_path: Path) -> None:
    select_c(closeness, 12, [0.1], folds=3, directory=tmp_path, progress=False)
    path = tmp_path / "c_0.1_fold_0.json"
    assert json.loads(path.read_text())["fold"] == 0
    path.write_text(content)
    with pytest.raises(CorruptArtifact, match=r"c_0\.1_fold_0\.json"):
        select_c(closeness, 12, [0.1], folds=3, directory=tmp_path, progress=False)


@pytest.mark.slow
def test_processes_give_the_same_table(tmp_path: Path) -> None:
    alone = select_c(negative_loss, 24, [0.001, 1.0], folds=2, progress=False)
    assert alone.c == 1.0  # under the other, the network is next to constant
    together = select_c(negative_loss, 24, [0.001, 1.0], folds=2, processes=2, directory=tmp_path, progress=False)
    assert together == alone
    assert len(list(tmp_path.glob("c_*.json"))) == 4


def test_scores_that_are_no_numbers() -> None:
    with pytest.raises(InvalidInput, match=r"c=0\.1 on fold 0 is not a number"):
        select_c(lambda c, train, held_out: math.nan, 6, [0.1], folds=2, progress=False)
    found = select_c(lambda c, train, held_out: -math.inf if c > 1 else -c, 6, [2.0, 0.5], folds=2, progress=False)
    assert found.c == 0.5


def test_minus_infinity_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        found = select_c(hopeless, 6, [2.0], folds=2, directory=tmp_path, progress=False)
        assert found.table == {2.0: (-math.inf, -math.inf)}


def hopeless(c: float, train: Tensor, held_out: Tensor) -> float:
    return -math.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": []}, "one or more"),
        ({"candidates": [0.1, 0.1]}, "different values"),
        ({"candidates": [-0.1]}, "a candidate c=-0.1"),
        ({"folds": 1}, "folds=1"),
        ({"folds": 13}, "12 samples cannot be dealt into folds=13"),
        ({"samples": 1.5}, "samples=1.5"),
        ({"processes": 0}, "processes=0"),
        ({"seed": -1}, "seed=-1"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    arguments = {"samples": 12, "candidates": [0.1], "folds": 3, **options}
    with pytest.raises(InvalidInput, match=message):
        select_c(closeness, progress=False, **arguments)  # type: ignore[arg-type]
