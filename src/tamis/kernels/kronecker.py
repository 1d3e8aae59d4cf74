"""Products by Kronecker-sparse matrices run on the CPU as PyTorch operators with gradients.

    multiply(x, weight, transposed, batch_last)            x Kᵀ, or x K for the transposed matrix
    prepare(weight, batch_last)                            the first, for a weight that stays: x → x Kᵀ
    weight_gradient(x, gradient, shape, batch_last)        of the first in the weight, from x and the gradient in x Kᵀ

of float32 (batch, inputs), or (inputs, batch) with the batch last, and weights (a, b, c, d).

The extension does the work in one of the kernels avx512, avx2 and plain: the fastest that the processor has, or what
the environment variable TAMIS_KERNEL names when the first product is computed; `kronecker_kernel()` of
tamis.kernels.dispatch says which and why. Results do not depend on the number of threads.

Both are operators, tamis::kronecker_cpu and tamis::kronecker_cpu_weight_gradient, that torch.compile and torch.export
pass through; each is the gradient of the other, so that they can be differentiated again and again. Kernels read
memory, which some gradients are not in: those that torch computes many of at once (`is_grads_batched=True`) and those
of torch.func. These go through matrix products of torch, `multiply_with_torch` and `weight_gradient_with_torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tamis.errors import InvalidInput
from tamis.kernels import dispatch
from tamis.kernels.binary import is_intercepted


def multiply(x: Tensor, weight: Tensor, transposed: bool, batch_last: bool) -> Tensor:
    """Compute x Kᵀ, or x K; see the module."""
    # The dispatcher takes longer to pass arguments on to an operator than a small product takes, so it is called only
    # where it must see the call.
    if _is_intercepted(x, weight):
        y: Tensor = torch.ops.tamis.kronecker_cpu(x, weight, transposed, batch_last)
    elif needs_gradient(x, weight):
        y = _Product.apply(x, weight, transposed, batch_last)
    else:
        y = _multiply(x, weight, transposed, batch_last)
    return y


def weight_gradient(x: Tensor, gradient: Tensor, shape: Sequence[int], batch_last: bool) -> Tensor:
    """Compute the gradient in the weight; see the module."""
    if _is_intercepted(x, gradient) or needs_gradient(x, gradient):
        result: Tensor = torch.ops.tamis.kronecker_cpu_weight_gradient(x, gradient, shape, batch_last)
        return result
    return _weight_gradient(x, gradient, shape, batch_last)


def prepare(weight: Tensor, batch_last: bool) -> Callable[[Tensor], Tensor]:
    """Return x → x Kᵀ for a weight that does not change and matrices x that fit, without gradients or checks."""
    weight = weight.detach().resolve_neg().contiguous()
    shape, outputs = tuple(weight.shape), _count_inputs_outputs(weight.shape, False)[1]
    extension, kernel = _find_extension()
    # The function and not its result: the user may change the number of threads between calls.
    multiply, threads = extension.kronecker_multiply, torch.get_num_threads

    def product(x: Tensor) -> Tensor:
        batch = x.shape[1] if batch_last else x.shape[0]
        y = x.new_empty((outputs, batch) if batch_last else (batch, outputs))
        if batch > 0:
            x, x_row = _lay_rows_side_by_side(x)
            addresses = x.data_ptr(), x_row, weight.data_ptr(), y.data_ptr()
            multiply(kernel, threads(), shape, batch, batch_last, False, *addresses)
        return y

    return product


def _is_intercepted(first: Tensor, second: Tensor) -> bool:
    return is_intercepted() or not {type(first), type(second)} <= {Tensor, torch.nn.Parameter}


def needs_gradient(first: Tensor, second: Tensor) -> bool:
    """Return whether gradients in one of these tensors may be asked for."""
    return torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)


def is_transform_active() -> bool:
    """Return whether torch.func or forward-mode differentiation is active, for which our kernels have no rules."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def needs_torch_rules(gradient: Tensor) -> bool:
    """Return whether no kernel can read a gradient, because it has no memory of its own or a transform is active."""
    return is_transform_active() or (type(gradient) is Tensor and not torch._C._has_storage(gradient))


