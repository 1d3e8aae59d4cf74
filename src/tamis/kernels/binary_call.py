"""Binary layers on this processor, for tensors that stay from call to call.

A small layer takes no longer than Python takes to look at its tensors. So what was checked of them, and where they are,
is kept for inputs of the same shape, and looked at again only where a tensor is another one or somewhere else.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from tamis.kernels import binary, dispatch

MOST_SHAPES = 16  # of inputs that a layer keeps something for


@dataclass(eq=False)
class LayerHere:
    """`tamis.kernels.binary.binary_conv2d` in the extension, with what follows it in a network.

    What follows is one pass with the convolution, each step rounded: + bias, · slope + shift, + added, no less than 0.

    Attributes:
        weight_shape, stride, padding, dilation, out_groups: those of `binary_conv2d`.
        one_rounding: whether · slope + shift is rounded once, or the product and the sum.
        relu: whether nothing below 0 comes out.
    """

    weight_shape: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    out_groups: int = 1
    one_rounding: bool = False
    relu: bool = False
    _calls: dict[Any, _Call] = field(default_factory=dict, repr=False)

    def __call__(self, x: Tensor, added: Tensor | None, tensors: tuple[Tensor | None, ...]) -> Tensor | None:
        """The result, or None where tensors are elsewhere, or there is no extension.

        Args:
            x: as `binary_conv2d` takes it.
            added: numbers of the shape of the result, or None.
            tensors: weight, thresholds, flips, out_thresholds, out_flips, bias, slope, shift, None for those that there
                are not, and factors of the scale. Thresholds and flips are not used where the input is bits.
        """
        if not (x.is_cpu and type(x) is Tensor):
            return None
        key = (binary._kernel(), x.shape, x.dtype, added is None)
        call = self._calls.get(key)
        if call is None or not call.is_for(tensors):
            if (call := self._checked(x, added, tensors)) is None:
                return None
            self._calls = {key: call} if len(self._calls) >= MOST_SHAPES else self._calls | {key: call}
        others = 0
        if added is not None:
            if not (
                type(added) is Tensor and added.is_cpu and added.dtype is torch.float32 and added.shape == call.shape
            ):
                return None
            added = added.contiguous()
            others = added.data_ptr()
        x = x.contiguous()
        result = torch.empty_strided(call.shape, call.strides, dtype=call.dtype)  # twice as fast as torch.empty
        call.layer.run(torch.get_num_threads(), x.data_ptr(), result.data_ptr(), others)
        return result

    def _checked(self, x: Tensor, added: Tensor | None, tensors: tuple[Tensor | None, ...]) -> _Call | None:
        """What is kept for inputs like this one, after all was checked."""
        kernel, from_bits = binary._kernel(), x.dtype == torch.int64
        if kernel == "torch" or not all(each is None or (each.is_cpu and each.is_contiguous()) for each in tensors):
            return None
        weight, thresholds, flips, out_thresholds, out_flips, *after = tensors[:8]
        scales = [factor for factor in tensors[8:] if factor is not None]
        assert weight is not None
        vectors = (None if from_bits else thresholds, None if from_bits else flips, out_thresholds, out_flips)
        tau, f, out_tau, out_f = map(binary._maybe_kind, vectors)
        shape, layer = binary._prepared(
            kernel,
            binary._kind(x),
            binary._kind(weight),
            tuple(map(binary._kind, scales)),
            tuple(self.weight_shape),
            tau,
            f,
            tuple(self.stride),
            tuple(self.padding),
            tuple(self.dilation),
            out_tau,
            out_f,
            self.out_groups,
            (*map(binary._maybe_kind, after), added is not None, self.one_rounding, self.relu),
        )
        if layer is None:
            return None
        extension = dispatch.native()
        assert extension is not None
        bound = extension.BoundLayer(layer, binary.addresses_of(weight, scales, *vectors, *after))
        return _Call(torch.Size(shape), torch.float32 if out_thresholds is None else torch.int64, bound, tensors)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_calls": {}}  # addresses are those of this process


class _Call:
    """A layer of the extension with the addresses of all that stays."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, layer: Any, tensors: tuple[Tensor | None, ...]) -> None:
        self.shape, self.dtype, self.layer, self.tensors = shape, dtype, layer, tensors
        self.strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.present = [tensor for tensor in tensors if tensor is not None]
        self.addresses = [tensor.data_ptr() for tensor in self.present]

    def is_for(self, tensors: tuple[Tensor | None, ...]) -> bool:
        """Whether these are the tensors that were checked, where they were then."""
        same = len(tensors) == len(self.tensors) and all(map(operator.is_, tensors, self.tensors))
        return same and [tensor.data_ptr() for tensor in self.present] == self.addresses
