"""`Kept`: what a layer keeps from call to call at inference, so that a call costs little more than its kernels do.

Two things are kept: which backend multiplies by each factor, for the device, dtype, layout and size of the batch; and
the weights as these backends read them, which would be packed, or filled up with zeros, in every call otherwise.

What is kept costs memory: as much as the weights once more, and for the backend "dense" a matrix with its zeros,
rows × columns, or one for the whole product K₁…K_L. It is made where that backend multiplies, and goes with the layer,
with its weights (`Module.to`), and with every change between `train()` and `eval()`. Copies and pickled layers begin
with nothing.

A change of the weights is seen: by torch's counter of changes in place, and by where the weights lie. Torch does not
count what is written through `Tensor.data` or NumPy; after that, call `eval()` of the layer once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from tamis.kernels.binary import watched
from tamis.kronecker import tuning
from tamis.kronecker.backends import BATCH_FIRST, DENSE, HALF, Backend, Step, as_matrix, by_matrix, chosen, named
from tamis.kronecker.pattern import Pattern

DEVICES = ("cpu", "cuda")
MOST = 4  # kinds of inputs for which weights are kept at a time
# Multiplications in half precision that take a GPU as long as one number does that it reads or writes: it adds and
# multiplies 790 · 10¹² and moves 4.3 · 10¹² bytes a second, the floors of benchmarks/kronecker_gpu.py.
A_NUMBER = 184
# On a CPU, a chain of so many factors or more takes vectors through all of them a few at a time, of so many bytes
# between two factors, which caches hold: a butterfly of 4096 takes half as long for 4096 vectors. For two factors the
# second reads the memory that it saves, and a slice more costs more than that.
LONG, SLICE = 4, 2 << 20


State = tuple[tuple[int, int, tuple[int, ...]], ...]  # of each weight: changes so far, address, strides


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Steps from x to x Wᵀ + bias, with what the weights were when these were prepared.

    The memory of the weights is held, so that no other tensor can come to lie there: an address tells them apart.
    """

    steps: tuple[Step, ...]
    state: State
    held: tuple[torch.UntypedStorage, ...]
    together: int | None  # how many vectors go through all steps at a time; None: all of them

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.together is None or len(x) <= self.together:
            return self._of_slice(x, bias)
        parts = x.split(self.together)
        first = self._of_slice(parts[0], bias)
        y = first.new_empty((len(x), first.shape[1]))
        for place, part in zip(y.split(self.together), parts, strict=True):
            place.copy_(first if part is parts[0] else self._of_slice(part, bias))
        return y

    def _of_slice(self, x: Tensor, bias: Tensor | None) -> Tensor:
        for step in self.steps[:-1]:
            x = step(x, None)
        return self.steps[-1](x, bias)


class Kept:
    """Products of one layer at inference; see the module.

    Example:
        >>> layer = KroneckerLinear(monarch(96, 64, 4)).eval()
        >>> with torch.no_grad():
        ...     layer(torch.randn(5, 64)).shape  # prepares the weights, and the next call finds them
        torch.Size([5, 96])
    """

    def __init__(self) -> None:
        # Both are replaced, and never changed, so that threads may share them; what they hold is complete.
        self._choices: dict[tuple[Any, ...], tuple[tuning.Table, tuple[Backend, ...]]] = {}
        self._prepared: dict[tuple[Any, ...], _Prepared] = {}

    def __len__(self) -> int:
        """For how many kinds of inputs weights are kept."""
        return len(self._prepared)

    def __deepcopy__(self, memo: dict[int, Any]) -> Kept:
        return Kept()

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    def forget(self) -> None:
        """Give back the memory of what is kept."""
        self._choices, self._prepared = {}, {}

    def product(
        self,
        x: Tensor,
        factors: nn.ParameterList,
        bias: Tensor | None,
        patterns: tuple[Pattern, ...],
        layout: str,
        backend: str | None,
    ) -> Tensor | None:
        """x Wᵀ + bias, or W x + bias; None where something looks on or does not fit: `multiply` knows what to do."""
        weights: tuple[Any, ...] = tuple(factors._parameters.values())
        if not _fits(x, weights, bias, patterns, layout):
            return None
        device = x.device
        stream = 0
        if device.type == "cuda":
            if torch.cuda.is_current_stream_capturing():  # the graph is to see weights that change
                return None
            stream = torch.cuda.current_stream(device).cuda_stream  # others would have to wait for this one
        shape = x.shape
        if len(shape) != 2:
            x = x.reshape((-1, shape[-1]) if layout == BATCH_FIRST else (shape[0], -1))
        ways = self._chosen(x, weights, patterns, layout, backend)
        kind = (ways, x.dtype, device, layout, stream, torch.get_float32_matmul_precision())
        prepared = self._prepared.get(kind)
        if prepared is None or prepared.state != _state(weights):
            prepared = self._prepare(kind, ways, weights, patterns, layout)
        x = prepared.product(x, bias)
        if len(shape) == 2:
            return x
        outputs = patterns[0].rows
        return x.reshape((*shape[:-1], outputs) if layout == BATCH_FIRST else (outputs, *shape[1:]))

    def _chosen(
        self, x: Tensor, weights: Sequence[Tensor], patterns: Sequence[Pattern], layout: str, backend: str | None
    ) -> tuple[Backend, ...]:
        """The backend of each factor, leftmost first: looked for once, and again when patterns have been tuned."""
        batch = x.shape[0] if layout == BATCH_FIRST else x.shape[1]
        kind = (x.dtype, x.device, layout, backend, tuning.power_of(batch), torch.get_num_threads())
        table, ways = self._choices.get(kind, (None, ()))
        if table is not tuning.remembered():
            table, found = tuning.remembered(), []
            for weight, pattern in zip(weights, patterns, strict=True):
                size = (batch, pattern.columns) if layout == BATCH_FIRST else (pattern.columns, batch)
                like = x.new_empty(()).expand(size)  # what this factor is given, but for the numbers
                way, _ = (
                    chosen(like, weight, pattern, layout)
                    if backend is None
                    else named(backend, like, weight, pattern, layout)
                )
                found.append(way)
            ways = tuple(found)
            self._choices = {**self._choices, kind: (table, ways)}
        return ways

    def _prepare(
        self,
        kind: tuple[Any, ...],
        ways: tuple[Backend, ...],
        weights: tuple[Tensor, ...],
        patterns: tuple[Pattern, ...],
        layout: str,
    ) -> _Prepared:
        state = _state(weights)  # before the weights are read: a change meanwhile shows in the next call
        held = tuple(weight.untyped_storage() for weight in weights)
        others = {of: prepared for of, prepared in self._prepared.items() if prepared.state == state}
        if len(others) >= MOST:
            others = {}
        self._prepared = others  # what is out of date makes room first
        if len(ways) > 1 and all(way is DENSE for way in ways) and whole_is_cheaper(patterns, weights[0]):
            steps: tuple[Step, ...] = (by_matrix(_whole(weights, patterns), layout),)
        else:
            chain = zip(ways, weights, patterns, strict=True)
            steps = tuple(_step(*each, layout) for each in reversed(list(chain)))
        prepared = _Prepared(
            steps, state, held, _together(weights[0], patterns, layout) if len(steps) >= LONG else None
        )
        self._prepared = {**others, kind: prepared}
        return prepared