def multiply_with_torch(x: Tensor, weight: Tensor, transposed: bool, batch_last: bool) -> Tensor:
    """Compute `multiply` in matrix products of torch, which has rules for every transform."""
    if batch_last:
        return multiply_with_torch(x.transpose(0, 1), weight, transposed, False).transpose(0, 1)
    weight = weight.transpose(1, 2) if transposed else weight
    a, b, c, d = weight.shape
    y = torch.bmm(_group_by_block(x, a, c, d), weight.permute(0, 3, 2, 1).reshape(a * d, c, b))
    return y.reshape(a, d, x.shape[0], b).permute(2, 0, 3, 1).reshape(x.shape[0], a * b * d)


def weight_gradient_with_torch(x: Tensor, gradient: Tensor, shape: Sequence[int], batch_last: bool) -> Tensor:
    """Compute `weight_gradient` in matrix products of torch, which has rules for every transform."""
    if batch_last:
        x, gradient = x.transpose(0, 1), gradient.transpose(0, 1)
    a, b, c, d = shape
    sums = torch.bmm(_group_by_block(gradient, a, b, d).transpose(1, 2), _group_by_block(x, a, c, d))
    return sums.reshape(a, d, b, c).permute(0, 2, 3, 1)


def _group_by_block(vectors: Tensor, a: int, size: int, d: int) -> Tensor:
    """Return (ad, batch, size), the part of each vector that belongs to each of the ad dense blocks."""
    batch = vectors.shape[0]
    return vectors.reshape(batch, a, size, d).permute(1, 3, 0, 2).reshape(a * d, batch, size)


@lru_cache(maxsize=1)
def _find_extension() -> tuple[Any, str]:
    """Return the extension and the kernel to run, looked up once because asking takes as long as a small product."""
    extension = dispatch.native()
    assert extension is not None, dispatch.explain_native()
    return extension, dispatch.kronecker_kernel()[0]


def _lay_rows_side_by_side(matrix: Tensor) -> tuple[Tensor, int]:
    """Return the matrix with contiguous rows, copied if need be, and the step between rows."""
    matrix = matrix.resolve_neg()  # torch negates some views, such as `z.conj().imag`, only when it reads them
    rows, columns = matrix.shape
    # Rows that overlap, as those of `expand` do, are copied as well.
    if (columns > 1 and matrix.stride(1) != 1) or (rows > 1 and matrix.stride(0) < columns):
        matrix = matrix.contiguous()
    return matrix, matrix.stride(0) if rows > 1 else columns


def _count_inputs_outputs(weight_shape: Sequence[int], transposed: bool) -> tuple[int, int]:
    """Return the numbers of inputs and outputs of a product."""
    a, b, c, d = weight_shape
    return (a * b * d, a * c * d) if transposed else (a * c * d, a * b * d)


def _multiply(x: Tensor, weight: Tensor, transposed: bool, batch_last: bool) -> Tensor:
    y = _multiply_fake(x, weight, transposed, batch_last)
    if y.numel() == 0:
        return y
    batch = x.shape[1] if batch_last else x.shape[0]
    x, x_row = _lay_rows_side_by_side(x)
    weight = weight.resolve_neg().contiguous()
    extension, kernel = _find_extension()
    extension.kronecker_multiply(
        kernel,
        torch.get_num_threads(),
        weight.shape,
        batch,
        batch_last,
        transposed,
        x.data_ptr(),
        x_row,
        weight.data_ptr(),
        y.data_ptr(),
    )
    return y


def _weight_gradient(x: Tensor, gradient: Tensor, shape: Sequence[int], batch_last: bool) -> Tensor:
    batch = x.shape[1] if batch_last else x.shape[0]
    if batch == 0:
        # The sum over no vectors is 0, and memory that nobody writes to is not.
        return x.new_zeros(shape)
    result = _weight_gradient_fake(x, gradient, shape, batch_last)
    x, x_row = _lay_rows_side_by_side(x)
    gradient, gradient_row = _lay_rows_side_by_side(gradient)
    extension, kernel = _find_extension()
    extension.kronecker_weight_gradient(
        kernel,
        torch.get_num_threads(),
        tuple(shape),
        batch,
        batch_last,
        x.data_ptr(),
        x_row,
        gradient.data_ptr(),
        gradient_row,
        result.data_ptr(),
    )
    return result


