"""What fits a budget: files that do, on parts of the data that the certificate does not speak of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import tamis
from tamis.bounds import disagreement
from tamis.errors import InvalidInput
from tamis.recipes.budget_search import predict_bound
from tamis.recipes.compression import compress
from tamis.training import Settings, load_data, train
from tamis.training.models import mlp


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    settings = Settings(epochs=5, batch=64, optimizer="adamw", learning_rate=0.01)
    return train(mlp((64, 16, 16, 10)), load_data("digits:train[:400]"), settings, progress=False).model


@pytest.mark.slow
def test_bytes(trained: nn.Module, quick: dict[str, Any]) -> None:
    done = compress(trained, target_bytes="3.5KB", max_disagreement="100%", out="out", **quick)
    assert Path("out/small.tamis").stat().st_size <= 3500
    assert done.lock.content["recipe"]["data"]["held_out_from"] == "test"
    assert done.certificate.content["data"]["samples"] == 50  # the other half was searched on
    assert "search" in done.small.seen.purposes
    assert done.met is True and done.lock.content["recipe"]["budget"]["target_bytes"] == 3500  # required, and no more


@pytest.mark.slow
def test_larger_budgets_are_used(trained: nn.Module, quick: dict[str, Any]) -> None:
    whole = tamis.Compressed(tamis.trace(trained, load_data("digits:test").example)).nbytes
    targets = [whole // 2, whole]
    sizes = [compress(trained, target_bytes=size, out=f"out{size}", **quick).small.nbytes for size in targets]
    assert sizes[0] <= targets[0] < sizes[1] <= targets[1]


@pytest.mark.slow
def test_disagreement(trained: nn.Module, quick: dict[str, Any]) -> None:
    quick |= {"test": "digits:test"}
    done = compress(trained, max_disagreement="20%", out="out", **quick)
    claim = done.certificate["disagreement"]
    assert done.met == (claim.bound.value <= 0.2)
    whole = sum(value.nbytes for value in trained.state_dict().values())
    assert done.small.nbytes < whole
    assert {step["step"] for step in done.small.recipe} <= {"prune", "quantize"}
    closer = compress(trained, max_disagreement=0.08, out="closer", **quick)
    assert closer.small.nbytes >= done.small.nbytes


@pytest.mark.slow
def test_what_cannot_be_met(trained: nn.Module, quick: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInput, match=r"no file of 1,000 bytes was found: the smallest has \d,\d{3} \(.*\); raise"
    ):
        compress(trained, target_bytes=1000, out="out", **quick)
    with pytest.raises(
        InvalidInput, match=r"50 held-out and 50 test samples are too few for a disagreement of at most 0.004%: "
    ):
        compress(trained, max_disagreement="0.004%", out="other", **quick)


@pytest.mark.slow
def test_a_budget_after_steps(trained: nn.Module, quick: dict[str, Any]) -> None:
    recipe = {"steps": [{"step": "prune", "amount": "40%"}], "budget": {"target_bytes": "4.5KB"}}
    done = compress(trained, recipe, out="out", **quick)
    assert done.small.nbytes <= 4500 and done.small.masks.sparsity >= 0.39
    assert tamis.load("out/small.tamis", trained).masks.sparsity == done.small.masks.sparsity


def test_a_promise_is_more_careful_than_the_bound_itself() -> None:
    for different in (0, 3, 40):
        assert predict_bound(different, 1000, 1000, 0.0125) >= disagreement(different, 1000, 0.0125).value
    assert predict_bound(0, 100_000, 10_000, 0.0125) < predict_bound(0, 1000, 10_000, 0.0125)
