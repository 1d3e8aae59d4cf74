"""What the backend "triton" says where it cannot multiply; what it computes stands in tests/kernels/triton."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tamis.kronecker.triton as backend
from tamis.errors import InvalidInput
from tamis.kronecker.backends import LAYOUTS
from tamis.kronecker.multiply import multiply
from tamis.kronecker.pattern import Pattern

PATTERN = Pattern(2, 3, 4, 2)
RESULTS = Path(__file__).parents[2] / "docs" / "results" / "kronecker_gpu.json"
X, WEIGHT = torch.ones(5, PATTERN.columns), torch.ones(PATTERN.shape)


def refused(installed: bool, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(backend, "INSTALLED", installed)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(InvalidInput) as refusal:
        multiply(x, WEIGHT.to(x.dtype), PATTERN, backend="triton")
    return str(refusal.value)


def test_without_triton_or_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Triton is not installed: pip install triton" in refused(False, X, monkeypatch)
    assert "needs a GPU, and x is on 'cpu'" in refused(True, X, monkeypatch)
    assert "got torch.float64" in refused(True, X.double(), monkeypatch)


def test_the_operators_know_their_shapes() -> None:
    x = torch.empty(7, PATTERN.columns, device="meta")
    weight = torch.empty(PATTERN.shape, device="meta")
    assert backend.kronecker_multiply(x, weight, False).shape == (7, PATTERN.rows)
    assert backend.kronecker_multiply(x.T, weight, True).shape == (PATTERN.rows, 7)
    gradient = torch.empty(7, PATTERN.rows, device="meta")
    assert backend.kronecker_weight_gradient(x, gradient, list(PATTERN.shape), False).shape == PATTERN.shape


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backend_is_preferred_for_every_pattern(layout: str) -> None:
    for pattern in (PATTERN, Pattern(1, 48, 48, 1), Pattern(1, 2, 2, 128), Pattern(64, 1024, 1024, 1)):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
            for batch in (0, 1, 25088):
                assert backend.prefers(pattern, dtype, layout, batch) in ("triton", "bmm", "dense")


def test_what_is_preferred_is_never_much_slower_than_what_was_measured() -> None:
    """docs/results/kronecker_gpu.json: within 5% of the best of bmm, einsum and dense, for every pattern in it."""
    rows = json.loads(RESULTS.read_text())["figures"]["patterns"]
    assert len(rows) > 1000
    for row in rows:
        pattern = Pattern(*(int(size) for size in row["pattern"].strip("()").split(",")))
        name = backend.prefers(pattern, getattr(torch, row["dtype"]), row["layout"], 25088)
        best = min(ms for way, ms in row["ms"].items() if way != "triton")
        assert row["ms"][name] <= 1.05 * best, row
