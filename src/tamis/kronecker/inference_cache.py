"""The cache makes a layer's call at inference cost little more than its kernels do.

It holds two things: which backend multiplies by each factor, for the device, dtype, layout and size of the batch; and
the weights as these backends read them, which would otherwise be packed, or filled up with zeros, in every call.

The cache costs memory: as much as the weights once more, and for the backend "dense" a matrix with its zeros,
rows × columns, or one for the whole product K₁…K_L. An entry is made where that backend multiplies. The cache is
cleared when the layer moves (`Module.to`) and with every `train()` and `eval()`. Copies and unpickled layers begin with
an empty one.

The cache sees that weights changed by torch's counter of changes in place and by their addresses. Torch does not count
what fused optimizers write (`fused=True`), nor what is written through `Tensor.data`, through a tensor that was set as
`Tensor.data`, by NumPy or by another process. `train()` and `eval()` both clear the cache, so a training loop is safe;
after any other such change, call `eval()` once more. Weights that are part of a larger tensor and change with it, such
as those of `torch.nn.utils.vector_to_parameters`, are never cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tamis.kernels import is_intercepted, is_transform_active
from tamis.kronecker import tuned_table
from tamis.kronecker.backends import (
    BATCH_FIRST,
    BATCH_LAST,
    BMM,
    DENSE,
    HALF,
    Backend,
    Step,
    accumulation_dtype,
    as_matrix,
    is_aligned,
    make_matrix_step,
)
from tamis.kronecker.choice import choose_backend, find_backend
from tamis.kronecker.pattern import Pattern

DEVICES = ("cpu", "cuda")
MOST_KINDS = 4  # kinds of inputs for which weights are kept at a time
# Multiplications in half precision that take a GPU as long as one number does that it reads or writes: it adds and
# multiplies 790 · 10¹² and moves 4.3 · 10¹² bytes a second, the floors of benchmarks/kronecker_gpu.py.
MULTIPLICATIONS_PER_NUMBER = 184
# On a CPU, a chain of so many factors or more takes vectors through all of them a few at a time, of so many bytes
# between two factors, which caches hold: a butterfly of 4096 takes half as long for 4096 vectors. For two factors the
# second reads the memory that it saves, and a slice more costs more than that.
LONG_CHAIN, SLICE_BYTES = 4, 2 << 20


# Of each weight: which it is, changes so far, address, shape, strides, dtype, and whether torch is yet to negate it.
# Of the bias: which it is, shape, strides, dtype and device.
State = tuple[tuple[Any, ...] | None, ...]
CallKey = tuple[Any, ...]  # all of a call, but for its numbers, that decides how it is computed
NOT_CACHED = (None, None)


class Call(NamedTuple):
    """A call is a product that a layer asks for: the weights leftmost first, `backend` None to have one chosen."""

    x: Tensor
    weights: tuple[Any, ...]
    bias: Any
    patterns: tuple[Pattern, ...]
    layout: str
    backend: str | None


@dataclass(frozen=True, slots=True, eq=False)  # each is itself alone
class _Prepared:
    """A prepared call holds the steps from x to x Wᵀ + bias, with the state of the weights they were prepared from.

    The memory of the weights is held, so that no other tensor can come to lie there: an address tells them apart.
    """

    steps: tuple[Step, ...]
    state: State
    held: tuple[torch.UntypedStorage, ...]
    slice_length: int | None  # how many vectors go through all steps at a time; None: all of them
    takes_any_shape: bool  # whether all steps take a batch of any number of dimensions
    first: bool  # whether the batch is
    outputs: int

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Compute x Wᵀ + bias, or W x + bias."""
        shape = x.shape
        if self.takes_any_shape or len(shape) == 2:
            return self._multiply_matrix(x, bias)
        if self.first:
            return self._multiply_matrix(x.reshape(-1, shape[-1]), bias).reshape(*shape[:-1], self.outputs)
        return self._multiply_matrix(x.reshape(shape[0], -1), bias).reshape(self.outputs, *shape[1:])

    def _multiply_matrix(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.slice_length is None or len(x) <= self.slice_length:
            return self._multiply_slice(x, bias)
        parts = x.split(self.slice_length)
        # The first slice is computed before the result is allocated, because it says which width and dtype come out.
        first = self._multiply_slice(parts[0], bias)
        y = first.new_empty((len(x), first.shape[1]))
        for place, part in zip(y.split(self.slice_length), parts, strict=True):
            place.copy_(first if part is parts[0] else self._multiply_slice(part, bias))
        return y

    def _multiply_slice(self, x: Tensor, bias: Tensor | None) -> Tensor:
        for step in self.steps[:-1]:
            x = step(x, None)
        return self.steps[-1](x, bias)


class InferenceCache:
    """The cache holds the products of one layer at inference, with weights as backends read them; see the module.

    Example:
        >>> from tamis.kronecker import KroneckerLinear, monarch
        >>> layer = KroneckerLinear(monarch(96, 64, 4)).eval()
        >>> with torch.no_grad():
        ...     layer(torch.randn(5, 64)).shape  # prepares the weights, and the next call finds them
        torch.Size([5, 96])
    """

    def __init__(self) -> None:
        # Both are replaced, and never changed, so that threads may share them; what they hold is complete.
        self._by_call: dict[CallKey, tuple[tuned_table.Table, _Prepared]] = {}
        self._prepared: dict[tuple[Any, ...], _Prepared] = {}

    def __len__(self) -> int:
        """Return the number of kinds of inputs for which weights are cached."""
        return len(self._prepared)

    def __deepcopy__(self, memo: dict[int, Any]) -> InferenceCache:
        return InferenceCache()

    def __reduce__(self) -> tuple[type[InferenceCache], tuple[()]]:
        return InferenceCache, ()

    def clear(self) -> None:
        """Empty the cache, which frees its memory."""
        self._by_call, self._prepared = {}, {}

    def product(self, call: Call) -> Tensor | None:
        """Compute x Wᵀ + bias, or W x + bias; return None where `multiply` must do it, or report an error."""
        key = _make_key(call)
        if key is None:
            return None
        table, prepared = self._by_call.get(key, NOT_CACHED)
        if prepared is None or table is not tuned_table.read_table() or prepared.state != _state(call):
            # Only where something is new: these checks take longer than a small product.
            if not _is_supported(call):
                return None
            prepared = self._choose_and_prepare(key, call)
        return prepared.product(call.x, call.bias)

    def _choose_and_prepare(self, key: CallKey, call: Call) -> _Prepared:
        """Choose backends for a call, and return what is prepared for them, now or for an earlier batch."""
        table, ways = tuned_table.read_table(), _choose_backends(call)
        kind = (ways, call.x.dtype, call.x.device, call.layout, key[-1])
        prepared = self._prepared.get(kind)
        if prepared is None or prepared.state != _state(call):
            prepared = self._prepare(kind, ways, call)
        self._by_call = {**self._by_call, key: (table, prepared)}
        return prepared

    def _prepare(self, kind: tuple[Any, ...], ways: tuple[Backend, ...], call: Call) -> _Prepared:
        weights, patterns, layout = call.weights, call.patterns, call.layout
        # Taken before the weights are read: a change meanwhile shows in the next call.
        state = _state(call)
        held = tuple(weight.untyped_storage() for weight in weights)
        others = {of: prepared for of, prepared in self._prepared.items() if prepared.state == state}
        if len(others) >= MOST_KINDS:
            others = {}
        self._prepared = others  # what is out of date makes room first
        self._by_call = {key: entry for key, entry in self._by_call.items() if entry[1] in others.values()}
        densely, first = all(way is DENSE for way in ways), layout == BATCH_FIRST
        if len(ways) > 1 and densely and is_whole_cheaper(patterns, ways, weights[0]):
            steps: tuple[Step, ...] = (make_matrix_step(_multiply_out(weights, patterns), layout),)
        else:
            chain = reversed(list(zip(ways, weights, patterns, strict=True)))
            steps = tuple(prepare_step(way, weight, pattern, layout) for way, weight, pattern in chain)
        slice_length = _slice_length(weights[0], patterns, layout) if len(steps) >= LONG_CHAIN else None
        takes_any_shape = densely and first and slice_length is None
        prepared = _Prepared(steps, state, held, slice_length, takes_any_shape, first, patterns[0].rows)
        self._prepared = {**others, kind: prepared}
        return prepared


def is_whole_cheaper(patterns: Sequence[Pattern], ways: Sequence[Backend], like: Tensor) -> bool:
    """Return whether one dense product by K₁…K_L costs less than one by each factor with these backends.

    Counted are multiplications; in half precision on a GPU, for each product, those or the numbers that it moves,
    whichever take longer. Of ways that are not dense, the numbers alone: they take at least as long.

    Example:
        >>> chain = [Pattern(1, 64, 8, 1), Pattern(1, 8, 64, 1)]  # 64 · 64 and 2 · 8 · 64
        >>> is_whole_cheaper(chain, [DENSE, DENSE], torch.empty(0))
        False
    """
    number = MULTIPLICATIONS_PER_NUMBER if like.is_cuda and like.dtype in HALF else 0

    def cost(rows: int, columns: int, way: Backend) -> int:
        return max(rows * columns if way is DENSE else 0, number * (rows + columns))

    parts = sum(cost(pattern.rows, pattern.columns, way) for pattern, way in zip(patterns, ways, strict=True))
    return cost(patterns[0].rows, patterns[-1].columns, DENSE) <= parts


def _slice_length(weight: Tensor, patterns: Sequence[Pattern], layout: str) -> int | None:
    """Return how many vectors a CPU takes through a chain at a time, or None for all of them."""
    if weight.is_cuda or layout != BATCH_FIRST:
        return None
    widest = max(max(pattern.rows, pattern.columns) for pattern in patterns)
    return max(1, SLICE_BYTES // (widest * weight.itemsize))


def _multiply_out(weights: Sequence[Tensor], patterns: Sequence[Pattern]) -> Tensor:
    """Multiply K₁…K_L out into one matrix that is rounded once, from the rightmost factor on."""
    dtype = weights[0].dtype
    wide = accumulation_dtype(dtype)
    whole = as_matrix(weights[-1].to(wide), patterns[-1])
    for weight, pattern in reversed(list(zip(weights[:-1], patterns[:-1], strict=True))):
        # The columns of the product so far are a batch of vectors to the next factor on the left.
        whole = BMM.apply(whole, weight.to(wide), pattern, BATCH_LAST)
    return whole.to(dtype)


def prepare_step(way: Backend, weight: Tensor, pattern: Pattern, layout: str) -> Step:
    """Return the product by one weight in one backend, with the weight as that backend reads it."""
    if way.prepare is not None:
        return way.prepare(weight, pattern, layout)

    def step(x: Tensor, bias: Tensor | None) -> Tensor:
        y = way.apply(x, weight, pattern, layout)
        return y if bias is None else y + (bias if layout == BATCH_FIRST else bias.unsqueeze(1))

    return step


def _make_key(call: Call) -> CallKey | None:
    """Return the key of a call, which ends with stream and precision, or None where it cannot be cached."""
    if is_intercepted() or is_transform_active():
        return None
    x, columns = call.x, call.patterns[-1].columns
    if type(x) is not Tensor or not (shape := x.shape):
        return None
    if shape[-1 if call.layout == BATCH_FIRST else 0] != columns:
        return None
    device, stream = x.device, 0
    if device.type not in DEVICES:
        return None
    if torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device.type):
        return None
    if torch.is_grad_enabled() and any(one.requires_grad for one in (x, *call.weights, call.bias) if one is not None):
        return None
    if x.is_cuda:
        if torch.cuda.is_current_stream_capturing():  # the graph is to see weights that change
            return None
        stream = torch._C._cuda_getCurrentRawStream(device.index)  # others would have to wait for this one
    batch = x.numel() // columns
    size = tuned_table.next_power_of_two(batch), is_aligned(batch, x.dtype)  # by which backends are chosen
    kind = x.dtype, device, x.layout, call.layout, call.backend, size, torch.get_num_threads()
    return kind, (stream, torch.get_float32_matmul_precision())


def _choose_backends(call: Call) -> tuple[Backend, ...]:
    """Choose the backend of each factor, leftmost first."""
    x, layout = call.x, call.layout
    batch = x.numel() // call.patterns[-1].columns
    found, tuned = [], False
    for weight, pattern in zip(call.weights, call.patterns, strict=True):
        size = (batch, pattern.columns) if layout == BATCH_FIRST else (pattern.columns, batch)
        like = x.new_empty(()).expand(size)  # what this factor is given, but for the numbers
        if call.backend is None:
            way, _ = choose_backend(like, weight, pattern, layout)
            tuned = tuned or tuned_table.find_fastest(like, weight, pattern, layout) is not None
        else:
            way, _ = find_backend(call.backend, like, weight, pattern, layout)
        found.append(way)
    free = call.backend is None and not tuned
    if free and len(found) > 1 and is_whole_cheaper(call.patterns, found, x):
        return (DENSE,) * len(found)
    return tuple(found)


def _state(call: Call) -> State:
    seen = [
        (id(each), each._version, each.data_ptr(), each.shape, each.stride(), each.dtype, each.is_neg())
        for each in call.weights
    ]
    bias = call.bias
    return (*seen, None if bias is None else (id(bias), bias.shape, bias.stride(), bias.dtype, bias.device))


def _is_supported(call: Call) -> bool:
    """Return whether x, weights and bias are plain tensors of one dtype on one device, of the patterns' sizes."""
    x, bias = call.x, call.bias
    if x.layout != torch.strided or len(call.weights) != len(call.patterns):
        return False
    if any(weight.shape != pattern.shape for weight, pattern in zip(call.weights, call.patterns, strict=True)):
        return False
    if bias is not None and (bias.shape != (call.patterns[0].rows,) or not bias.is_contiguous()):
        return False
    for one in call.weights if bias is None else (*call.weights, bias):
        if type(one) is not nn.Parameter or one.dtype != x.dtype or one.device != x.device:
            return False
        if one.is_inference():  # which counts no changes
            return False
    return not any(_is_part_of_larger_tensor(weight) for weight in call.weights)


def _is_part_of_larger_tensor(weight: Tensor) -> bool:
    """Return whether a weight is part of a larger tensor, whose changes torch counts separately."""
    return weight.untyped_storage().nbytes() > weight.numel() * weight.itemsize
