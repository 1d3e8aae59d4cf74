"""Products with Kronecker-sparse factors on a GPU, beside torch.bmm, einsum and dense matrices.

    python benchmarks/kronecker_gpu.py [--seconds 200] [--store]
    python benchmarks/kronecker_gpu.py --vit [--store]

The second is Table 5.5 alone, ViT-S/16 and its parts with 128 images in float32 and float16; kernels are compiled in
several processes first. Calls are those of eager PyTorch, layers in `eval()`; parts of less than 0.3 ms are recorded in
CUDA graphs, in which layers prepare their weights in each replay (tamis.kernels.timing, tamis.kronecker.kept).

Patterns are those of figure D.1 of the thesis with ad ≥ 2, in a shuffled order (seed 0), as many as there are seconds
for; the six named ones come first. The batch is 25088.

Each is given the weight as it likes it best, prepared beforehand, as a layer at inference keeps it: "triton", our
kernel, packed; "bmm" as ad blocks (figure of D.4.1), with its permutations of inputs and outputs; "dense" as a matrix.
"einsum" takes it as it is. A dense product is left out where the multiplications alone would take longer than
bmm took (at 60 T/s in float32 and 800 T/s in half precision, which no measured product exceeds).

Milliseconds are medians by CUDA events. Before every call 256 MB are overwritten, so that nothing waits in the cache;
calls take turns. Calls that move less than 400 MB are recorded in CUDA graphs: none of them waits for Python.

Floors: bytes are read and written once at 4.3 TB/s; multiplications are made at 790/3 T/s (one of float32 numbers by
three of float16 numbers) or 790 T/s, counting an addition with each of them.

Errors are ‖y − ŷ‖/‖ŷ‖ over the first 256 vectors, ŷ in float64.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from measure import store
from torch import Tensor, nn

from tamis.kernels.triton import kronecker as kernels
from tamis.kronecker.backends import BATCH_FIRST, LAYOUTS, as_matrix
from tamis.kronecker.layer import KroneckerLinear
from tamis.kronecker.pattern import Pattern
from tamis.kronecker.triton import prefers
from tamis.papers.kronecker_patterns import BATCH, benchmark_patterns
from tamis.papers.kronecker_vit import DENSE, DOWN, SQUARE, UP, measured_parts

NAMED = tuple(
    Pattern(*sizes)
    for sizes in (
        (1, 192, 48, 2),
        (1, 768, 192, 2),
        (1, 128, 128, 16),
        (16, 64, 64, 4),
        (64, 48, 48, 4),
        (4, 256, 256, 16),
    )
)
DTYPES = (torch.float32, torch.float16)
ALLOWED = {torch.float32: 1e-6, torch.float16: 2e-3}
BANDWIDTH = 4.3e12
RATE = {torch.float32: 790e12 / 3, torch.float16: 790e12}
DENSE_RATE = {torch.float32: 60e12, torch.float16: 800e12}
IN_GRAPHS = 400 << 20
CHECKED = 256
TRAINED = {
    "384 → 384": (384, 384, [(1, 192, 48, 2), (2, 48, 192, 1)]),
    "384 → 1536": (384, 1536, [(1, 768, 192, 2), (6, 64, 64, 1)]),
}


def drawn(pattern: Pattern, dtype: torch.dtype, layout: str, batch: int = BATCH) -> tuple[Tensor, Tensor]:
    """An input and a weight as in D.2.1."""
    shape = (batch, pattern.columns) if layout == BATCH_FIRST else (pattern.columns, batch)
    weight = (torch.rand(pattern.shape, device="cuda") * 2 - 1) / pattern.c**0.5
    return torch.randn(shape, device="cuda", dtype=dtype), weight.to(dtype)


def bmm(x: Tensor, blocks: Tensor, pattern: Pattern, layout: str) -> Tensor:
    """Algorithm 5.1.2 with blocks (ad, c, b), or (ad, b, c) where the batch is last."""
    a, b, c, d = pattern.shape
    if layout == BATCH_FIRST:
        columns = x.reshape(-1, a, c, d).permute(1, 3, 0, 2).reshape(a * d, -1, c)
        return torch.bmm(columns, blocks).reshape(a, d, -1, b).permute(2, 0, 3, 1).reshape(-1, pattern.rows)
    columns = x.reshape(a, c, d, -1).permute(0, 2, 1, 3).reshape(a * d, c, -1)
    return torch.bmm(blocks, columns).reshape(a, d, b, -1).permute(0, 2, 1, 3).reshape(pattern.rows, -1)


def einsum(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> Tensor:
    a, _, c, d = pattern.shape
    if layout == BATCH_FIRST:
        return torch.einsum("zacd,abcd->zabd", x.reshape(-1, a, c, d), weight).reshape(-1, pattern.rows)
    return torch.einsum("acdz,abcd->abdz", x.reshape(a, c, d, -1), weight).reshape(pattern.rows, -1)


class Clock:
    """Medians of calls that take turns, each after 256 MB were overwritten."""

    def __init__(self) -> None:
        self.overwritten = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def milliseconds(self, tasks: dict[str, Callable[[], Any]], rounds: int, graphs: bool) -> dict[str, float]:
        calls = {name: _in_graph(task) if graphs else task for name, task in tasks.items()}
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        for _ in range(rounds):
            for name, call in calls.items():
                self.overwritten.zero_()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                call()
                end.record()
                events[name].append((start, end))
        torch.cuda.synchronize()
        return {
            name: statistics.median(start.elapsed_time(end) for start, end in each) for name, each in events.items()
        }


def _in_graph(task: Callable[[], Any]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        task()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        task()
    return graph.replay


def measured(pattern: Pattern, dtype: torch.dtype, layout: str, clock: Clock) -> dict[str, Any]:
    """One row of figures; also whether the product is right."""
    x, weight = drawn(pattern, dtype, layout)
    last = layout != BATCH_FIRST
    blocks = weight.permute(0, 3, 1, 2).reshape(-1, pattern.b, pattern.c)
    blocks = blocks.contiguous() if last else blocks.transpose(1, 2).contiguous()
    factor = kernels.Factor(weight, last, tf32=False)
    tasks: dict[str, Callable[[], Any]] = {
        "triton": lambda: factor(x),
        "bmm": lambda: bmm(x, blocks, pattern, layout),
        "einsum": lambda: einsum(x, weight, pattern, layout),
    }
    some = x[:, :CHECKED] if last else x[:CHECKED]
    found = factor(x)
    found = found[:, :CHECKED] if last else found[:CHECKED]
    wanted = einsum(some.double().contiguous(), weight.double(), pattern, layout)
    error = float((found.double() - wanted).norm() / wanted.norm())
    assert error <= ALLOWED[dtype], (pattern, dtype, layout, error)
    del found, wanted
    moved = BATCH * (pattern.rows + pattern.columns) * x.element_size()
    products = BATCH * pattern.nonzeros
    graphs, rounds = moved < IN_GRAPHS, 5 if moved < 2 * IN_GRAPHS else 3
    found_ms = clock.milliseconds(tasks, rounds, graphs)
    least_dense = 2e3 * products * pattern.a * pattern.d / DENSE_RATE[dtype]
    if least_dense < found_ms["bmm"]:
        matrix = as_matrix(weight, pattern)
        dense = (lambda: matrix @ x) if last else (lambda: nn.functional.linear(x, matrix))
        found_ms |= clock.milliseconds({"dense": dense, "triton": tasks["triton"]}, rounds, graphs)
    return {
        "pattern": str(pattern),
        "dtype": str(dtype).removeprefix("torch."),
        "layout": layout,
        "way": kernels.tile_of(pattern.shape, dtype, last, BATCH).way,
        "ms": {name: round(value, 5) for name, value in found_ms.items()},
        "floor_ms": round(1e3 * max(moved / BANDWIDTH, 2 * products / RATE[dtype]), 5),
        "error": error,
    }


def training_steps(clock: Clock) -> list[dict[str, Any]]:
    """Forward and backward of a linear layer, dense and Kronecker-sparse, with tensors of 25088 vectors."""
    rows = []
    for dtype in DTYPES:
        for name, (inputs, outputs, patterns) in TRAINED.items():
            x = torch.randn(BATCH, inputs, device="cuda", dtype=dtype, requires_grad=True)
            upstream = torch.randn(BATCH, outputs, device="cuda", dtype=dtype)
            layers = {
                "dense": nn.Linear(inputs, outputs, device="cuda", dtype=dtype),
                **{
                    way: KroneckerLinear(patterns, device="cuda", dtype=dtype, backend=way) for way in ("triton", "bmm")
                },
            }

            def step(layer: nn.Module, x: Tensor = x, upstream: Tensor = upstream) -> Any:
                return torch.autograd.grad(layer(x), (x, *layer.parameters()), upstream)

            tasks = {way: (lambda layer=layer: step(layer)) for way, layer in layers.items()}
            forward = {f"{way} forward": (lambda layer=layer, x=x: layer(x.detach())) for way, layer in layers.items()}
            ms = clock.milliseconds(tasks, 9, graphs=True) | clock.milliseconds(forward, 9, graphs=True)
            rows.append({"layer": name, "dtype": str(dtype).removeprefix("torch."), "ms": ms})
    return rows


def compiled(job: tuple[Pattern, torch.dtype, str]) -> None:
    """Run one product, and the gradients of one, so that their kernels are on disk."""
    pattern, dtype, layout = job
    x, weight = drawn(pattern, dtype, layout, batch=2048)
    y = kernels.multiply(x, weight, layout != BATCH_FIRST, tf32=False)
    if pattern.a * pattern.d <= 6:
        kernels.multiply(y, weight.transpose(1, 2).contiguous(), layout != BATCH_FIRST, tf32=False)
        kernels.weight_gradient(x, y, pattern.shape, layout != BATCH_FIRST, tf32=False)
    torch.cuda.synchronize()


def compile_all(patterns: list[Pattern]) -> None:
    """Each kernel once, in as many processes as there are cores."""
    jobs = {}
    trained = [Pattern(*sizes) for _, _, chain in TRAINED.values() for sizes in chain]
    for pattern in patterns + trained:
        for dtype in DTYPES:
            for layout in LAYOUTS:
                tile = kernels.tile_of(pattern.shape, dtype, layout != BATCH_FIRST, BATCH)
                kind = _kind(pattern.a), pattern.d if tile.way == "columns" else _kind(pattern.d)
                jobs.setdefault((tile, dtype, layout, *kind), (pattern, dtype, layout))
    jobs |= {(pattern, dtype): (pattern, dtype, BATCH_FIRST) for pattern in trained for dtype in DTYPES}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(multiprocessing.cpu_count(), mp_context=context) as pool:
        list(pool.map(compiled, jobs.values()))


def compiled_layer(job: tuple[tuple[Pattern, ...], torch.dtype]) -> None:
    """Run a layer of the vision transformer at inference and in training, so that its kernels are on disk."""
    patterns, dtype = job
    layer = KroneckerLinear(patterns, backend="triton", device="cuda", dtype=dtype).eval()
    x = torch.randn(2048, layer.in_features, device="cuda", dtype=dtype, requires_grad=True)
    with torch.inference_mode():
        layer(x)
    layer.train()(x).sum().backward()
    torch.cuda.synchronize()


def vit(seconds: float) -> dict[str, Any]:
    """Milliseconds of the parts of ViT-S/16 by dtype, and times over those of the dense ones."""
    started = time.perf_counter()
    jobs = [(patterns, dtype) for patterns in (SQUARE, UP, DOWN) for dtype in DTYPES]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(jobs), mp_context=context) as pool:
        list(pool.map(compiled_layer, jobs))
    print(f"compiled after {time.perf_counter() - started:.0f} s", flush=True)
    figures: dict[str, Any] = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        rows = figures[name] = []
        ways = {"bmm": "bmm", "triton": "triton", "chosen": None}
        for row in measured_parts(ways, 128, "cuda", dtype, seconds):
            times = row["ms"]
            row["over dense"] = {way: ms / times[DENSE] for way, ms in times.items() if way != DENSE}
            rows.append(row)
            ratios = ", ".join(f"{way} {value:.2f}" for way, value in row["over dense"].items())
            print(f"{name} {row['part']}: dense {times[DENSE]:.3f} ms; over it: {ratios}", flush=True)
    print(f"{time.perf_counter() - started:.0f} s in all")
    return figures


def _kind(size: int) -> int:
    """Sizes for which Triton compiles a kernel of their own: 1, and multiples of 16."""
    return 1 if size == 1 else 16 if size % 16 == 0 else 0


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By dtype and layout: how often "triton" is fastest, and by how much; and the same for what `prefers` says."""
    summaries = []
    for dtype in DTYPES:
        for layout in LAYOUTS:
            name = str(dtype).removeprefix("torch.")
            some = [row for row in rows if (row["dtype"], row["layout"]) == (name, layout)]
            factors, dispatched, gaps = [], [], []
            for row in some:
                best = min(ms for way, ms in row["ms"].items() if way != "triton")
                factors.append(best / row["ms"]["triton"])
                sizes = [int(size) for size in row["pattern"].strip("()").split(",")]
                dispatched.append(best / row["ms"].get(prefers(Pattern(*sizes), dtype, layout, BATCH), float("inf")))
                gaps.append(row["ms"]["triton"] / row["floor_ms"])
            summaries.append(
                {
                    "dtype": name,
                    "layout": layout,
                    "patterns": len(some),
                    "fastest": sum(factor > 1 for factor in factors) / len(some),
                    "median factor": statistics.median(factors),
                    "worst factor": min(factors),
                    "dispatched: worst factor": min(dispatched),
                    "dispatched: within 5%": sum(factor >= 0.95 for factor in dispatched) / len(some),
                    "dispatched: median factor": statistics.median(dispatched),
                    "within 2.5 of the floor": sum(gap <= 2.5 for gap in gaps) / len(some),
                    "median over floor": statistics.median(gaps),
                    "largest error": max(row["error"] for row in some),
                }
            )
    return summaries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200, help="after which no other pattern is begun")
    parser.add_argument("--vit", action="store_true", help="ViT-S/16 and its parts, instead of patterns")
    parser.add_argument(
        "--store", action="store_true", help="write docs/results/kronecker_gpu.json, or kronecker_vit.json"
    )
    arguments = parser.parse_args()
    if arguments.vit:
        figures = vit(seconds=0.5)
        if arguments.store:
            print(f"stored in {store('kronecker_vit', figures)}")
        return
    started = time.perf_counter()
    others = [pattern for pattern in benchmark_patterns() if pattern.density < 1 and pattern not in NAMED]
    random.Random(0).shuffle(others)
    patterns = [*NAMED, *others]
    compile_all(patterns)
    print(f"compiled after {time.perf_counter() - started:.0f} s", flush=True)
    clock = Clock()
    rows: list[dict[str, Any]] = []
    for pattern in patterns:
        if time.perf_counter() - started > arguments.seconds:
            break
        rows += [measured(pattern, dtype, layout, clock) for dtype in DTYPES for layout in LAYOUTS]
        if pattern in NAMED:
            for row in rows[-4:]:
                print(*(row[key] for key in ("pattern", "dtype", "layout", "way", "ms", "floor_ms")), flush=True)
    summaries = summary(rows)
    for each in summaries:
        print({key: round(value, 3) if isinstance(value, float) else value for key, value in each.items()})
    print(f"{len(rows) // 4} of {len(patterns)} patterns in {time.perf_counter() - started:.0f} s")
    figures = {
        "batch": BATCH,
        "asked for": len(patterns),
        "summary": summaries,
        "patterns": rows,
    }
    if arguments.store:
        print(f"stored in {store('kronecker_gpu', figures)}")
    figures["training steps"] = training_steps(clock)
    for row in figures["training steps"]:
        print(row["layer"], row["dtype"], {way: round(ms, 4) for way, ms in row["ms"].items()})
    if arguments.store:
        store("kronecker_gpu", figures)


if __name__ == "__main__":
    main()
