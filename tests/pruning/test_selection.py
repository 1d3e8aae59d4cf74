"""The k smallest scores, against a literal sort by (score, name, index)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tamis.pruning import selection
from tamis.pruning.selection import Sweep, Visitor, keep_all_but_smallest

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INFINITY = float("inf")
quick = settings(max_examples=75, deadline=None)


def literally(scores: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The definition: sort all entries, and take the first ones away."""
    entries = sorted((float(v), name, i) for name in scores for i, v in enumerate(scores[name].flatten().tolist()))
    kept = {name: torch.ones(score.numel(), dtype=torch.bool) for name, score in scores.items()}
    for _, name, index in entries[:count]:
        kept[name][index] = False
    return {name: kept[name].view(scores[name].shape) for name in scores}


def over(scores: Mapping[str, Tensor]) -> Sweep:
    """A sweep over scores that are at hand, or that a mapping computes when it is asked for them."""

    def sweep(visit: Visitor) -> None:
        for name in scores:
            visit(name, scores[name])

    return sweep


def assert_equal_to_a_sort(scores: Mapping[str, Tensor], count: int) -> None:
    kept, expected = keep_all_but_smallest(over(scores), {tuple(scores): count}), literally(scores, count)
    assert kept.keys() == expected.keys()
    for name, mask in kept.items():
        assert mask.dtype is torch.bool and torch.equal(mask, expected[name]), name


@st.composite
def scores_and_count(draw: Any) -> tuple[dict[str, Tensor], int]:
    """A few tensors of several dtypes, long enough to be sampled, with anything from no ties to nothing but ties."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    distinct = draw(st.sampled_from([1, 2, 5, 1000, 10**9]))
    smallest = draw(st.sampled_from([0.0, -INFINITY]))
    scores = {}
    for name in draw(st.permutations(["b.weight", "a", "b", "c"]))[: draw(st.integers(1, 4))]:
        size = draw(st.sampled_from([0, 1, 2, 60, 61, 62, 500]))
        values = torch.randint(0, distinct, (size,), generator=generator).double() / distinct
        values[torch.rand(size, generator=generator) < draw(st.sampled_from([0.0, 0.3]))] = smallest
        scores[name] = values.to(draw(st.sampled_from(DTYPES)))
    total = sum(score.numel() for score in scores.values())
    count = draw(st.one_of(st.just(0), st.just(total), st.integers(0, total)))
    return scores, count


@quick
@given(scores_and_count())
def test_equals_a_sort(drawn: tuple[dict[str, Tensor], int]) -> None:
    assert_equal_to_a_sort(*drawn)


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 1999, 2000])
def test_all_equal(count: int) -> None:
    """The first by name, then by index."""
    scores = {"second": torch.full((10, 100), 0.25), "first": torch.full((1000,), 0.25)}
    kept = keep_all_but_smallest(over(scores), {tuple(scores): count})
    order = torch.cat([kept["first"], kept["second"].flatten()])
    assert torch.equal(order, torch.arange(2000) >= count)


@pytest.mark.parametrize("sampled", ["too large", "too small"])
@pytest.mark.parametrize(
    "count", [1, 1000, 12850, 25699, *(pytest.param(count, marks=pytest.mark.slow) for count in (50, 25600, 25700))]
)
def test_a_sample_that_misleads(count: int, sampled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sampled is far too large, or far too small: the bracket misses, and is widened."""
    values = torch.rand(25700, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[:: selection.SAMPLED] += 2.0 if sampled == "too large" else -2.0
    brackets = gatherings(monkeypatch)
    assert_equal_to_a_sort({"w": values}, count)
    if count == 12850:  # elsewhere the bracket is open on one side to begin with
        (low, high), again = brackets
        assert again == ((-INFINITY, high) if sampled == "too large" else (low, INFINITY))


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled"])
@pytest.mark.parametrize("count", [1, 6100, 30500, 61000 - 1])
def test_an_order_that_a_sample_sees_through(order: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.arange(61000.0)
    if order == "descending":
        values = values.flip(0)
    if order == "shuffled":
        values = values[torch.randperm(61000, generator=torch.Generator().manual_seed(1))]
    brackets = gatherings(monkeypatch)
    kept = keep_all_but_smallest(over({"w": values}), {("w",): count})["w"]
    assert torch.equal(kept, values >= count)
    assert len(brackets) == 1, "one pass is enough where the sample is a fair one"


def gatherings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """The brackets that are tried from now on."""
    tried: list[tuple[float, float]] = []
    gather = selection._Group.gather

    def recorded(self: Any, name: str, score: Tensor) -> None:
        tried.append((self.low, self.high))
        gather(self, name, score)

    monkeypatch.setattr(selection._Group, "gather", recorded)
    return tried


def test_close_scores_of_several_dtypes_are_not_rounded_together() -> None:
    """0.1 in half precision is a little below 0.1 in double; the threshold is compared with each exactly."""
    scores = {"half": torch.tensor([0.1], dtype=torch.float16), "double": torch.tensor([0.1], dtype=torch.float64)}
    assert float(scores["half"]) < float(scores["double"])
    kept = keep_all_but_smallest(over(scores), {tuple(scores): 1})
    assert not kept["half"].item() and kept["double"].item()
    assert_equal_to_a_sort(scores, 1)


def test_minus_zero_is_zero() -> None:
    assert_equal_to_a_sort({"w": torch.tensor([0.0, -0.0, 0.0, -0.0])}, 2)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_ties_go_by_index_whatever_the_memory_layout(format: torch.memory_format) -> None:
    scores = {"w": torch.ones(2, 3, 2, 2).to(memory_format=format), "v": torch.arange(6.0).view(2, 3).T}
    for count in range(31):
        assert_equal_to_a_sort(scores, count)


class Lazy(Mapping[str, Tensor]):
    """Scores that are made each time they are asked for."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def __getitem__(self, name: str) -> Tensor:
        return torch.rand(self.sizes[name], generator=torch.Generator().manual_seed(len(name)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


def test_scores_may_be_computed_when_asked_for() -> None:
    lazy = Lazy({"a": 700, "bb": 900})
    kept = keep_all_but_smallest(over(lazy), {tuple(lazy): 300})
    expected = literally({name: lazy[name] for name in lazy}, 300)
    assert all(torch.equal(kept[name], expected[name]) for name in lazy)


def test_groups_share_their_sweeps_and_nothing_else() -> None:
    """Each group on its own gives the same; two sweeps in any order are enough for all of them."""
    generator = torch.Generator().manual_seed(3)
    scores = {name: torch.rand(4000, generator=generator).round(decimals=2) for name in "abcde"}
    counts = {("a", "c"): 1234, ("b",): 4000, ("d",): 0, ("e",): 17}
    sweeps = 0

    def backwards(visit: Any) -> None:
        nonlocal sweeps
        sweeps += 1
        for name in reversed(scores):
            visit(name, scores[name].clone())

    kept = keep_all_but_smallest(backwards, counts)
    assert sweeps == 2 and sorted(kept) == list("abcde")
    for names, count in counts.items():
        expected = literally({name: scores[name] for name in names}, count)
        assert all(torch.equal(kept[name], expected[name]) for name in names)
