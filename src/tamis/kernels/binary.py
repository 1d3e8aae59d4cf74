"""Layers of ±1 inputs and ±1 weights compare bits by xor and count them by popcount.

One layer, from float32 (N, C, H, W) to float32 (N, O, H', W'):

    b = (x ≥ τ_c) xor f_c          bit 1 stands for +1, bit 0 for −1; what is not a number is below every τ
    s = conv2d(±1 of b, ±1 weights), with zeros around: an exact integer in [−n, n]
    y = float32(s) · scale         one rounding after those of the scale, in the order written here

where the scale is one of [α] (O), [full] (O, H', W'), [α, β] with β (H', W'): α[o] · β[h, w], and [α, β, γ] with β (H')
and γ (W'): (α[o] · β[h]) · γ[w]. Products are rounded to float32 in that order, so PyTorch gives the same bits.

Consecutive layers can exchange bits: `x` may be packed bits, and with `out_thresholds` and `out_flips`, the τ and f of
the next layer, the result is its packed bits (y ≥ τ_o) xor f_o instead of y.

    packed, geometry = pack_weight(weight), Geometry(weight.shape, padding=(1, 1))               # once
    y = binary_conv2d(Operands(x, packed, (alpha,), tau, f), geometry)
    bits = binary_conv2d(Operands(x, packed, (alpha,), tau, f, next_tau, next_f), geometry)     # int64
    z = binary_conv2d(Operands(bits, packed2, (alpha2,)), Geometry(weight2.shape))
    y = binary_linear(Operands(x, packed3, (alpha3,), tau, f), weight3.shape)                    # (N, C) → (N, O)
    bits = pack_input(x, tau, f)                                                      # what a layer does first

Packed bits are int64 (N, groups, words, H, W), words = ⌈C / groups / 64⌉: bit j of word i is channel 64 i + j of the
group; bits past its last channel are 0. `groups` are those of the layer that reads them.

Packed weights are int64 (groups, ⌈O / groups / 8⌉, rows + ⌈taps / 4⌉, 8): eight output channels side by side, those
past the last one 0. Row k = tap · words + word holds the bits of 64 input channels at one tap (row-major in the
kernel); they are padded with zeros to a multiple of 3, and of each three rows the last holds the xor of all three: see
cpu/binary.h for why. After them come counts: how many bits are 1 at each tap, which is what zeros around the input are
corrected by. They are 16-bit numbers without a sign, four to a word: that of a tap is (word >> 16 · (tap mod 4)) &
0xFFFF of row rows + ⌊tap / 4⌋, and those past the last tap are 0. Only where C / groups is 65536 or more does each tap
have a word to itself, in row rows + tap of (…, rows + taps, 8).

On the CPU the extension does the work, in one of the kernels avx512, avx2, popcnt, neon, plain: the fastest that the
processor has, or what the environment variable TAMIS_KERNEL names when the first layer is run; `binary_kernel()` of
tamis.kernels.dispatch says which and why. On a GPU a Triton kernel does it; without either, PyTorch
(tamis.kernels.binary_reference). All are PyTorch operators, tamis::binary_conv2d and tamis::binary_pack, that
torch.compile and torch.export pass through; there are no gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.kernels import binary_reference as reference
from tamis.kernels import dispatch
from tamis.kernels.binary_arguments import (
    EpilogueKind,
    Geometry,
    Operands,
    TensorKind,
    check_images,
    check_result_shape,
    check_vectors,
    describe,
    kind_of,
    kinds_of,
)
from tamis.kernels.bit_layout import count_words
from tamis.kernels.triton import runs_on

NO_EPILOGUE = EpilogueKind()


def pack_weight(weight: Tensor, groups: int = 1) -> Tensor:
    """Pack the signs of weights (O, C / groups, kh, kw), or (O, C) of a linear layer, as bits, with 0 as +1.

    Example:
        >>> pack_weight(torch.ones(16, 64, 3, 3)).shape
        torch.Size([1, 2, 12, 8])
    """
    if weight.ndim == 2:
        weight = weight[:, :, None, None]
    if weight.ndim != 4 or weight.numel() == 0:
        raise InvalidInput(f"pack_weight needs weights (O, C / groups, kh, kw), not {describe(kind_of(weight))}")
    if groups < 1 or weight.shape[0] % groups:
        raise InvalidInput(f"pack_weight got {weight.shape[0]} output channels, which {groups} groups do not divide")
    return reference.pack_weight(weight, groups)


def pack_input(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int = 1) -> Tensor:
    """Pack the bits (x ≥ τ_c) xor f_c of float32 (N, C, H, W) for a layer of `groups` groups; see the module.

    Example:
        >>> pack_input(torch.tensor([[[[1.0]], [[-2.0]], [[0.0]]]]), torch.zeros(3), torch.zeros(3, dtype=torch.bool))
        tensor([[[[[5]]]]])
    """
    check_vectors("pack_input", ("thresholds", kind_of(thresholds)), ("flips", kind_of(flips)), device=x.device)
    check_images("pack_input", kind_of(x), thresholds.numel(), groups)
    bits: Tensor = torch.ops.tamis.binary_pack(x, thresholds, flips, groups)
    return bits


def binary_conv2d(operands: Operands[Tensor], geometry: Geometry) -> Tensor:
    """Compute one layer, by the formula at the top of this module.

    Args:
        operands: the tensors: `x` is float32 (N, C, H, W) with `thresholds` and `flips`, or packed bits (N, groups,
            words, H, W) without them; `weight` is what `pack_weight` gave, and its first axis says how many groups
            there are; with `out_thresholds` and `out_flips`, those of the next layer, the result is packed bits.
        geometry: the numbers.

    Example:
        >>> x, weight = torch.tensor([[[[2.0]], [[-1.0]]]]), torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> tau, flips = torch.zeros(2), torch.zeros(2, dtype=torch.bool)
        >>> operands = Operands(x, pack_weight(weight), (torch.tensor([0.5, 0.5]),), tau, flips)
        >>> binary_conv2d(operands, Geometry((2, 2, 1, 1))).flatten()
        tensor([0., 1.])
    """
    # The dispatcher takes longer to pass twelve arguments on than the kernel takes to use them. So it is called only
    # where it has something to do: for other devices and subclasses, and while PyTorch records or intercepts calls.
    if type(operands.x) is Tensor and operands.x.is_cpu and not is_intercepted():
        return _conv2d_cpu(operands, geometry)
    operator: Callable[..., Tensor] = torch.ops.tamis.binary_conv2d
    x, weight, scales, thresholds, flips, out_thresholds, out_flips = operands
    shape, stride, padding, dilation, out_groups = geometry
    vectors, out_vectors = (thresholds, flips), (out_thresholds, out_flips)
    return operator(x, weight, list(scales), shape, *vectors, stride, padding, dilation, *out_vectors, out_groups)


def is_intercepted() -> bool:
    """Return whether PyTorch compiles, traces or intercepts calls, so that it must see operators of its own."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def binary_linear(operands: Operands[Tensor], weight_shape: Sequence[int]) -> Tensor:
    """Compute a linear layer, as `binary_conv2d` of one pixel.

    Args:
        operands: as those of `binary_conv2d`, but that `x` is float32 (…, C), or packed bits (N, 1, words, 1, 1).
        weight_shape: (O, C).

    The result is (…, O), or packed bits.
    """
    x = operands.x
    if x.dtype != torch.int64:
        leading, x = x.shape[:-1], x.reshape(-1, x.shape[-1], 1, 1)
    else:
        leading = x.shape[:1]
    y = binary_conv2d(operands._replace(x=x), Geometry((*weight_shape[:2], 1, 1)))
    return y if operands.out_thresholds is not None else y.reshape(*leading, y.shape[1])


