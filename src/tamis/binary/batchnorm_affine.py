"""Batch normalization in evaluation is x · slope + shift, rounded as PyTorch rounds it.

There is a slope and a shift for each channel. Whether PyTorch rounds x · slope + shift once, as processors with fused
multiplications do, or twice, and how it rounds the slope and the shift themselves, depends on how it was built and on
the processor. So they are derived from what it returns, and compared with it, bit for bit, before they are used. That
holds for numbers that lie in memory as (N, C, H, W) or as (N, H, W, C); in other orders PyTorch rounds otherwise.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from tamis.kernels import dispatch

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
LARGE = 2.0**80  # next to which no shift counts, unless a slope is tiny


@dataclass(frozen=True)
class BatchNormAffine:
    """A `BatchNormAffine` is a batch normalization in evaluation, as x · slope + shift.

    Attributes:
        slope, shift: of each channel, float32.
        one_rounding: whether the product is added to before it is rounded.
    """

    slope: Tensor
    shift: Tensor
    one_rounding: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Compute x · slope + shift of (N, C, H, W) in the extension's kernel, which rounds as its other kernels do."""
        extension = dispatch.native()
        assert extension is not None
        # On one thread, and only to be compared with PyTorch: layers and poolings have slope and shift in their own
        # kernels.
        out, planes = torch.empty(x.shape), x.contiguous().flatten(0, 1).flatten(1)
        vectors = (self.slope.numpy(), self.shift.numpy())
        extension.affine(planes.numpy(), *vectors, out.flatten(0, 1).flatten(1).numpy(), 1, self.one_rounding)
        return out


@torch.no_grad()
def find_affine(norm: nn.Module) -> BatchNormAffine | None:
    """Return the slope and shift of a batch normalization, or None where they are unknown or unusable.

    Args:
        norm: any module, which is left as it is.

    Example:
        >>> find_affine(nn.BatchNorm2d(2).eval())
        BatchNormAffine(slope=tensor([1.0000, 1.0000]), shift=tensor([0., 0.]), one_rounding=True)
    """
    # A subclass may compute something else.
    if not isinstance(norm, NORMS) or type(norm) not in NORMS or norm.training or dispatch.native() is None:
        return None
    # Without running statistics the batch's own are used in evaluation, too, and there is no fixed slope.
    if norm.running_mean is None or norm.running_var is None:
        return None
    tensors = [*norm.parameters(), norm.running_mean, norm.running_var]
    if any(tensor.device.type != "cpu" or tensor.dtype is not torch.float32 for tensor in tensors):
        return None
    # A kernel that stands for the normalization would not call its hooks.
    if norm._forward_hooks or norm._forward_pre_hooks or (one_rounding := _rounds_once()) is None:
        return None
    return _derive_affine(norm, one_rounding)


# Looked up once: it is a property of the processor and of how PyTorch was built, and not of a model.
@lru_cache(maxsize=1)
@torch.no_grad()
def _rounds_once() -> bool | None:
    """Return whether PyTorch rounds once (True) or twice (False) on this machine, or None if it does neither."""
    # Drawn at random: with a slope of 1 or a shift of 0, one rounding and two give the same numbers.
    draw = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm2d(64).eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        assert tensor is not None
        tensor.copy_(torch.randn(64, generator=draw))
    return next((once for once in (True, False) if _derive_affine(norm, once) is not None), None)


def _derive_affine(norm: nn.BatchNorm1d | nn.BatchNorm2d, one_rounding: bool) -> BatchNormAffine | None:
    """Derive the slope and shift from outputs, and return them if they give every bit of some thousand others."""
    norm = copy.deepcopy(norm)
    # At 0 the output is the shift. Next to a large power of two the shift vanishes, and the output is the slope times
    # that power, exactly. So both are what PyTorch rounded them to.
    shift = _normalize(norm, torch.zeros(1, norm.num_features, 1, 1)).flatten()
    # Less the shift, for slopes so small that it still counts next to them times LARGE.
    slope = (_normalize(norm, torch.full((1, norm.num_features, 1, 1), LARGE)).flatten() - shift) / LARGE
    # Slopes from 2⁴⁸ on overflow above, and such a normalization stays PyTorch's own.
    if not (slope.isfinite().all() and shift.isfinite().all()):
        return None
    affine, draw = BatchNormAffine(slope, shift, one_rounding), torch.Generator().manual_seed(1)
    # Whole registers of all sizes and what is left over; one pixel, for which PyTorch goes along channels.
    for size in ((1, norm.num_features, 1, 1), (2, norm.num_features, 7, 9), (1, norm.num_features, 2, 32)):
        sizes = torch.tensor([1.0, 30.0, 1000.0, LARGE])
        x = torch.randn(size, generator=draw) * sizes[torch.randint(len(sizes), size, generator=draw)]
        if not torch.equal(affine(x), _normalize(norm, x)):
            return None
    # Features (N, C) take another way through PyTorch than images do, and are compared by themselves.
    features = x[..., :1, :1].contiguous()
    if isinstance(norm, nn.BatchNorm1d) and not torch.equal(affine(features).flatten(1), norm(features.flatten(1))):
        return None
    return affine


def _normalize(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return PyTorch's own result for (N, C, H, W)."""
    return norm(x) if isinstance(norm, nn.BatchNorm2d) else norm(x.flatten(2)).reshape(x.shape)
