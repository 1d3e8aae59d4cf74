"""The filters of this convolution, one to a row, are a product of Kronecker-sparse factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tamis.errors import InvalidInput
from tamis.kronecker.backends import BATCH_FIRST
from tamis.kronecker.layer import KroneckerLayer
from tamis.kronecker.multiply import check_numbers
from tamis.kronecker.pattern import PatternLike

Sizes = int | tuple[int, ...]


class KroneckerConv2d(KroneckerLayer):
    """This convolution has W = K₁…K_L, of `out_channels` rows and `in_channels · rows · columns of the kernel` columns.

    Its patches, or for kernels of 1 × 1 its pixels, are multiplied by W as vectors. Zeros are padded; no groups.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, bias: as of `torch.nn.Conv2d`.
        patterns: of the factors, leftmost first; `dense_weight()` is the weight of `nn.Conv2d` with its last three axes
            as one.
        backend, device, dtype: as of `KroneckerLinear`.

    Example:
        >>> from tamis.kronecker import monarch
        >>> layer = KroneckerConv2d(16, 32, 3, monarch(32, 16 * 9, 4), padding=1)
        >>> layer(torch.randn(2, 16, 8, 8)).shape
        torch.Size([2, 32, 8, 8])

    Reference: gonon2024thesis.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        patterns: Iterable[PatternLike],
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        bias: bool = True,
        *,
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(patterns, bias, backend, device, dtype)
        self.in_channels = _check_whole(in_channels, "in_channels")
        self.out_channels = _check_whole(out_channels, "out_channels")
        self.kernel_size, self.stride = _check_pair(kernel_size, "kernel_size"), _check_pair(stride, "stride")
        self.dilation = _check_pair(dilation, "dilation")
        # After stride and dilation, of which "same" is computed.
        self.padding = self._parse_padding(padding)
        # A filter (channels, rows, columns) flattened is a row of W, in the order in which `unfold` lists a patch.
        inputs = in_channels * self.kernel_size[0] * self.kernel_size[1]
        rows, columns = self.patterns[0].rows, self.patterns[-1].columns
        if (rows, columns) != (out_channels, inputs):
            raise InvalidInput(
                f"{out_channels} filters for {in_channels} channels with a kernel of {self.kernel_size} make a matrix "
                f"of {out_channels} × {inputs}, but the product of the patterns is one of {rows} × {columns}"
            )

    def forward(self, x: Tensor) -> Tensor:
        check_numbers("x", x)
        if x.dim() not in (3, 4) or x.shape[-3] != self.in_channels:
            raise InvalidInput(
                f"KroneckerConv2d takes an input of shape (batch, {self.in_channels}, rows, columns), or one without "
                f"batch, got {tuple(x.shape)}"
            )
        images = x if x.dim() == 4 else x[None]
        size = [self._count_positions(images.shape[2 + axis], axis) for axis in (0, 1)]
        vectors = self._extract_patches(images).transpose(1, 2)  # (batch, positions, inputs)
        # Positions are vectors like any others: one product for all images and places, and then channels first again.
        y = self._compute_product(vectors, BATCH_FIRST).transpose(1, 2)
        y = y.reshape(images.shape[0], self.out_channels, *size)
        return y if x.dim() == 4 else y[0]

    def _extract_patches(self, x: Tensor) -> Tensor:
        """Return patches (batch, inputs, positions), with a position's inputs in the order of a filter's weights."""
        if self.kernel_size == (1, 1) and self.padding == (0, 0):
            # A pixel is a patch of its own: no copy of each input for every place of a kernel, as `unfold` makes.
            return x[:, :, :: self.stride[0], :: self.stride[1]].flatten(2)
        return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)

    def _count_positions(self, length: int, axis: int) -> int:
        # From the first tap to the last, with the gaps of the dilation.
        covered = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
        return (length + 2 * self.padding[axis] - covered) // self.stride[axis] + 1

    def _parse_padding(self, padding: Sizes | str) -> tuple[int, int]:
        if not isinstance(padding, str):
            return _check_pair(padding, "padding", least=0)
        if padding == "valid":
            return 0, 0
        # As many zeros as keep the size at a stride of 1. An odd number would have to go to one side, and `unfold` pads
        # evenly.
        both_sides = [self.dilation[axis] * (self.kernel_size[axis] - 1) for axis in (0, 1)]
        if padding != "same" or self.stride != (1, 1) or any(zeros % 2 for zeros in both_sides):
            raise InvalidInput(
                "padding must be whole numbers, 'valid', or 'same' with a stride of 1 and as many zeros on one side as "
                f"on the other, got {padding!r} for a kernel of {self.kernel_size} and a stride of {self.stride}"
            )
        return both_sides[0] // 2, both_sides[1] // 2

    def extra_repr(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}"]
        parts += [f"{name}={getattr(self, name)}" for name in ("kernel_size", "stride", "padding", "dilation")]
        return ", ".join([*parts, self._describe_parts()])


def _check_whole(given: int, name: str) -> int:
    if not _is_whole(given, least=1):
        raise InvalidInput(f"{name} must be a whole number ≥ 1, got {given!r}")
    return given


def _check_pair(given: Sizes, name: str, least: int = 1) -> tuple[int, int]:
    sizes = tuple(given) if isinstance(given, Sequence) else (given, given)
    if len(sizes) != 2 or not all(_is_whole(size, least) for size in sizes):
        raise InvalidInput(f"{name} must be a whole number ≥ {least}, or two of them, got {given!r}")
    return sizes[0], sizes[1]


def _is_whole(given: object, least: int) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= least