@lru_cache(maxsize=1)
def kernel_name() -> str:
    """Return the kernel that layers run in, looked up once because asking takes as long as a small layer."""
    return dispatch.binary_kernel()[0]


@lru_cache(maxsize=1024)
def prepare_layer(
    kernel: str, kinds: Operands[TensorKind], geometry: Geometry, epilogue: EpilogueKind = NO_EPILOGUE
) -> tuple[tuple[int, ...], Any]:
    """Check a call, and return its result's shape and the extension's layer for it, None without images.

    The layer is cached for tensors of the same kinds: to check them and to plan the convolution takes longer than to
    run a small one.
    """
    result = check_result_shape(kinds, geometry)
    x, weight, scales = kinds.x, kinds.weight, kinds.scales
    if x[0][0] == 0:
        return result, None
    outputs, each, *kernel_size = geometry.weight_shape
    after = (epilogue.bias, epilogue.slope, epilogue.shift)
    for vector in after:
        if vector is not None and (vector[0] != (outputs,) or vector[1] != torch.float32):
            raise InvalidInput(
                f"binary_conv2d is followed by float32 numbers of {outputs} channels, not {describe(vector)}"
            )
    extension = dispatch.native()
    assert extension is not None
    # The lengths stand in the order of `BinaryLayer` in _native.pyi, which `list_addresses` has, too.
    full = len(scales[0][0]) == 3
    factors = [0 if full else scales[0][0].numel(), scales[0][0].numel() if full else 0]
    factors += [scale[0].numel() for scale in scales[1:]] + [0] * (3 - len(scales))
    bits, to_bits = x[1] == torch.int64, kinds.out_thresholds is not None
    lengths = [
        0 if bits else x[0].numel(),
        *map(_measure_length, (kinds.thresholds, kinds.flips)),
        x[0].numel() if bits else 0,
    ]
    lengths += [weight[0].numel(), *factors, 0 if to_bits else prod(result), prod(result) if to_bits else 0]
    lengths += [
        *map(_measure_length, (kinds.out_thresholds, kinds.out_flips, *after)),
        prod(result) if epilogue.adds else 0,
    ]
    groups = weight[0][0]
    layer = extension.BinaryLayer(
        kernel,
        outputs,
        each * groups,
        groups,
        tuple(x[0][-2:]),
        kernel_size,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        x[0][0],
        geometry.out_groups,
        lengths,
        epilogue.one_rounding,
        epilogue.relu,
    )
    return result, layer


