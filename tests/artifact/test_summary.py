"""Errors of layers, as recipes have them."""

from __future__ import annotations

from typing import Any

import pytest

from tamis.artifact.summary import errors_of

RECIPE: list[dict[str, Any]] = [
    {"step": "prune", "layers": {"a": {"error": 0.5}, "b": {"error": 0.25, "zeros": 3}}},
    {"step": "note"},
    {"step": "quantize", "layers": {"b": {"error": 0.125}, "c": {"levels": 3}}},
]


def test_the_last_step_that_speaks_of_a_layer_counts() -> None:
    assert errors_of(RECIPE) == {"a": 0.5, "b": 0.125}
    assert errors_of(RECIPE[-1:]) == {"b": 0.125}
    assert errors_of(RECIPE[1:2]) == errors_of([]) == {}


@pytest.mark.parametrize("layers", [None, 3, "a", [], {"a": None}, {"a": []}, {"a": {"error": "0.5"}}])
def test_whatever_else_a_file_says_is_left_out(layers: Any) -> None:
    assert errors_of([{"layers": layers}]) == {}
    assert errors_of([RECIPE[0], {"layers": layers}]) == {"a": 0.5, "b": 0.25}
