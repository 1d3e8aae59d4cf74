"""Max-pooling between the layers of a compiled network, in a kernel of our own where that is faster."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tamis.kernels import dispatch
from tamis.kernels.binary import watched


class FastMaxPool2d(nn.Module):
    """What a max-pooling gives, bit for bit.

    On a CPU PyTorch compares single numbers: for 64 channels of 112 × 112, the first of ResNet-18, it takes longer than
    all the binary layers after it.
    """

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool
        lengths = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        self.lengths = [(length, length) if isinstance(length, int) else tuple(length) for length in lengths]

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(x) if watched() else self._pooled(x)
        return pooled

    def _pooled(self, x: Tensor) -> Tensor:
        extension = dispatch.native()
        plain = type(x) is Tensor and x.is_cpu and x.dtype is torch.float32 and x.dim() == 4 and x.numel() > 0
        derived = torch.is_grad_enabled() and x.requires_grad
        sizes = [self._length(axis, x.shape[2 + axis]) for axis in (0, 1)] if plain else [0]
        if extension is None or derived or self.pool.ceil_mode or min(sizes) < 1:
            pooled: Tensor = self.pool(x)  # which also says what is wrong with a size
            return pooled
        out = x.new_empty(*x.shape[:2], *sizes)
        planes, results = x.contiguous().flatten(0, 1), out.flatten(0, 1)
        extension.max_pool(planes.numpy(), *self.lengths, results.numpy(), torch.get_num_threads())
        return out

    def _length(self, axis: int, length: int) -> int:
        kernel, stride, padding, dilation = (each[axis] for each in self.lengths)
        return (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def fast_pools(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """The max-poolings of a model, each with what may stand in its place."""
    pools = [module for module in model.modules() if type(module) is nn.MaxPool2d and not module.return_indices]
    return {pool: FastMaxPool2d(pool) for pool in pools}