def _measure_length(vector: TensorKind | None) -> int:
    return 0 if vector is None else vector[0].numel()


def _conv2d_cpu(operands: Operands[Tensor], geometry: Geometry) -> Tensor:
    kernel = kernel_name()
    if kernel == "torch":
        return _conv2d_fallback(operands, geometry)
    shape, layer = prepare_layer(kernel, kinds_of(operands), geometry)
    x, weight, scales, *vectors = operands
    to_bits = operands.out_thresholds is not None
    result = torch.empty(shape, dtype=torch.int64 if to_bits else torch.float32)
    if layer is None:
        return result
    # What is made contiguous must outlive the call, which knows addresses alone: so each tensor has a name here.
    numbers, words = x.contiguous(), weight.contiguous()
    factors = [scale.contiguous() for scale in scales]
    others = [None if vector is None else vector.contiguous() for vector in vectors]
    addresses = list_addresses(words, factors, *others)
    addresses[3 if x.dtype == torch.int64 else 0] = numbers.data_ptr()
    addresses[10 if to_bits else 9] = result.data_ptr()
    layer.run(torch.get_num_threads(), addresses)
    return result


def list_addresses(weight: Tensor, scales: Sequence[Tensor], *vectors: Tensor | None) -> list[int]:
    """Return the addresses that the extension takes, in its order.

    The tensors are contiguous. An address is 0 where there is no tensor, and for the input, the result and the tensor
    to be added, which are others in every call.

    Args:
        weight, scales: those of `binary_conv2d`.
        vectors: thresholds, flips, out_thresholds, out_flips, and bias, slope and shift where something follows.
    """
    tau, f, *others = [0 if vector is None else vector.data_ptr() for vector in vectors]
    alpha, beta, gamma = [factor.data_ptr() for factor in scales] + [0] * (3 - len(scales))
    alpha, full = (0, alpha) if scales[0].ndim == 3 else (alpha, 0)
    addresses = [0, tau, f, 0, weight.data_ptr(), alpha, full, beta, gamma, 0, 0, *others]
    return addresses + [0] * (17 - len(addresses))


