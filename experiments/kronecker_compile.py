"""Triton's kernels for many patterns, compiled before any is timed: by as many processes as there are cores.

A kernel takes a second or more to compile, and what one process has compiled others find on disk. Each is compiled by
running it once, on few vectors, for one of the patterns that share it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

import torch

from tamis.kernels.triton.kronecker_tiles import tile_of
from tamis.kronecker import KroneckerLinear, Pattern
from tamis.kronecker.backends import BATCH_LAST, LAYOUTS

VECTORS = 2048
Job = tuple[tuple[Pattern, ...], torch.dtype, str, int]


def compile_products(
    patterns: Sequence[Pattern], dtypes: Sequence[torch.dtype], batches: Sequence[int] = (VECTORS,)
) -> None:
    """Compile kernels for products at inference with each of these patterns, in both layouts, and for batches of these
    sizes.
    """
    jobs: dict[tuple[Any, ...], Job] = {}
    for pattern, dtype, layout, batch in product(patterns, dtypes, LAYOUTS, batches):
        jobs.setdefault(_find_kernel(pattern, dtype, layout, batch), ((pattern,), dtype, layout, batch))
    _run_in_processes(_infer, jobs.values())


def compile_layers(chains: Iterable[Sequence[Pattern]], dtypes: Sequence[torch.dtype]) -> None:
    """Compile kernels for layers with these patterns, the batch first: at inference and in training."""
    _run_in_processes(_train, [(tuple(chain), dtype, LAYOUTS[0], VECTORS) for chain in chains for dtype in dtypes])


def _find_kernel(pattern: Pattern, dtype: torch.dtype, layout: str, batch: int) -> tuple[Any, ...]:
    """Return what a kernel is compiled for."""
    tile = tile_of(pattern.shape, dtype, layout == BATCH_LAST, batch)
    kinds = tuple(_classify_size(size) for size in pattern.shape)
    return tile, dtype, layout, batch, kinds, pattern.d if tile.way == "columns" else None


def _classify_size(size: int) -> int:
    """Return the kind of a size: Triton compiles kernels of their own for 1, and for multiples of 16."""
    return 1 if size == 1 else 16 if size % 16 == 0 else 0


def _infer(job: Job) -> None:
    patterns, dtype, layout, batch = job
    layer = KroneckerLinear(patterns, bias=False, layout=layout, backend="triton", device="cuda", dtype=dtype).eval()
    columns = layer.in_features
    with torch.inference_mode():
        layer(torch.randn((columns, batch) if layout == BATCH_LAST else (batch, columns), device="cuda").to(dtype))
    torch.cuda.synchronize()


def _train(job: Job) -> None:
    patterns, dtype, _, batch = job
    layer = KroneckerLinear(patterns, backend="triton", device="cuda", dtype=dtype)
    x = torch.randn(batch, layer.in_features, device="cuda", dtype=dtype, requires_grad=True)
    layer(x).sum().backward()
    with torch.inference_mode():
        layer.eval()(x)
    torch.cuda.synchronize()


def _run_in_processes(run: Callable[[Job], None], jobs: Iterable[Job]) -> None:
    context = multiprocessing.get_context("spawn")  # a process that was forked could not use the GPU
    with ProcessPoolExecutor(multiprocessing.cpu_count(), mp_context=context) as pool:
        list(pool.map(run, jobs))
