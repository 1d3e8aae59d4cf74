"""The projection on a GPU against the one on the CPU, which has oracles of its own."""

from __future__ import annotations

import math

import pytest
import torch

from tamis.errors import InvalidInput
from tamis.l1inf.projection import project, project_, slack

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def adversarial(columns: int, entries: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Columns of every scale, some of them with ties, zeros or one large entry."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(columns, entries, generator=generator, dtype=torch.float64)
    values *= torch.logspace(-12, 12, columns, dtype=torch.float64)[:, None]
    values[::3] = values[::3].round(decimals=1)
    values[::5] = values[::5].sign() * values[::5, :1]
    values[::7] = 0
    values[::7, :1] = 3
    return values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (64, 3), (37, 1000), (20, 4097), (5, 25088)])
@pytest.mark.parametrize("c", [0.0, 1e-6, 0.5, 1.0, 1e9])
def test_a_gpu_finds_what_the_cpu_finds(dtype: torch.dtype, shape: tuple[int, int], c: float) -> None:
    weight, bias = adversarial(*shape, dtype, seed=0), adversarial(shape[0], 1, dtype, seed=1)[:, 0]
    expected, expected_bias = project(weight, c, bias)
    found, found_bias = project(weight.cuda(), c, bias.cuda())
    allowed = 4 * slack(weight, bias) * c + torch.finfo(dtype).tiny
    assert float((found.cpu() - expected).abs().max()) <= allowed
    assert float((found_bias.cpu() - expected_bias).abs().max()) <= allowed
    again, again_bias = project(found, c, found_bias)
    assert torch.equal(again, found) and torch.equal(again_bias, found_bias)
    alone = weight.cuda()
    project_(alone, c)
    assert torch.equal(alone, project(weight.cuda(), c))


def test_what_is_not_finite_is_refused_on_a_gpu() -> None:
    for bad in (math.nan, math.inf):
        weight = torch.ones(3, 5000, device="cuda")
        weight[1, 4999] = bad
        with pytest.raises(InvalidInput, match="output 1"):
            project(weight, 1.0)
