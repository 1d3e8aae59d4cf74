"""Ways to multiply by one Kronecker-sparse matrix, timed side by side: our kernels, and the text's bmm, einsum, dense.

Peers are as appendix D.4.1 has them. Kernels are all backends of `tamis.kronecker.backends` but those made of torch's
own operations. Each has its weights stored beforehand in the form that it wants, as layers keep them at inference.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tamis.kernels import time_in_turns
from tamis.kronecker import BACKENDS, BATCH_FIRST, DENSE, Pattern, multiply
from tamis.kronecker.backends import BMM, ELEMENTWISE, REFERENCE, Backend, as_matrix
from tamis.kronecker.inference_cache import prepare_step

BMM_PEER, EINSUM_PEER, DENSE_PEER = PEERS = ("bmm", "einsum", "dense")
CHOSEN = "chosen"  # the backend that `multiply` chooses, where it is none of the kernels
OF_TORCH = (REFERENCE.name, BMM.name, ELEMENTWISE.name, DENSE.name)
COMPARED = 8  # vectors at each end of a batch that are compared with float64
HEADROOM = 1.1  # how much faster than a large square product any other may be
SQUARE = {"cpu": 1024, "cuda": 8192}
Row = dict[str, Any]
Runs = dict[str, Callable[[], Tensor]]


def list_kernel_names() -> list[str]:
    """Return backends that are kernels of tamis."""
    return [name for name in BACKENDS if name not in OF_TORCH]


class Bench:
    """One pattern, batch and dtype, on one device; weights uniform in ± 1/√c, inputs normal (D.2.1)."""

    def __init__(self, pattern: Pattern, batch: int, dtype: str, device: str) -> None:
        self.pattern, self.batch, self.dtype, self.device = pattern, batch, dtype, device
        generator = torch.Generator(device).manual_seed(0)
        drawn = torch.rand(pattern.shape, generator=generator, device=device)
        self.weight = ((2 * drawn - 1) / math.sqrt(pattern.c)).to(getattr(torch, dtype))

    def x(self, layout: str) -> Tensor:
        """Return the inputs; those of all patterns share one memory."""
        normal = _draw_normal(self.batch * self.pattern.columns, self.weight.dtype, self.device)
        return normal.view(self.batch, -1) if layout == BATCH_FIRST else normal.view(-1, self.batch)

    def peers(self, layout: str) -> Runs:
        """Return bmm and einsum, each as a task."""
        x, weight, pattern = self.x(layout), self.weight, self.pattern
        bmm = _multiply_batch_first if layout == BATCH_FIRST else _multiply_batch_last
        return {
            BMM_PEER: lambda: bmm(x, self._blocks, pattern),
            EINSUM_PEER: lambda: REFERENCE.apply(x, weight, pattern, layout),
        }

    def dense(self, layout: str) -> Callable[[], Tensor]:
        """Multiply by the whole matrix."""
        x, matrix = self.x(layout), as_matrix(self.weight, self.pattern)
        return (lambda: F.linear(x, matrix)) if layout == BATCH_FIRST else (lambda: matrix @ x)

    def kernels(self, layout: str) -> Runs:
        """Return the kernels that accept this product, each as a task."""
        x, weight, pattern = self.x(layout), self.weight, self.pattern
        accepting = [BACKENDS[n] for n in list_kernel_names() if not BACKENDS[n].accepts(x, weight, pattern, layout)]
        return {backend.name: self._make_call(backend, layout) for backend in accepting}

    def _make_call(self, backend: Backend, layout: str) -> Callable[[], Tensor]:
        x, step = self.x(layout), prepare_step(backend, self.weight, self.pattern, layout)
        return lambda: step(x, None)

    def make_row(self, layout: str, seconds: float, right: float) -> Row:
        """Return milliseconds of each way, and which one `multiply` chooses.

        Args:
            layout: of inputs and outputs.
            seconds: of all rounds, about.
            right: what a kernel may be off, of the largest output, to have a time.
        """
        with torch.inference_mode():
            try:
                return self._assemble_row(layout, seconds, right)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()  # memory in pieces of other sizes
                return self._assemble_row(layout, seconds, right)

    def _assemble_row(self, layout: str, seconds: float, right: float) -> Row:
        tasks, error = self.peers(layout), None
        for name, run in self.kernels(layout).items():
            try:
                off = self._compute_error(run(), layout)
            except Exception as failure:  # one pattern that a kernel is not made for should not end a long run
                print(f"{name} failed at {self.pattern}, {self.dtype}, {layout}: {failure!r:.200}", file=sys.stderr)
                continue
            error = off if error is None else max(error, off)
            if off <= right:
                tasks[name] = run
        x, weight, pattern = self.x(layout), self.weight, self.pattern
        chosen = multiply(x, weight, pattern, layout, explain=True)[1].partition(":")[0]
        if chosen not in tasks or chosen in PEERS:
            tasks[CHOSEN] = self._make_call(BACKENDS[chosen], layout)
        times = time_in_turns(tasks, self.device, seconds)
        least = 2 * self.batch * pattern.rows * pattern.columns / _measure_rate(self.dtype, self.device)
        bounded = least > min(times.values())
        if not bounded:
            least = time_in_turns({DENSE_PEER: self.dense(layout)}, self.device, seconds / 4)[DENSE_PEER]
        times[DENSE_PEER] = least
        return {
            "pattern": pattern,
            "dtype": self.dtype,
            "layout": layout,
            "chosen": chosen,
            "error": error,
            "bounded": bounded,
            "ms": {name: 1e3 * value for name, value in times.items()},
        }

    def _compute_error(self, y: Tensor, layout: str) -> float:
        """Return how far some outputs are from those of float64, of the largest of them."""
        axis = 0 if layout == BATCH_FIRST else 1
        some = torch.tensor(sorted({*range(min(COMPARED, self.batch)), *range(self.batch)[-COMPARED:]}))
        some = some.to(self.device)
        exact = REFERENCE.apply(
            self.x(layout).index_select(axis, some).double(), self.weight.double(), self.pattern, layout
        )
        off = (y.index_select(axis, some).double() - exact).abs().max() / exact.abs().max()
        return float(off)

    @cached_property
    def _blocks(self) -> Tensor:
        """Return (ad, b, c), as bmm wants the weights."""
        a, b, c, d = self.pattern.shape
        return self.weight.permute(0, 3, 1, 2).reshape(a * d, b, c).contiguous()


def _multiply_batch_first(x: Tensor, blocks: Tensor, pattern: Pattern) -> Tensor:
    a, b, c, d = pattern.shape
    batch = x.shape[0]
    columns = x.view(batch, a, c, d).transpose(-1, -2).reshape(batch, a * d, c).transpose(0, 1)
    y = torch.bmm(columns, blocks.transpose(-1, -2))
    return y.transpose(0, 1).reshape(batch, a, d, b).transpose(-1, -2).reshape(batch, pattern.rows)


def _multiply_batch_last(x: Tensor, blocks: Tensor, pattern: Pattern) -> Tensor:
    a, b, c, d = pattern.shape
    batch = x.shape[1]
    columns = x.view(a, c, d, batch).transpose(1, 2).reshape(a * d, c, batch)
    return torch.bmm(blocks, columns).view(a, d, b, batch).transpose(1, 2).reshape(pattern.rows, batch)


_DRAWN: dict[tuple[torch.dtype, str], Tensor] = {}


def _draw_normal(count: int, dtype: torch.dtype, device: str) -> Tensor:
    """Draw so many normal numbers, of those drawn before where they are enough."""
    if (dtype, device) not in _DRAWN or len(_DRAWN[dtype, device]) < count:
        _DRAWN.pop((dtype, device), None)
        enough = 1 << (count - 1).bit_length()
        generator = torch.Generator(device).manual_seed(0)
        _DRAWN[dtype, device] = torch.randn(enough, generator=generator, device=device, dtype=dtype)
    return _DRAWN[dtype, device][:count]


@lru_cache(maxsize=8)
def _measure_rate(dtype: str, device: str) -> float:
    """Measure additions and multiplications a second of dense products, with some headroom."""
    size = SQUARE["cuda" if device.startswith("cuda") else "cpu"]
    square = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    return HEADROOM * 2 * size**3 / time_in_turns({"": lambda: square @ square}, device, 0.2)[""]


# -- rows as lines of text ---------------------------------------------------------------------------------------------


def write_line(row: Row) -> str:
    """Write a row in one line; "dense>" has the time that its multiplications take at least."""
    pattern = "({},{},{},{})".format(*row["pattern"].shape)
    error = "" if row["error"] is None else f" error={row['error']:.2g}"
    times = [f"{name}{'>' if name == DENSE_PEER and row['bounded'] else '='}{ms:.4g}" for name, ms in row["ms"].items()]
    return f"{pattern} {row['dtype']} {row['layout']} {row['chosen']}{error} ms: {' '.join(times)}"


def from_line(line: str) -> Row:
    """Read what `write_line` wrote, with the digits that it kept.

    Example:
        >>> from_line("(1,48,48,2) float32 batch_first bmm ms: bmm=0.1 einsum=0.2 dense>0.3")["ms"]
        {'bmm': 0.1, 'einsum': 0.2, 'dense': 0.3}
    """
    about, times = line.split(" ms: ")
    pattern, dtype, layout, chosen, *error = about.split()
    pairs = [re.split("[=>]", each) for each in times.split()]
    return {
        "pattern": Pattern(*map(int, pattern.strip("()").split(","))),
        "dtype": dtype,
        "layout": layout,
        "chosen": chosen,
        "error": float(error[0].removeprefix("error=")) if error else None,
        "bounded": f"{DENSE_PEER}>" in times,
        "ms": {name: float(ms) for name, ms in pairs},
    }
