"""The projection on a GPU against the one on the CPU, which has oracles of its own.

With TRITON_INTERPRET=1, the kernel as Triton interprets it on the CPU.
"""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch import Tensor, nn

from tamis.errors import InvalidInput, TrainingDiverged
from tamis.l1inf import L1Inf, project
from tamis.l1inf.projection import project_, slack

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytest.importorskip("triton", reason="triton is not installed")
if not torch.cuda.is_available() and not INTERPRETED:
    pytest.skip("there is no GPU here, and TRITON_INTERPRET=1 is not set", allow_module_level=True)

from tamis.kernels.triton import l1ball  # noqa: E402

DEVICE = "cpu" if INTERPRETED else "cuda"
SHAPES = (
    [(1, 1), (8, 3), (9, 1000), (5, 4097)] if INTERPRETED else [(1, 1), (64, 3), (37, 1000), (20, 4097), (5, 25088)]
)
SHAPES += [(2, 40_000)]  # longer than what is held
DTYPES = [torch.float32, torch.float64]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
# numpy, in which the interpreter computes, warns of infinities that are meant.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")


def adversarial(columns: int, entries: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Columns of every scale, some of them with ties, zeros or one large entry."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(columns, entries, generator=generator, dtype=torch.float64)
    values *= torch.logspace(-12, 12, columns, dtype=torch.float64)[:, None]
    values[::3] = values[::3].round(decimals=1)
    values[::5] = values[::5].sign() * values[::5, :1]
    values[::7] = 0
    values[::7, :1] = 3
    return values.to(dtype)


def by_kernel(weight: Tensor, bias: Tensor | None, c: float) -> tuple[Tensor, Tensor, Tensor]:
    """The projections, and θ: written elsewhere, and the same in place."""
    weight, bias = weight.to(DEVICE), None if bias is None else bias.to(DEVICE)
    out, out_bias = torch.full_like(weight, math.nan), None if bias is None else torch.full_like(bias, math.nan)
    thresholds = l1ball.project_l1(weight, bias, c, slack(weight, bias), out, out_bias)
    weight, bias = weight.clone(), None if bias is None else bias.clone()
    again = l1ball.project_l1(weight, bias, c, slack(weight, bias), weight, bias)
    assert torch.equal(again, thresholds) and torch.equal(weight, out)
    if bias is None or out_bias is None:
        return out.cpu(), torch.zeros(len(out), dtype=out.dtype), thresholds.cpu()
    assert torch.equal(bias, out_bias)
    return out.cpu(), out_bias.cpu(), thresholds.cpu()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("c", [0.0, 1e-300, 1e-6, 0.5, 1e9])
def test_the_kernel_finds_what_the_cpu_finds(dtype: torch.dtype, shape: tuple[int, int], c: float) -> None:
    weight, bias = adversarial(*shape, dtype, seed=0), adversarial(shape[0], 1, dtype, seed=1)[:, 0]
    allowed = 4 * slack(weight, bias) * c + torch.finfo(dtype).tiny
    expected, expected_bias = project(weight, c, bias)
    found, found_bias, _ = by_kernel(weight, bias, c)
    assert float((found - expected).abs().max()) <= allowed
    assert float((found_bias - expected_bias).abs().max()) <= allowed
    again, again_bias, thresholds = by_kernel(found, found_bias, c)
    assert torch.equal(again, found) and torch.equal(again_bias, found_bias) and not bool(thresholds.any())
    alone, _, _ = by_kernel(weight, None, c)
    assert float((alone - project(weight, c)).abs().max()) <= allowed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("entries", [4, 40_000])
def test_columns_that_are_hard_to_guess(dtype: torch.dtype, entries: int) -> None:
    largest = torch.finfo(dtype).max
    rows = torch.zeros(5, entries, dtype=dtype)
    rows[0, :4] = 0.9 * largest  # the norm is infinite
    rows[1] = torch.logspace(-8, 8, entries, dtype=torch.float64).to(dtype)
    rows[2] = 1 + torch.arange(entries) % 2 * torch.finfo(dtype).eps
    rows[3, 0], rows[3, 1] = largest, 1
    rows[4, -1] = -3
    for c in (1e-3, 2.0, 3.0):
        found, _, _ = by_kernel(rows, None, c)
        allowed = 4 * slack(rows, None) * c
        assert float((found - project(rows, c)).abs().max()) <= allowed


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("entries", [3, 5000, 40_000])
def test_what_is_not_finite_is_said(bad: float, entries: int) -> None:
    weight, bias = torch.ones(3, entries), torch.ones(3)
    weight[1, -1], bias[2] = bad, bad
    for c in (0.5, 1e9):
        out, out_bias, thresholds = torch.empty_like(weight), torch.empty_like(bias), None
        moved = [tensor.to(DEVICE) for tensor in (weight, bias, out, out_bias)]
        thresholds = l1ball.project_l1(moved[0], moved[1], c, slack(weight, bias), moved[2], moved[3]).cpu()
        assert thresholds.isnan().tolist() == [False, True, True]
        assert torch.equal(moved[2][1:].cpu().nan_to_num(7), weight[1:].nan_to_num(7))


def test_no_columns() -> None:
    weight = torch.empty(0, 5, device=DEVICE)
    assert len(l1ball.project_l1(weight, None, 1.0, 0.0, weight, None)) == 0


@needs_gpu
def test_projections_of_tensors_on_a_gpu() -> None:
    weight, bias = adversarial(20, 300, torch.float32, seed=0), adversarial(20, 1, torch.float32, seed=1)[:, 0]
    expected, expected_bias = project(weight, 0.5, bias)
    alone = [weight.cuda(), bias.cuda()]
    found, found_bias = project(alone[0], 0.5, alone[1])
    project_(alone[0], 0.5, alone[1])
    assert torch.equal(alone[0], found) and torch.equal(alone[1], found_bias)
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found_bias.cpu(), expected_bias, rtol=0, atol=1e-6)
    for bad in (math.nan, math.inf):
        alone[0][1, 299] = bad
        with pytest.raises(InvalidInput, match=f"a weight of output 1 is {bad}"):
            project(alone[0], 1.0)
        with pytest.raises(InvalidInput, match=f"a weight of output 1 is {bad}"):
            project_(alone[0], 1.0)


@needs_gpu
def test_an_optimizer_asks_a_gpu_once_and_names_the_layer() -> None:
    torch.manual_seed(0)
    turned = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    model = nn.Sequential(turned, nn.ConvTranspose2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 3))
    twin = L1Inf(torch.optim.SGD(model.parameters(), lr=0.1), model, 0.2)
    twin.project()
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    torch.manual_seed(0)
    again = nn.Sequential(
        nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),
        nn.ConvTranspose2d(8, 4, 3),
        nn.Flatten(),
        nn.Linear(64, 9),
        nn.Linear(9, 3),
    ).cuda()
    optimizer = L1Inf(torch.optim.SGD(again.parameters(), lr=0.1), again, 0.2)
    optimizer.project()
    for parameter, wanted in zip(again.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach().cpu(), wanted, rtol=0, atol=1e-7)
    with torch.no_grad():
        again[3].weight[7, 2] = math.nan
    with pytest.raises(TrainingDiverged, match="layer '3': a weight of output 7 is nan"):
        optimizer.project()