def whole_is_cheaper(patterns: Sequence[Pattern], like: Tensor) -> bool:
    """Whether one dense product by K₁…K_L takes less than one by each dense factor.

    Counted are multiplications; in half precision on a GPU, for each product, those or the numbers that it moves,
    whichever take longer.

    Example:
        >>> whole_is_cheaper([Pattern(1, 64, 8, 1), Pattern(1, 8, 64, 1)], torch.empty(0))  # 64 · 64 and 2 · 8 · 64
        False
    """
    number = A_NUMBER if like.is_cuda and like.dtype in HALF else 0

    def cost(rows: int, columns: int) -> int:
        return max(rows * columns, number * (rows + columns))

    parts = sum(cost(pattern.rows, pattern.columns) for pattern in patterns)
    return cost(patterns[0].rows, patterns[-1].columns) <= parts


def _together(weight: Tensor, patterns: Sequence[Pattern], layout: str) -> int | None:
    """How many vectors a CPU takes through a chain at a time; None: all of them."""
    if weight.is_cuda or layout != BATCH_FIRST:
        return None
    widest = max(max(pattern.rows, pattern.columns) for pattern in patterns)
    return max(1, SLICE // (widest * weight.itemsize))


def _whole(weights: Sequence[Tensor], patterns: Sequence[Pattern]) -> Tensor:
    """K₁…K_L as one matrix, rounded once."""
    dtype = weights[0].dtype
    wide = torch.float32 if dtype in HALF else dtype
    matrices = [as_matrix(weight.to(wide), pattern) for weight, pattern in zip(weights, patterns, strict=True)]
    return torch.linalg.multi_dot(matrices).to(dtype)


def _step(way: Backend, weight: Tensor, pattern: Pattern, layout: str) -> Step:
    if way.prepare is not None:
        return way.prepare(weight, pattern, layout)

    def step(x: Tensor, bias: Tensor | None) -> Tensor:
        y = way.apply(x, weight, pattern, layout)
        return y if bias is None else y + (bias if layout == BATCH_FIRST else bias.unsqueeze(1))

    return step


def _state(weights: tuple[Tensor, ...]) -> State:
    return tuple([(weight._version, weight.data_ptr(), weight.stride()) for weight in weights])


def _fits(
    x: Tensor, weights: tuple[Tensor | None, ...], bias: Tensor | None, patterns: tuple[Pattern, ...], layout: str
) -> bool:
    """Whether plain numbers are multiplied, of one dtype on one device, and nothing of torch looks on."""
    if watched() or torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return False
    if type(x) is not Tensor or x.layout != torch.strided or len(weights) != len(patterns):
        return False
    if x.dim() == 0 or x.shape[-1 if layout == BATCH_FIRST else 0] != patterns[-1].columns:
        return False
    dtype, device, gradients = x.dtype, x.device, torch.is_grad_enabled()
    if device.type not in DEVICES or torch.is_autocast_enabled(device.type) or (gradients and x.requires_grad):
        return False
    for weight in weights if bias is None else (*weights, bias):
        if type(weight) is not nn.Parameter or weight.dtype != dtype or weight.device != device:
            return False
        if weight.is_inference() or (gradients and weight.requires_grad):  # an inference tensor counts no changes
            return False
    return True
