"""σ of a box, and errors that say what to pass instead."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tamis.bounds.rademacher_arguments import resolve_log_norm, resolve_sigma, sigma_of_box
from tamis.errors import InvalidInput


@given(st.integers(1, 50), st.floats(0, 10), st.integers(0, 1000))
def test_the_sigma_of_a_box_is_large_enough_for_both_theorems(n: int, radius: float, seed: int) -> None:
    x = radius * (2 * torch.rand(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1)
    squares = x.abs().amax(1) ** 2
    sigma = sigma_of_box(n, radius) * (1 + 1e-12)
    assert max(n, float(squares.sum())) <= sigma**2
    assert float(squares.clamp(min=1).sum()) <= sigma**2


def test_errors() -> None:
    assert resolve_log_norm(2.0, None) == pytest.approx(math.log(2)) and resolve_log_norm(None, 3.0) == 3.0
    assert resolve_log_norm(0.0, None) == -math.inf and resolve_sigma(1) == 1.0
    with pytest.raises(InvalidInput, match=r"one of the two: got path_norm = 1\.0 and log_path_norm = 2\.0"):
        resolve_log_norm(1.0, 2.0)
    with pytest.raises(InvalidInput, match="path_norm = None and log_path_norm = None"):
        resolve_log_norm(None, None)
    with pytest.raises(InvalidInput, match="got inf: pass log_path_norm instead"):
        resolve_log_norm(float("inf"), None)
    with pytest.raises(InvalidInput, match="log_path_norm = inf"):
        resolve_log_norm(None, float("inf"))
    with pytest.raises(InvalidInput, match="log_path_norm = nan"):
        resolve_log_norm(None, math.nan)
    for sigma in (None, 0.0, -1.0, math.inf, float("inf")):
        with pytest.raises(InvalidInput, match=f"got sigma = {sigma}"):
            resolve_sigma(sigma)
    with pytest.raises(InvalidInput, match="n = 0"):
        sigma_of_box(0, 1.0)
    with pytest.raises(InvalidInput, match="radius = -2"):
        sigma_of_box(3, -2)
