"""How GPFQ's error falls as a layer grows, on the data that Theorem 2 speaks of.

Proved (Theorem 2): for one layer whose inputs X, m×N₀, are independent Gaussians, with levels {−1, 0, 1}, and weights
in [−1, 1] that keep a distance ε from the levels, with high probability

    ‖Xw − Xq‖ / ‖Xw‖ ≤ C · log(N₀) · √m / ‖w‖,      which is of the order of log(N₀) √(m/N₀) where ‖w‖ ~ √N₀.

The constants are not known, so the bound gives a shape and no number; nothing is proved of later layers or of other
data (ERRATA 12). Measured here: the median error over neurons and draws, for weights uniform on [−1, 1], some of which
lie closer to a level than any ε. Nearest rounding, beside it, has the error ½ at any size.

Reference: lybrand2021gpfq, Theorem 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tamis.kernels import Grid
from tamis.progress import reporting
from tamis.quantization.gpfq import gpfq_along_data

TERNARY = (-1.0, 0.0, 1.0)
GROWING_WIDTH, GROWING_SAMPLES = "as N₀ grows", "as m grows"


@dataclass(frozen=True)
class DecayPlan:
    """Sizes to measure at: N₀ inputs and m samples.

    Attributes:
        widths: N₀, with `few_samples` samples.
        samples: m, with `wide` inputs.
        neurons: of the layer.
        draws: of weights and data, for each size.
    """

    widths: tuple[int, ...]
    few_samples: int
    samples: tuple[int, ...]
    wide: int
    neurons: int
    draws: int


FULL = DecayPlan(
    widths=tuple(2**k for k in range(6, 15)),
    few_samples=32,
    samples=tuple(2**k for k in range(3, 10)),
    wide=8192,
    neurons=16,
    draws=16,
)
SHORT = DecayPlan(
    widths=(64, 256, 1024, 4096),
    few_samples=32,
    samples=(8, 32, 128),
    wide=2048,
    neurons=8,
    draws=4,
)


def run_decay(plan: DecayPlan) -> dict[str, Any]:
    """Return both series, and their slopes with both axes logarithmic; on the CPU, for the steps are many and small."""
    sizes = {
        GROWING_WIDTH: [(width, plan.few_samples) for width in plan.widths],
        GROWING_SAMPLES: [(plan.wide, samples) for samples in plan.samples],
    }
    figures: dict[str, Any] = {"plan": asdict(plan)}
    with reporting(True, "decay", sum(map(len, sizes.values()))) as report:
        done = 0
        for name, series in sizes.items():
            points = []
            for width, samples in series:
                errors = measure_median_errors(width, samples, plan.neurons, plan.draws)
                points.append({"N₀": width, "m": samples, **errors})
                done += 1
                report(done, width=width, samples=samples, error=errors["GPFQ"])
            figures[name] = _add_bound(points)
    figures["slopes"] = {
        GROWING_WIDTH: fit_slope(plan.widths, [point["GPFQ"] for point in figures[GROWING_WIDTH]]),
        GROWING_SAMPLES: fit_slope(plan.samples, [point["GPFQ"] for point in figures[GROWING_SAMPLES]]),
    }
    return figures


def measure_median_errors(width: int, samples: int, neurons: int, draws: int) -> dict[str, float]:
    """Return the median of ‖Xw − Xq‖ / ‖Xw‖ over neurons and draws, for GPFQ and for nearest rounding."""
    drawn = [_draw(width, samples, neurons, seed) for seed in range(draws)]
    weights, data = (torch.stack(each) for each in zip(*drawn, strict=True))
    levels = torch.tensor(TERNARY, dtype=torch.float64)
    grid = Grid(torch.ones(draws, neurons, dtype=torch.float64), levels)
    each = Grid(grid.scales[:, :, None], levels)
    chosen = {"GPFQ": gpfq_along_data(weights, data, data, grid), "MSQ": each.indices(weights)}
    return {
        name: float(_compute_relative_errors(weights, each.values(indices), data).median())
        for name, indices in chosen.items()
    }


def bound(width: int, samples: int) -> float:
    """Compute log(N₀) √(m/N₀), the shape of Theorem 2's bound."""
    return math.log(width) * math.sqrt(samples / width)


def fit_slope(sizes: Sequence[int], errors: Sequence[float]) -> float:
    """Return the slope of the straight line that fits log error against log size best."""
    x, y = (torch.tensor(values, dtype=torch.float64).log() for values in (sizes, errors))
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def _draw(width: int, samples: int, neurons: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw weights uniform on [−1, 1], neurons×N₀, and standard normal data, m×N₀."""
    generator = torch.Generator().manual_seed(seed)
    weights = 2 * torch.rand(neurons, width, generator=generator, dtype=torch.float64) - 1
    return weights, torch.randn(samples, width, generator=generator, dtype=torch.float64)


def _compute_relative_errors(weights: Tensor, quantized: Tensor, data: Tensor) -> Tensor:
    """Compute ‖Xw − Xq‖ / ‖Xw‖, (draws, neurons)."""
    return ((weights - quantized) @ data.mT).norm(dim=2) / (weights @ data.mT).norm(dim=2)


def _add_bound(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the shape of the bound beside each point, scaled so that it begins where GPFQ's errors do."""
    scale = points[0]["GPFQ"] / bound(points[0]["N₀"], points[0]["m"])
    return [{**point, "scaled bound": scale * bound(point["N₀"], point["m"])} for point in points]
