"""A cached call runs a binary layer on this processor, with tensors that stay from call to call.

A small layer takes no longer than Python takes to look at its tensors. So their checks, and their addresses, are cached
for inputs of the same shape, and repeated only where a tensor is another one or lies somewhere else.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from tamis.kernels import binary, dispatch
from tamis.kernels.binary_arguments import EpilogueKind, Geometry, Operands, kind_or_none, kinds_of

MOST_SHAPES = 16  # of inputs that one layer caches a call for


@dataclass(eq=False)
class CachedBinaryConv2d:
    """This layer runs `tamis.kernels.binary.binary_conv2d` in the extension, with the steps after it in a network.

    They are one pass with the convolution, each step rounded: + bias, · slope + shift, + added, no less than 0.

    Attributes:
        geometry: what `binary_conv2d` takes besides tensors.
        one_rounding: whether · slope + shift is rounded once, or both the product and the sum.
        relu: whether a ReLU comes last.
    """

    geometry: Geometry
    one_rounding: bool = False
    relu: bool = False
    _calls: dict[Any, _Call] = field(default_factory=dict, repr=False)

    def __call__(self, x: Tensor, added: Tensor | None, tensors: tuple[Tensor | None, ...]) -> Tensor | None:
        """Return the result, or None where tensors are on another device or there is no extension.

        Args:
            x: as `binary_conv2d` takes it.
            added: numbers of the shape of the result, or None.
            tensors: weight, thresholds, flips, out_thresholds, out_flips, bias, slope and shift, each None where there
                is none, and after them the factors of the scale. Thresholds and flips are not used where the input is
                bits.
        """
        if not (x.is_cpu and type(x) is Tensor):
            return None
        key = (binary.kernel_name(), x.shape, x.dtype, added is None)
        call = self._calls.get(key)
        if call is None or not call.is_for(tensors):
            if (call := self._prepare(x, added, tensors)) is None:
                return None
            # Replaced and never changed in place, so that threads may share it.
            self._calls = {key: call} if len(self._calls) >= MOST_SHAPES else self._calls | {key: call}
        added_address = 0
        if added is not None:
            if not (
                type(added) is Tensor and added.is_cpu and added.dtype is torch.float32 and added.shape == call.shape
            ):
                return None
            added = added.contiguous()
            added_address = added.data_ptr()
        x = x.contiguous()
        result = torch.empty_strided(call.shape, call.strides, dtype=call.dtype)  # twice as fast as torch.empty
        call.layer.run(torch.get_num_threads(), x.data_ptr(), result.data_ptr(), added_address)
        return result

    def _prepare(self, x: Tensor, added: Tensor | None, tensors: tuple[Tensor | None, ...]) -> _Call | None:
        """Check everything, and return the call for inputs like this one."""
        kernel, from_bits = binary.kernel_name(), x.dtype == torch.int64
        if kernel == "torch" or not all(each is None or (each.is_cpu and each.is_contiguous()) for each in tensors):
            return None
        weight, thresholds, flips, out_thresholds, out_flips, *after = tensors[:8]
        scales = tuple(factor for factor in tensors[8:] if factor is not None)
        assert weight is not None
        vectors = (None if from_bits else thresholds, None if from_bits else flips, out_thresholds, out_flips)
        bias, slope, shift = map(kind_or_none, after)
        shape, layer = binary.prepare_layer(
            kernel,
            kinds_of(Operands(x, weight, scales, *vectors)),
            self.geometry,
            EpilogueKind(bias, slope, shift, added is not None, self.one_rounding, self.relu),
        )
        if layer is None:
            return None
        extension = dispatch.native()
        assert extension is not None
        bound = extension.BoundLayer(layer, binary.list_addresses(weight, scales, *vectors, *after))
        return _Call(torch.Size(shape), torch.float32 if out_thresholds is None else torch.int64, bound, tensors)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_calls": {}}  # addresses are those of this process


class _Call:
    """A `_Call` is a layer of the extension with the addresses of all tensors that stay from call to call."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, layer: Any, tensors: tuple[Tensor | None, ...]) -> None:
        self.shape, self.dtype, self.layer, self.tensors = shape, dtype, layer, tensors
        self.strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.present = [tensor for tensor in tensors if tensor is not None]
        self.addresses = [tensor.data_ptr() for tensor in self.present]

    def is_for(self, tensors: tuple[Tensor | None, ...]) -> bool:
        """Return whether these are the tensors that were checked, at the addresses that they had then."""
        same = len(tensors) == len(self.tensors) and all(map(operator.is_, tensors, self.tensors))
        # The same object can have other memory: `tensor.data = …` and `module.to(…)` exchange it.
        return same and [tensor.data_ptr() for tensor in self.present] == self.addresses