def _pack_cpu(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int) -> Tensor:
    extension = dispatch.native()
    if extension is None or kernel_name() == "torch" or x.numel() == 0:
        return reference.pack_bits(x, thresholds, flips, groups)
    bits = _pack_fake(x, thresholds, flips, groups)
    x, thresholds, flips = x.contiguous(), thresholds.contiguous(), flips.contiguous()
    shape = (x.shape[0], x.shape[1], x.shape[2] * x.shape[3])
    addresses = [tensor.data_ptr() for tensor in (x, thresholds, flips, bits)]
    extension.binary_pack(kernel_name(), torch.get_num_threads(), shape, groups, *addresses)
    return bits


def _conv2d_fallback(operands: Operands[Tensor], geometry: Geometry) -> Tensor:
    """Compute a layer by Triton on a GPU, and by PyTorch elsewhere."""
    check_result_shape(kinds_of(operands), geometry)
    x, weight, scales = operands.x, operands.weight, operands.scales
    if operands.thresholds is not None and operands.flips is not None:
        x = _pack_fallback(x, operands.thresholds, operands.flips, weight.shape[0])
    out_thresholds, out_flips = operands.out_thresholds, operands.out_flips
    if runs_on(x.device):
        from tamis.kernels.triton import binary_conv

        return binary_conv.conv2d(x, weight, scales, geometry, out_thresholds, out_flips)
    y = reference.conv2d(x, weight, scales, geometry)
    if out_thresholds is None or out_flips is None:
        return y
    return reference.pack_bits(y, out_thresholds, out_flips, geometry.out_groups)


def _pack_fallback(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int) -> Tensor:
    if not runs_on(x.device):
        return reference.pack_bits(x, thresholds, flips, groups)
    from tamis.kernels.triton import binary_conv

    return binary_conv.pack_bits(x, thresholds, flips, groups)


def _conv2d_fake(operands: Operands[Tensor], geometry: Geometry) -> Tensor:
    """Return an empty tensor of the result's shape and dtype, after the same checks."""
    shape = check_result_shape(kinds_of(operands), geometry)
    dtype = torch.float32 if operands.out_thresholds is None else torch.int64
    return operands.x.new_empty(shape, dtype=dtype)


def _pack_fake(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.shape
    return x.new_empty((batch, groups, count_words(channels // groups), height, width), dtype=torch.int64)


def _as_operator(run: Callable[[Operands[Tensor], Geometry], Tensor]) -> Callable[..., Tensor]:
    """Return the function with the arguments of the operator's schema, which files of exported programs hold."""

    def operator(x: Tensor, weight: Tensor, scales: Sequence[Tensor], shape: Sequence[int], *others: Any) -> Tensor:
        thresholds, flips, stride, padding, dilation, out_thresholds, out_flips, out_groups = others
        operands = Operands(x, weight, tuple(scales), thresholds, flips, out_thresholds, out_flips)
        geometry = Geometry(tuple(shape), tuple(stride), tuple(padding), tuple(dilation), out_groups)
        return run(operands, geometry)

    return operator


_library = torch.library.Library("tamis", "FRAGMENT")
_library.define("binary_pack(Tensor x, Tensor thresholds, Tensor flips, int groups) -> Tensor")
_library.define(
    "binary_conv2d(Tensor x, Tensor weight, Tensor[] scales, SymInt[] shape, Tensor? thresholds, Tensor? flips, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, Tensor? out_thresholds, Tensor? out_flips, int out_groups) "
    "-> Tensor"
)
_library.impl("binary_pack", _pack_fallback, "CompositeExplicitAutograd")
_library.impl("binary_conv2d", _as_operator(_conv2d_fallback), "CompositeExplicitAutograd")
_library.impl("binary_pack", _pack_cpu, "CPU")
_library.impl("binary_conv2d", _as_operator(_conv2d_cpu), "CPU")
torch.library.register_fake("tamis::binary_pack", _pack_fake, lib=_library)
torch.library.register_fake("tamis::binary_conv2d", _as_operator(_conv2d_fake), lib=_library)
