"""Max-pooling in a compiled network runs in a kernel of the extension where that is faster."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tamis.binary.batchnorm_affine import BatchNormAffine, find_affine
from tamis.binary.tracing import count_uses, find_called_module, find_only_reader, is_hooked, trace_calls
from tamis.kernels import dispatch, is_intercepted


class FastMaxPool2d(nn.Module):
    """This max-pooling equals PyTorch's bit for bit, in one pass with a batch normalization and a ReLU before it.

    On a CPU PyTorch compares single numbers: for 64 channels of 112 × 112, the first of ResNet-18, it takes longer than
    all the binary layers after it.

    Args:
        pool: the pooling.
        norm: the batch normalization before it, or None.
        affine: the slope and shift of `norm`, or None.
        relu: whether a ReLU comes between the two.
    """

    slope: Tensor | None
    shift: Tensor | None

    def __init__(
        self,
        pool: nn.MaxPool2d,
        norm: nn.Module | None = None,
        affine: BatchNormAffine | None = None,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.pool, self.norm, self.relu = pool, norm, relu
        self.register_buffer("slope", None if affine is None else affine.slope)
        self.register_buffer("shift", None if affine is None else affine.shift)
        self.one_rounding = affine is not None and affine.one_rounding
        lengths = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
        self.lengths = [(length, length) if isinstance(length, int) else tuple(length) for length in lengths]

    def forward(self, x: Tensor) -> Tensor:
        pooled = None if is_intercepted() else self._pool_natively(x)
        return self._pool_with_torch(x) if pooled is None else pooled

    def extra_repr(self) -> str:
        return "ReLU" if self.relu else ""

    def _pool_natively(self, x: Tensor) -> Tensor | None:
        """Return the extension's result, or None where it cannot run this."""
        extension = dispatch.native()
        # Subclasses of tensors have their own ideas of an operation, and PyTorch is what reports a wrong shape.
        plain = type(x) is Tensor and x.is_cpu and x.dtype is torch.float32 and x.dim() == 4 and x.numel() > 0
        sizes = [self._compute_length(axis, x.shape[2 + axis]) for axis in (0, 1)] if plain else [0]
        # With `ceil_mode`, PyTorch counts windows in another way, which the kernel does not know.
        if extension is None or self._needs_gradient(x) or self.pool.ceil_mode or min(sizes) < 1:
            return None
        slope, shift = self.slope, self.shift
        # Slope and shift are known to the bit for two layouts only, see `tamis.binary.batchnorm_affine`.
        if slope is not None and not (slope.is_cpu and len(slope) == x.shape[1] and _has_affine_layout(x)):
            return None
        out = x.new_empty(*x.shape[:2], *sizes)
        planes, results = x.detach().contiguous().flatten(0, 1), out.flatten(0, 1)
        affine = [None if vector is None else vector.contiguous().numpy() for vector in (slope, shift)]
        arguments = (planes.numpy(), *self.lengths, results.numpy(), torch.get_num_threads())
        extension.max_pool(*arguments, *affine, self.one_rounding, self.relu)
        return out

    def _pool_with_torch(self, x: Tensor) -> Tensor:
        """Compute the same with PyTorch, whose operations also report a wrong size."""
        if self.norm is not None:
            x = self.norm(x)
        pooled: Tensor = self.pool(torch.relu(x) if self.relu else x)
        return pooled

    def _needs_gradient(self, x: Tensor) -> bool:
        """Return whether gradients may be asked for."""
        weights = [] if self.norm is None else self.norm.parameters()
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *weights))

    def _compute_length(self, axis: int, length: int) -> int:
        kernel, stride, padding, dilation = (each[axis] for each in self.lengths)
        return (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _has_affine_layout(x: Tensor) -> bool:
    """Return whether PyTorch normalizes a tensor of this layout as `tamis.binary.batchnorm_affine` does."""
    return x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)


def find_pools(model: nn.Module, replaced: Collection[nn.Module] = ()) -> dict[nn.Module, nn.Module]:
    """Return the modules to replace: max-poolings by faster ones, and by identities the modules that these absorb.

    Args:
        model: in evaluation mode.
        taken: modules that something else stands for already.
    """
    # Exactly nn.MaxPool2d, as a subclass may compute something else, and without hooks, which would not be called.
    plain = [module for module in model.modules() if type(module) is nn.MaxPool2d and not is_hooked(module)]
    # The kernel finds largest numbers, and not where they are.
    pools = [pool for pool in plain if not pool.return_indices]
    replacements: dict[nn.Module, nn.Module] = {pool: FastMaxPool2d(pool) for pool in pools}
    graph = trace_calls(model) if pools else None
    if graph is None:
        return replacements
    uses = count_uses(model, graph)
    for node in graph.nodes:
        pool = find_called_module(model, node, uses)
        if not isinstance(pool, nn.MaxPool2d) or pool not in replacements:
            continue
        before = node.args[0]
        relu = find_called_module(model, before, uses)
        if type(relu) is not nn.ReLU or relu in replaced or find_only_reader(before) is not node:
            relu = None
        else:
            # Whether only the pooling reads the normalization is asked of the ReLU in between from here on.
            node, before = before, before.args[0]
        norm = find_called_module(model, before, uses)
        affine = find_affine(norm) if isinstance(norm, nn.BatchNorm2d) and norm not in replaced else None
        if affine is None or find_only_reader(before) is not node:
            norm = affine = None
        # Only what nothing but the pooling reads becomes part of it: others need the numbers in memory.
        replacements[pool] = FastMaxPool2d(pool, norm, affine, relu is not None)
        replacements |= {absorbed: nn.Identity() for absorbed in (norm, relu) if absorbed is not None}
    return replacements
