"""Products with Kronecker-sparse factors on a GPU: how far from the goals, and where patterns and batches are others.

    python benchmarks/kronecker_gpu.py [--store]

"goals" reads what `python -m experiments kronecker --full --device cuda` has stored, the
patterns of figure D.1 of the thesis for 25088 vectors, and takes those with ad ≥ 2. Factors are the time of the fastest
of bmm, einsum and dense over that of our kernel, or over that of the backend which `prefers` names. Floors: bytes are
read and written once at 4.3 TB/s; multiplications are made at 790/3 T/s (one of float32 numbers by three of float16
numbers) or 790 T/s, counting an addition with each of them.

"training" is forward and backward of a linear layer of ViT-S/16, 25088 vectors; "butterflies" a layer of 4096 × 4096 in
12 factors of 2 × 2 blocks, at inference and in training; "batches" one factor and batches that no power of two divides.
All are measured here: times are of the device alone, its cache emptied before each (tamis.kernels.timing).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from measure import store
from torch import Tensor, nn

from experiments import RESULTS as EXPERIMENTS
from experiments.kronecker_compile import compile_layers, compile_products
from experiments.kronecker_patterns import BATCH
from experiments.kronecker_peers import PEERS, Row, from_line
from experiments.kronecker_vit import SQUARE, UP
from tamis.kernels import time_in_turns
from tamis.kronecker import BACKENDS, BATCH_FIRST, KroneckerLinear, Pattern, butterfly
from tamis.kronecker.backends import LAYOUTS
from tamis.kronecker.inference_cache import prepare_step
from tamis.kronecker.triton import prefers

DTYPES = (torch.float32, torch.float16)
BANDWIDTH = 4.3e12
RATE = {torch.float32: 790e12 / 3, torch.float16: 790e12}
WIDTH, BUTTERFLY_BATCHES = 4096, (256, 4096, BATCH)
BATCHES = (1, 7, 100, 1000, 4099)
PATTERNS = tuple(
    Pattern(*sizes)
    for sizes in (
        (1, 1024, 1024, 1),
        (1, 192, 48, 2),
        (6, 64, 64, 1),
        (1, 768, 192, 2),
        (1, 128, 128, 16),
        (16, 64, 64, 4),
        (4, 256, 256, 16),
        (32, 32, 32, 1),
        (64, 16, 16, 1),
        (8, 8, 8, 16),
    )
)
SECONDS = 0.05


def goals() -> list[dict[str, Any]]:
    """By dtype and layout: how often our kernel is the fastest, by how much, and how far it is from the floor."""
    figures = json.loads((EXPERIMENTS / "kronecker_cuda.json").read_text())["figures"]["multiply"]
    assert figures["plan"]["batch"] == BATCH
    rows = [from_line(line) for line in figures["rows"]]
    return [
        summary([row for row in rows if _is(row, dtype, layout)], dtype, layout)
        for dtype in DTYPES
        for layout in LAYOUTS
    ]


def _is(row: Row, dtype: torch.dtype, layout: str) -> bool:
    return (row["dtype"], row["layout"]) == (name_of(dtype), layout) and row["pattern"].a * row["pattern"].d >= 2


def summary(rows: Sequence[Row], dtype: torch.dtype, layout: str) -> dict[str, Any]:
    """What all patterns say together."""
    best = [min(row["ms"][name] for name in PEERS) for row in rows]
    ours = [row["ms"]["triton"] for row in rows]
    preferred = [row["ms"][prefers(row["pattern"], dtype, layout, BATCH)] for row in rows]
    factors = [each / own for each, own in zip(best, ours, strict=True)]
    chosen = [each / own for each, own in zip(best, preferred, strict=True)]
    gaps = [own / floor(row["pattern"], dtype) for row, own in zip(rows, ours, strict=True)]
    return {
        "dtype": name_of(dtype),
        "layout": layout,
        "patterns": len(rows),
        "fastest": sum(factor > 1 for factor in factors) / len(rows),
        "median factor": statistics.median(factors),
        "worst factor": min(factors),
        "as preferred: worst factor": min(chosen),
        "as preferred: within 5%": sum(factor >= 0.95 for factor in chosen) / len(rows),
        "within 2.5 of the floor": sum(gap <= 2.5 for gap in gaps) / len(rows),
        "median over floor": statistics.median(gaps),
        "largest error": max(row["error"] for row in rows),
    }


def floor(pattern: Pattern, dtype: torch.dtype, batch: int = BATCH) -> float:
    """Milliseconds that bytes or multiplications take at least."""
    moved = batch * (pattern.rows + pattern.columns) * dtype.itemsize
    return 1e3 * max(moved / BANDWIDTH, 2 * batch * pattern.nonzeros / RATE[dtype])


def training() -> list[dict[str, Any]]:
    """Steps of the products that stand for linear layers of ViT-S/16."""
    compile_layers((SQUARE, UP), DTYPES)
    return [
        {"layer": name, "dtype": name_of(dtype), "ms": training_step(patterns, BATCH, dtype)}
        for dtype in DTYPES
        for name, patterns in (("384 → 384", SQUARE), ("384 → 1536", UP))
    ]


def training_step(patterns: Sequence[Pattern], batch: int, dtype: torch.dtype) -> dict[str, float]:
    """Forward and backward, with all gradients."""
    layers = layers_of(patterns, dtype)
    x = torch.randn(batch, patterns[-1].columns, device="cuda", dtype=dtype, requires_grad=True)
    upstream = torch.randn(batch, patterns[0].rows, device="cuda", dtype=dtype)

    def step(layer: nn.Module) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(layer(x), (x, *layer.parameters()), upstream)

    return milliseconds({name: step(layer) for name, layer in layers.items()})


def layers_of(patterns: Sequence[Pattern], dtype: torch.dtype) -> dict[str, nn.Module]:
    """A dense layer, and products by each way."""
    dense = nn.Linear(patterns[-1].columns, patterns[0].rows, device="cuda", dtype=dtype)
    ways = {"triton": "triton", "bmm": "bmm", "chosen": None}
    return {"dense": dense} | {
        name: KroneckerLinear(patterns, backend=way, device="cuda", dtype=dtype) for name, way in ways.items()
    }


def butterflies() -> list[dict[str, Any]]:
    """A layer of 4096 × 4096 in twelve factors."""
    rows = []
    for dtype in DTYPES:
        for batch in BUTTERFLY_BATCHES:
            layers = layers_of(butterfly(WIDTH), dtype)
            x = torch.randn(batch, WIDTH, device="cuda", dtype=dtype)
            with torch.inference_mode():
                forward = milliseconds({name: applied(layer.eval(), x) for name, layer in layers.items()})
            least = sum(floor(pattern, dtype, batch) for pattern in butterfly(WIDTH))
            rows.append({"batch": batch, "dtype": name_of(dtype), "floor ms": least, "ms": forward})
            if batch < BATCH:
                rows[-1]["training ms"] = training_step(butterfly(WIDTH), batch, dtype)
    return rows


def applied(layer: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    return lambda: layer(x)


def batches() -> list[dict[str, Any]]:
    """Each way to multiply by one factor, its weights prepared, and what is preferred."""
    compile_products(PATTERNS, DTYPES, BATCHES)
    rows = []
    for dtype in DTYPES:
        for layout in LAYOUTS:
            for pattern in PATTERNS:
                weight = ((torch.rand(pattern.shape, device="cuda") * 2 - 1) / math.sqrt(pattern.c)).to(dtype)
                for batch in BATCHES:
                    ms = one_product(weight, pattern, layout, batch)
                    name = prefers(pattern, dtype, layout, batch)
                    about = {"pattern": str(pattern), "dtype": name_of(dtype), "layout": layout, "batch": batch}
                    others, best = min(ms["bmm"], ms["dense"]), min(ms.values())
                    ratios = {"factor": round(others / ms[name], 3), "of the best": round(best / ms[name], 3)}
                    rows.append({**about, "preferred": name, **ratios, "ms": ms})
    return rows


def one_product(weight: Tensor, pattern: Pattern, layout: str, batch: int) -> dict[str, float]:
    shape = (batch, pattern.columns) if layout == BATCH_FIRST else (pattern.columns, batch)
    x = torch.randn(shape, device="cuda", dtype=weight.dtype)

    def by(name: str) -> Callable[[], Tensor]:
        step = prepare_step(BACKENDS[name], weight, pattern, layout)
        return lambda: step(x, None)

    with torch.inference_mode():
        return milliseconds({name: by(name) for name in ("triton", "bmm", "dense")}, SECONDS / 5)


def milliseconds(tasks: dict[str, Callable[[], Any]], seconds: float = SECONDS) -> dict[str, float]:
    return {name: round(1e3 * value, 5) for name, value in time_in_turns(tasks, "cuda", seconds).items()}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/kronecker_gpu.json")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"batch": BATCH}
    for part in (goals, training, butterflies, batches):
        figures[part.__name__] = part()
        print(part.__name__)
        for row in figures[part.__name__]:
            print("   ", {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    print("where another is faster than the preferred one:")
    for row in sorted(figures["batches"], key=lambda row: row["of the best"])[:8]:
        print("   ", *(row[key] for key in ("pattern", "dtype", "layout", "batch", "preferred", "of the best")))
    if arguments.store:
        print(f"stored in {store('kronecker_gpu', figures)}")


if __name__ == "__main__":
    main()
