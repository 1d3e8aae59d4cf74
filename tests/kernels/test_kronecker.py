"""What the extension itself refuses, and which kernel runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tamis.errors import InvalidInput
from tamis.kernels import dispatch

EXTENSION = dispatch.native()
needs_extension = pytest.mark.skipif(EXTENSION is None, reason=dispatch.explain_native())


@needs_extension
def test_the_fastest_kernel_runs_or_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = EXTENSION.kronecker_kernels()  # type: ignore[union-attr]
    monkeypatch.delenv("TAMIS_KERNEL", raising=False)
    assert names[-1] == "plain"
    assert dispatch.kronecker_kernel() == (
        names[0],
        f"{names[0]} is the fastest of the kernels that this processor can run: {', '.join(names)}",
    )
    monkeypatch.setenv("TAMIS_KERNEL", "plain")
    assert dispatch.kronecker_kernel()[0] == "plain"
    monkeypatch.setenv("TAMIS_KERNEL", "abacus")
    with pytest.raises(InvalidInput, match="TAMIS_KERNEL=abacus is not one of the kernels that this processor can run"):
        dispatch.kronecker_kernel()
    others = [name for name in EXTENSION.binary_kernels() if name not in names]  # type: ignore[union-attr]
    for name in others:
        monkeypatch.setenv("TAMIS_KERNEL", name)
        kernel, why = dispatch.kronecker_kernel()
        assert kernel == "plain" and f"TAMIS_KERNEL={name}, which is a kernel of binary layers alone" in why


def test_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAMIS_KERNEL", raising=False)
    monkeypatch.setattr(dispatch, "_load", lambda: (None, "native kernels are not used: it is not built"))
    assert dispatch.kronecker_kernel() == ("torch", "native kernels are not used: it is not built")
    monkeypatch.setenv("TAMIS_KERNEL", "avx2")
    with pytest.raises(InvalidInput, match="TAMIS_KERNEL=avx2 names a kernel, but native kernels are not used"):
        dispatch.kronecker_kernel()


@needs_extension
def test_the_extension_refuses_what_does_not_fit() -> None:
    x, weight, y = torch.ones(5, 16), torch.ones(2, 3, 4, 2), torch.ones(5, 12)
    product: dict[str, Any] = {
        "kernel": "plain",
        "threads": 1,
        "pattern": (2, 3, 4, 2),
        "batch": 5,
        "batch_last": False,
        "transposed": False,
        "x": x.data_ptr(),
        "x_row": 16,
        "weight": weight.data_ptr(),
        "y": y.data_ptr(),
    }
    multiply = EXTENSION.kronecker_multiply  # type: ignore[union-attr]
    multiply(**product)
    assert torch.equal(y, torch.full((5, 12), 4.0))
    wrong: list[tuple[str, Any, str]] = [
        ("kernel", "abacus", "no Kronecker kernel of this processor is called abacus"),
        ("batch", 0, "sizes that do not agree"),
        ("pattern", (2, 0, 4, 2), "sizes that do not agree"),
        ("x_row", 15, "sizes that do not agree"),
        ("x", 0, "address that is missing or not aligned"),
        ("y", y.data_ptr() + 1, "address that is missing or not aligned"),
    ]
    for name, value, message in wrong:
        with pytest.raises(ValueError, match=message):
            multiply(**{**product, name: value})
    gradient = {name: product[name] for name in ("kernel", "threads", "pattern", "batch", "batch_last", "x", "x_row")}
    gradient |= {"y": y.data_ptr(), "y_row": 12, "weight": weight.data_ptr()}
    EXTENSION.kronecker_weight_gradient(**gradient)  # type: ignore[union-attr]
    assert torch.equal(weight, torch.full((2, 3, 4, 2), 20.0))
    with pytest.raises(ValueError, match="sizes that do not agree"):
        EXTENSION.kronecker_weight_gradient(**{**gradient, "y_row": 11})  # type: ignore[union-attr]
