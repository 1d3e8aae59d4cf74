"""What the backend "triton" says where it cannot multiply; what it computes stands in tests/kernels/triton."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tamis.kronecker.triton as backend
from experiments import RESULTS
from experiments.kronecker_peers import PEERS, from_line
from tamis.errors import InvalidInput
from tamis.kernels import multiply_with_torch, weight_gradient_with_torch
from tamis.kronecker.backends import LAYOUTS, Step, is_aligned
from tamis.kronecker.multiply import multiply
from tamis.kronecker.pattern import Pattern
from tamis.kronecker.tuned_table import next_power_of_two

PATTERN = Pattern(2, 3, 4, 2)
OTHERS = Path(__file__).parents[2] / "docs" / "results" / "kronecker_gpu.json"
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


class OnCpu:
    """Kernels that read memory, as those of the GPU do, and compute by torch."""

    @staticmethod
    def read(tensor: Tensor) -> Tensor:
        """The numbers that are in memory; a tensor that has none raises, as it does of a pointer."""
        memory = tensor.untyped_storage()
        return tensor.new_empty(0).set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())

    def multiply(self, x: Tensor, weight: Tensor, batch_last: bool, tf32: bool) -> Tensor:
        assert x.is_contiguous()
        return multiply_with_torch(self.read(x), self.read(weight), False, batch_last)

    def weight_gradient(
        self, x: Tensor, gradient: Tensor, shape: tuple[int, int, int, int], batch_last: bool, tf32: bool
    ) -> Tensor:
        assert x.is_contiguous() and gradient.is_contiguous()
        return weight_gradient_with_torch(self.read(x), self.read(gradient), shape, batch_last)

    def Factor(self, weight: Tensor, batch_last: bool, tf32: bool) -> Step:
        def product(x: Tensor, bias: Tensor | None) -> Tensor:
            return self.multiply(x, weight, batch_last, tf32) + (0 if bias is None else self.read(bias))

        return product


@pytest.fixture
def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = OnCpu()
    monkeypatch.setitem(sys.modules, "tamis.kernels.triton.kronecker", kernels)  # type: ignore[arg-type]
    monkeypatch.setattr("tamis.kernels.triton.kronecker", kernels, raising=False)


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("which", ["x", "weight", "gradient", "bias"])  # the signs of two would cancel
def test_kernels_read_numbers_that_are_negated(which: str, last: bool) -> None:
    """Views such as `z.conj().imag` have the memory of other numbers, and a bit that says so."""
    shapes = {
        "x": (5, PATTERN.columns),
        "gradient": (5, PATTERN.rows),
        "weight": PATTERN.shape,
        "bias": (PATTERN.rows,),
    }
    if last:
        shapes |= {"x": (PATTERN.columns, 1), "gradient": (PATTERN.rows, 1), "bias": (PATTERN.rows, 1)}
    plain = {name: torch.randn(shape) for name, shape in shapes.items()}
    results = []
    for negated in (torch.neg, torch._neg_view):
        given = plain | {which: negated(plain[which])}
        x, weight = given["x"].detach().requires_grad_(), given["weight"].detach().requires_grad_()
        y = backend.multiply(x, weight, last)
        kept = backend._prepare(weight, PATTERN, LAYOUTS[last])(x.detach(), given["bias"])
        results.append((y, kept, *torch.autograd.grad(y, (x, weight), given["gradient"])))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.usefixtures("kernels_on_cpu")
@pytest.mark.parametrize("last", [False, True])
def test_many_gradients_at_once_are_those_one_by_one(last: bool) -> None:
    """Torch makes one tensor of them, without memory, that no kernel can read."""
    x, weight = torch.randn(5, PATTERN.columns), torch.randn(PATTERN.shape).requires_grad_()
    upstream = torch.randn(3, 5, PATTERN.rows)
    x, upstream = (x.T, upstream.mT) if last else (x, upstream)
    y = backend.multiply(x.requires_grad_(), weight, last)

    def gradients(upstream: Tensor, batched: bool) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, (x, weight), upstream, retain_graph=True, is_grads_batched=batched)

    one_by_one = [torch.stack(each) for each in zip(*(gradients(one, False) for one in upstream), strict=True)]
    torch.testing.assert_close(list(gradients(upstream, True)), one_by_one)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backend_is_preferred_for_every_pattern(layout: str) -> None:
    for pattern in (PATTERN, Pattern(1, 48, 48, 1), Pattern(1, 2, 2, 128), Pattern(64, 1024, 1024, 1)):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
            for batch in (0, 1, 25088):
                assert backend.prefers(pattern, dtype, layout, batch) in ("triton", "bmm", "dense")


def test_what_is_preferred_is_never_much_slower_than_what_was_measured() -> None:
    """Part multiply of kronecker_cuda.json: within 5% of the best of bmm, einsum and dense, for every pattern in it."""
    figures = json.loads((RESULTS / "kronecker_cuda.json").read_text())["figures"]
    rows = [from_line(line) for line in figures["multiply"]["rows"]]
    assert len(rows) == 4 * 627
    for row in rows:
        name = backend.prefers(row["pattern"], getattr(torch, row["dtype"]), row["layout"], backend.MEASURED)
        same = name == "dense" and row["pattern"].density == 1  # one and the same product by all of them
        assert same or row["ms"][name] <= 1.05 * min(row["ms"][peer] for peer in PEERS), row


def test_what_is_preferred_is_seldom_slower_for_other_batches() -> None:
    """docs/results/kronecker_gpu.json: within 5% of the best of all, ours among them, and never slower than twice."""
    rows = json.loads(OTHERS.read_text())["figures"]["batches"]
    shares = []
    for row in rows:
        pattern = Pattern(*(int(size) for size in row["pattern"].strip("()").split(",")))
        name = backend.prefers(pattern, getattr(torch, row["dtype"]), row["layout"], row["batch"])
        shares.append(min(row["ms"].values()) / row["ms"][name])
    assert len(rows) == 200 and min(shares) > 0.5
    assert sum(share >= 0.95 for share in shares) >= 0.85 * len(rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_batches_of_one_power_of_two_and_alignment_go_one_way(layout: str) -> None:
    """So that what a layer remembers of one holds for the others."""
    for pattern in (Pattern(1, 1024, 1024, 1), Pattern(1, 64, 512, 1), PATTERN, Pattern(4, 256, 256, 16)):
        for dtype in (torch.float32, torch.float16):
            seen: dict[tuple[int, bool], set[str]] = {}
            for batch in (*range(1, 40), *range(500, 530), *range(1000, 1040), 16384, 16385, 20000, 32768):
                found = seen.setdefault((next_power_of_two(batch), is_aligned(batch, dtype)), set())
                found.add(backend.prefers(pattern, dtype, layout, batch))
            assert all(len(names) == 1 for names in seen.values()), (pattern, dtype, seen)


@pytest.mark.parametrize(
    ("pattern", "dtype", "layout", "batch", "wanted"),
    [
        (Pattern(1, 1024, 1024, 1), torch.float32, "batch_first", 4096, "triton"),  # faster than torch, densely
        (Pattern(1, 1024, 1024, 1), torch.float32, "batch_first", 64, "dense"),
        (Pattern(1, 1024, 1024, 1), torch.float16, "batch_first", 4096, "dense"),
        (Pattern(1, 2, 2, 512), torch.float32, "batch_last", 1, "triton"),  # butterflies
        (Pattern(512, 2, 2, 1), torch.float16, "batch_first", 256, "triton"),
        (Pattern(1, 768, 192, 2), torch.float32, "batch_first", 1, "dense"),  # one vector
        (Pattern(4, 256, 256, 16), torch.float32, "batch_first", 1, "bmm"),
        (Pattern(4, 256, 256, 16), torch.float32, "batch_last", 4099, "bmm"),  # rows at odd places
        (Pattern(4, 256, 256, 16), torch.float32, "batch_last", 4100, "triton"),
        (Pattern(32, 32, 32, 1), torch.float32, "batch_last", 4096, "bmm"),  # which copies nothing
        (Pattern(32, 32, 32, 1), torch.float32, "batch_first", 4096, "triton"),
    ],
    ids=str,
)
def test_other_batches_and_blocks_go_other_ways(
    pattern: Pattern, dtype: torch.dtype, layout: str, batch: int, wanted: str
) -> None:
    assert backend.prefers(pattern, dtype, layout, batch) == wanted