def _multiply_fake(x: Tensor, weight: Tensor, transposed: bool, batch_last: bool) -> Tensor:
    inputs, outputs = _count_inputs_outputs(weight.shape, transposed)
    if x.shape[0 if batch_last else 1] != inputs:
        raise InvalidInput(f"kronecker_cpu needs {inputs} inputs, got {tuple(x.shape)}")
    return x.new_empty((outputs, x.shape[1]) if batch_last else (x.shape[0], outputs))


def _weight_gradient_fake(x: Tensor, gradient: Tensor, shape: Sequence[int], batch_last: bool) -> Tensor:
    axis = 0 if batch_last else 1
    sizes = x.shape[axis], gradient.shape[axis]
    if sizes != _count_inputs_outputs(shape, False) or x.shape[1 - axis] != gradient.shape[1 - axis]:
        raise InvalidInput(
            "kronecker_cpu_weight_gradient got shapes that do not agree: "
            f"{tuple(x.shape)}, {tuple(gradient.shape)}, {tuple(shape)}"
        )
    return x.new_empty(shape)


def _save_factors(ctx: Any, inputs: tuple[Any, ...], output: Tensor | None = None) -> None:
    x, weight, ctx.transposed, ctx.batch_last = inputs
    ctx.save_for_backward(x, weight)


def _choose_products(gradient: Tensor) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Choose the functions that compute products and weight gradients from this gradient."""
    return (
        (multiply_with_torch, weight_gradient_with_torch)
        if needs_torch_rules(gradient)
        else (multiply, weight_gradient)
    )


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, weight = ctx.saved_tensors
    by_x = by_weight = None
    product, sums = _choose_products(gradient)
    if ctx.needs_input_grad[0]:
        by_x = product(gradient, weight, not ctx.transposed, ctx.batch_last)
    if ctx.needs_input_grad[1]:  # for the transposed matrix x and y change places
        of_x, of_y = (gradient, x) if ctx.transposed else (x, gradient)
        by_weight = sums(of_x, of_y, weight.shape, ctx.batch_last)
    return by_x, by_weight, None, None


def _save_sides(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gradient, _, ctx.batch_last = inputs
    ctx.save_for_backward(x, gradient)


def _backward_of_gradient(ctx: Any, weight: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    x, gradient = ctx.saved_tensors
    # The weight gradient is bilinear in x and the gradient, so that its own gradients are products. `weight` is the
    # gradient that arrives here, which has the shape of the weight.
    product, _ = _choose_products(weight)
    by_x = product(gradient, weight, True, ctx.batch_last) if ctx.needs_input_grad[0] else None
    by_gradient = product(x, weight, False, ctx.batch_last) if ctx.needs_input_grad[1] else None
    return by_x, by_gradient, None, None


class _Product(torch.autograd.Function):
    """This autograd function is the product, which PyTorch calls in a fraction of the operator's time."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # no setup_context: PyTorch would look up the signature in each call
        _save_factors(ctx, inputs)
        return _multiply(*inputs)

    backward = staticmethod(_backward)


_library = torch.library.Library("tamis", "FRAGMENT")
_library.define("kronecker_cpu(Tensor x, Tensor weight, bool transposed, bool batch_last) -> Tensor")
_library.define("kronecker_cpu_weight_gradient(Tensor x, Tensor gradient, SymInt[] shape, bool batch_last) -> Tensor")
_library.impl("kronecker_cpu", _multiply, "CPU")
_library.impl("kronecker_cpu_weight_gradient", _weight_gradient, "CPU")
torch.library.register_fake("tamis::kronecker_cpu", _multiply_fake, lib=_library)
torch.library.register_fake("tamis::kronecker_cpu_weight_gradient", _weight_gradient_fake, lib=_library)
torch.library.register_autograd("tamis::kronecker_cpu", _backward, setup_context=_save_factors, lib=_library)
torch.library.register_autograd(
    "tamis::kronecker_cpu_weight_gradient", _backward_of_gradient, setup_context=_save_sides, lib=_library
)
