"""Layers of ±1 inputs and ±1 weights: bits compared by xor, counted by popcount.

One layer, from float32 (N, C, H, W) to float32 (N, O, H', W'):

    b = (x ≥ τ_c) xor f_c          bit 1 stands for +1, bit 0 for −1; what is not a number is below every τ
    s = conv2d(±1 of b, ±1 weights), with zeros around: an exact integer in [−n, n]
    y = float32(s) · scale         one rounding after those of the scale, in the order written here

where the scale is one of [α] (O), [full] (O, H', W'), [α, β] with β (H', W'): α[o] · β[h, w], and [α, β, γ] with β (H')
and γ (W'): (α[o] · β[h]) · γ[w]. Products are rounded to float32 in that order, so PyTorch gives the same bits.

Consecutive layers can exchange bits: `x` may be packed bits, and with `out_thresholds` and `out_flips`, the τ and f of
the next layer, the result is its packed bits (y ≥ τ_o) xor f_o instead of y.

    packed = pack_weight(weight)                                              # once
    y = binary_conv2d(x, packed, [alpha], weight.shape, thresholds=tau, flips=f, stride=1, padding=1)
    bits = binary_conv2d(x, packed, [alpha], weight.shape, thresholds=tau, flips=f, padding=1,
                         out_thresholds=next_tau, out_flips=next_f)           # int64
    z = binary_conv2d(bits, packed2, [alpha2], weight2.shape, padding=1)
    y = binary_linear(x, packed3, [alpha3], weight3.shape, thresholds=tau, flips=f)   # (N, C) → (N, O)
    bits = pack_input(x, tau, f)                                              # what a layer does first

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
from tamis.kernels.triton import runs_on

Pair = int | Sequence[int]


def pack_weight(weight: Tensor, groups: int = 1) -> Tensor:
    """The signs of weights (O, C / groups, kh, kw), or (O, C) of a linear layer, as bits; 0 counts as +1.

    Example:
        >>> pack_weight(torch.ones(16, 64, 3, 3)).shape
        torch.Size([1, 2, 12, 8])
    """
    if weight.ndim == 2:
        weight = weight[:, :, None, None]
    if weight.ndim != 4 or weight.numel() == 0:
        raise InvalidInput(f"pack_weight needs weights (O, C / groups, kh, kw), not {_said(_kind(weight))}")
    if groups < 1 or weight.shape[0] % groups:
        raise InvalidInput(f"pack_weight got {weight.shape[0]} output channels, which {groups} groups do not divide")
    return reference.pack_weight(weight, groups)


def pack_input(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int = 1) -> Tensor:
    """The bits (x ≥ τ_c) xor f_c of float32 (N, C, H, W), packed for a layer of so many groups: see the module.

    Example:
        >>> pack_input(torch.tensor([[[[1.0]], [[-2.0]], [[0.0]]]]), torch.zeros(3), torch.zeros(3, dtype=torch.bool))
        tensor([[[[[5]]]]])
    """
    _check_vectors("pack_input", "thresholds", _kind(thresholds), "flips", _kind(flips), _kind(x))
    _check_images("pack_input", _kind(x), thresholds.numel(), groups)
    bits: Tensor = torch.ops.tamis.binary_pack(x, thresholds, flips, groups)
    return bits


def binary_conv2d(
    x: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    weight_shape: Sequence[int],
    *,
    thresholds: Tensor | None = None,
    flips: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    out_thresholds: Tensor | None = None,
    out_flips: Tensor | None = None,
    out_groups: int = 1,
) -> Tensor:
    """One layer, as written at the top of this module.

    Args:
        x: float32 (N, C, H, W), or packed bits (N, groups, words, H, W).
        weight: what `pack_weight` gave for weights of `weight_shape`; the number of groups is that of its first axis.
        scales: the factors of the scale, float32: [α], [full], [α, β] or [α, β, γ].
        weight_shape: (O, C / groups, kh, kw).
        thresholds, flips: τ and f, (C), float32 and bool, of float inputs; packed bits have none.
        stride, padding, dilation: as in torch.nn.functional.conv2d.
        out_thresholds, out_flips: τ and f, (O), of the layer that reads the result, which is then packed bits.
        out_groups: the groups of that layer.
    """
    # PyTorch takes longer to pass so many arguments on than this takes to use them: it is asked only where it looks on.
    direct = type(x) is Tensor and x.is_cpu and not watched()
    run: Callable[..., Tensor] = _conv2d_cpu if direct else torch.ops.tamis.binary_conv2d
    return run(
        x,
        weight,
        scales,
        weight_shape,
        thresholds,
        flips,
        _pair(stride),
        _pair(padding),
        _pair(dilation),
        out_thresholds,
        out_flips,
        out_groups,
    )


def watched() -> bool:
    """Whether PyTorch compiles, traces or intercepts what is called."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def binary_linear(
    x: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    weight_shape: Sequence[int],
    *,
    thresholds: Tensor | None = None,
    flips: Tensor | None = None,
    out_thresholds: Tensor | None = None,
    out_flips: Tensor | None = None,
) -> Tensor:
    """A linear layer: `binary_conv2d` of one pixel.

    Args:
        x: float32 (…, C), or packed bits (N, 1, words, 1, 1).
        weight_shape: (O, C).

    The others are those of `binary_conv2d`. The result is (…, O), or packed bits.
    """
    if x.dtype != torch.int64:
        leading, x = x.shape[:-1], x.reshape(-1, x.shape[-1], 1, 1)
    else:
        leading = x.shape[:1]
    y = binary_conv2d(
        x,
        weight,
        scales,
        (*weight_shape[:2], 1, 1),
        thresholds=thresholds,
        flips=flips,
        out_thresholds=out_thresholds,
        out_flips=out_flips,
    )
    return y if out_thresholds is not None else y.reshape(*leading, y.shape[1])


def _pair(value: Pair) -> Sequence[int]:
    return (value, value) if isinstance(value, int) else value


# What is checked of a tensor: (shape, dtype, device). A call is checked once for each combination, then looked up.
Kind = tuple[torch.Size, torch.dtype, torch.device]


def _kind(tensor: Tensor) -> Kind:
    return tensor.shape, tensor.dtype, tensor.device


def _maybe_kind(tensor: Tensor | None) -> Kind | None:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device)


def _said(kind: Kind) -> str:
    return f"{kind[1]} ({', '.join(map(str, kind[0]))})"


def _check_images(name: str, x: Kind, channels: int, groups: int) -> None:
    if len(x[0]) != 4 or x[1] != torch.float32:
        raise InvalidInput(f"{name} needs float32 (N, C, H, W), not {_said(x)}")
    if x[0][1] != channels:
        raise InvalidInput(f"{name} got inputs {_said(x)} for {channels} channels")
    if groups < 1 or channels < 1 or channels % groups:
        raise InvalidInput(f"{name} got {channels} channels, which {groups} groups do not divide")


def _check_vectors(name: str, first: str, thresholds: Kind, second: str, flips: Kind, x: Kind) -> None:
    if len(thresholds[0]) != 1 or thresholds[1] != torch.float32:
        raise InvalidInput(f"{name} needs float32 {first} of one axis, not {_said(thresholds)}")
    if flips[0] != thresholds[0] or flips[1] != torch.bool:
        raise InvalidInput(
            f"{name} needs bool {second} of the shape of {first}, {_said(thresholds)}, not {_said(flips)}"
        )
    if thresholds[2] != x[2] or flips[2] != x[2]:
        raise InvalidInput(f"{name} got inputs on {x[2]}, {first} on {thresholds[2]}, {second} on {flips[2]}")


def _output_size(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int]:
    if not len(stride) == len(padding) == len(dilation) == 2:
        raise InvalidInput(
            f"binary_conv2d needs two numbers each: stride {stride}, padding {padding}, dilation {dilation}"
        )
    if min(*stride, *dilation) < 1 or min(padding) < 0:
        raise InvalidInput(
            f"binary_conv2d needs a stride and dilation of at least 1 and padding of at least 0, not {tuple(stride)}, "
            f"{tuple(dilation)}, {tuple(padding)}"
        )
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    room = [length + 2 * p - r for length, p, r in zip(size, padding, reach, strict=True)]
    if min(room) < 0 or min(size) < 1:
        raise InvalidInput(
            f"binary_conv2d got images of {tuple(size)} with padding {tuple(padding)}, smaller than a kernel of {reach}"
        )
    height, width = (left // s + 1 for left, s in zip(room, stride, strict=True))
    return height, width


def _result_shape(
    x: Kind,
    weight: Kind,
    scales: tuple[Kind, ...],
    shape: Sequence[int],
    thresholds: Kind | None,
    flips: Kind | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_thresholds: Kind | None,
    out_flips: Kind | None,
    out_groups: int,
) -> tuple[int, ...]:
    """The shape of the result, after all that could be wrong was checked."""
    if len(shape) != 4 or min(shape) < 1:
        raise InvalidInput(f"binary_conv2d needs a weight_shape (O, C / groups, kh, kw), not {tuple(shape)}")
    outputs, each, *kernel = shape
    words, taps, groups = reference.words_of(each), kernel[0] * kernel[1], weight[0][0] if len(weight[0]) == 4 else 0
    rows = sum(reference.rows_of(each, taps))
    packed = (groups, -(-outputs // groups // 8), rows, 8) if groups else ()
    if weight[1] != torch.int64 or weight[0] != packed or outputs % groups or weight[2] != x[2]:
        raise InvalidInput(
            f"binary_conv2d got inputs on {x[2]} and weights {_said(weight)} on {weight[2]}, which is not what "
            f"pack_weight gives there for {tuple(shape)}"
        )
    if each * taps >= 1 << 22:
        raise InvalidInput(f"binary_conv2d sums fewer than 2²² products, not {each * taps}: weights {tuple(shape)}")
    if x[1] == torch.int64:
        if len(x[0]) != 5 or tuple(x[0][1:3]) != (groups, words):
            raise InvalidInput(
                f"binary_conv2d needs packed bits (N, {groups}, {words}, H, W) for weights {tuple(shape)} in {groups} "
                f"groups, not {_said(x)}"
            )
        if thresholds is not None or flips is not None:
            raise InvalidInput("binary_conv2d got packed bits with thresholds or flips: they are already compared")
    else:
        if thresholds is None or flips is None:
            raise InvalidInput(f"binary_conv2d needs thresholds and flips for inputs {_said(x)}")
        _check_vectors("binary_conv2d", "thresholds", thresholds, "flips", flips, x)
        _check_images("binary_conv2d", x, each * groups, groups)
        if thresholds[0].numel() != each * groups:
            raise InvalidInput(
                f"binary_conv2d got {thresholds[0].numel()} thresholds for {each * groups} channels: weights "
                f"{tuple(shape)} in {groups} groups"
            )
    height, width = _output_size(x[0][-2:], kernel, stride, padding, dilation)
    _check_scales(scales, outputs, height, width, x)
    if (out_thresholds is None) != (out_flips is None):
        raise InvalidInput("binary_conv2d needs out_thresholds and out_flips together, or neither")
    if out_thresholds is None or out_flips is None:
        return x[0][0], outputs, height, width
    _check_vectors("binary_conv2d", "out_thresholds", out_thresholds, "out_flips", out_flips, x)
    if out_thresholds[0].numel() != outputs:
        raise InvalidInput(
            f"binary_conv2d got {out_thresholds[0].numel()} out_thresholds for {outputs} output channels"
        )
    if out_groups < 1 or outputs % out_groups:
        raise InvalidInput(f"binary_conv2d got {outputs} output channels, which {out_groups} out_groups do not divide")
    return x[0][0], out_groups, reference.words_of(outputs // out_groups), height, width


def _check_scales(scales: tuple[Kind, ...], outputs: int, height: int, width: int, x: Kind) -> None:
    shapes = tuple(tuple(scale[0]) for scale in scales)
    per_output = (outputs,)
    if shapes not in (
        (per_output,),
        ((outputs, height, width),),
        (per_output, (height, width)),
        (per_output, (height,), (width,)),
    ):
        raise InvalidInput(
            f"binary_conv2d needs scales of shapes ({outputs}), ({outputs}, {height}, {width}), ({outputs}) and "
            f"({height}, {width}), or ({outputs}), ({height}) and ({width}), not {shapes}"
        )
    for scale in scales:
        if scale[1] != torch.float32 or scale[2] != x[2]:
            raise InvalidInput(f"binary_conv2d needs scales in float32 on {x[2]}, not {scale[1]} on {scale[2]}")


@lru_cache(maxsize=1)
def _kernel() -> str:
    """Looked up once: to ask for the extension takes as long as a small layer."""
    return dispatch.binary_kernel()[0]


@lru_cache(maxsize=1024)
def _prepared(
    kernel: str,
    x: Kind,
    weight: Kind,
    scales: tuple[Kind, ...],
    shape: tuple[int, ...],
    thresholds: Kind | None,
    flips: Kind | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    out_thresholds: Kind | None,
    out_flips: Kind | None,
    out_groups: int,
    follows: tuple[Any, ...] = (None, None, None, False, False, False),
) -> tuple[tuple[int, ...], Any]:
    """The shape of the result, and what the extension prepares for tensors of these shapes; None for no images.

    What follows: the kinds of a bias, of slopes and of shifts, whether numbers are added, whether slopes and shifts are
    rounded once, and whether nothing below 0 comes out.
    """
    result = _result_shape(
        x, weight, scales, shape, thresholds, flips, stride, padding, dilation, out_thresholds, out_flips, out_groups
    )
    if x[0][0] == 0:
        return result, None
    *vectors, added, one_rounding, relu = follows
    for vector in vectors:
        if vector is not None and (vector[0] != shape[:1] or vector[1] != torch.float32):
            raise InvalidInput(
                f"binary_conv2d is followed by float32 numbers of {shape[0]} channels, not {_said(vector)}"
            )
    extension = dispatch.native()
    assert extension is not None
    full = len(scales[0][0]) == 3
    factors = [0 if full else scales[0][0].numel(), scales[0][0].numel() if full else 0]
    factors += [scale[0].numel() for scale in scales[1:]] + [0] * (3 - len(scales))
    bits, to_bits = x[1] == torch.int64, out_thresholds is not None
    lengths = [0 if bits else x[0].numel(), *map(_length, (thresholds, flips)), x[0].numel() if bits else 0]
    lengths += [weight[0].numel(), *factors, 0 if to_bits else prod(result), prod(result) if to_bits else 0]
    lengths += [*map(_length, (out_thresholds, out_flips, *vectors)), prod(result) if added else 0]
    outputs, each, *kernel_size = shape
    groups = weight[0][0]
    layer = extension.BinaryLayer(
        kernel,
        outputs,
        each * groups,
        groups,
        tuple(x[0][-2:]),
        kernel_size,
        stride,
        padding,
        dilation,
        x[0][0],
        out_groups,
        lengths,
        one_rounding,
        relu,
    )
    return result, layer


def _length(vector: Kind | None) -> int:
    return 0 if vector is None else vector[0].numel()


def _conv2d_cpu(
    x: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    shape: Sequence[int],
    thresholds: Tensor | None,
    flips: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_thresholds: Tensor | None,
    out_flips: Tensor | None,
    out_groups: int,
) -> Tensor:
    kernel = _kernel()
    if kernel == "torch":
        after = (thresholds, flips, stride, padding, dilation, out_thresholds, out_flips, out_groups)
        return _conv2d_elsewhere(x, weight, scales, shape, *after)
    result_shape, layer = _prepared(
        kernel,
        _kind(x),
        _kind(weight),
        tuple([_kind(scale) for scale in scales]),
        tuple(shape),
        _maybe_kind(thresholds),
        _maybe_kind(flips),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        _maybe_kind(out_thresholds),
        _maybe_kind(out_flips),
        out_groups,
    )
    result = torch.empty(result_shape, dtype=torch.float32 if out_thresholds is None else torch.int64)
    if layer is None:
        return result
    # Tensors that are made contiguous must stay until the end, so all of them have names.
    numbers, words = x.contiguous(), weight.contiguous()
    factors = [scale.contiguous() for scale in scales]
    vectors = [_contiguous(vector) for vector in (thresholds, flips, out_thresholds, out_flips)]
    addresses = addresses_of(words, factors, *vectors)
    addresses[3 if x.dtype == torch.int64 else 0] = numbers.data_ptr()
    addresses[9 if out_thresholds is None else 10] = result.data_ptr()
    layer.run(torch.get_num_threads(), addresses)
    return result


def addresses_of(weight: Tensor, scales: Sequence[Tensor], *vectors: Tensor | None) -> list[int]:
    """What the extension takes: addresses of contiguous tensors, 0 for those that come and go, or that there are not.

    Args:
        weight, scales: those of `binary_conv2d`.
        vectors: thresholds, flips, out_thresholds, out_flips, and bias, slope and shift where something follows.
    """
    tau, f, *others = [0 if vector is None else vector.data_ptr() for vector in vectors]
    alpha, beta, gamma = [factor.data_ptr() for factor in scales] + [0] * (3 - len(scales))
    alpha, full = (0, alpha) if scales[0].ndim == 3 else (alpha, 0)
    addresses = [0, tau, f, 0, weight.data_ptr(), alpha, full, beta, gamma, 0, 0, *others]
    return addresses + [0] * (17 - len(addresses))


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _pack_cpu(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int) -> Tensor:
    extension = dispatch.native()
    if extension is None or _kernel() == "torch" or x.numel() == 0:
        return reference.pack_bits(x, thresholds, flips, groups)
    bits = _pack_fake(x, thresholds, flips, groups)
    x, thresholds, flips = x.contiguous(), thresholds.contiguous(), flips.contiguous()
    shape = (x.shape[0], x.shape[1], x.shape[2] * x.shape[3])
    addresses = [tensor.data_ptr() for tensor in (x, thresholds, flips, bits)]
    extension.binary_pack(_kernel(), torch.get_num_threads(), shape, groups, *addresses)
    return bits


def _checked_shape(
    x: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    shape: Sequence[int],
    thresholds: Tensor | None,
    flips: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_thresholds: Tensor | None,
    out_flips: Tensor | None,
    out_groups: int,
) -> tuple[int, ...]:
    """`_result_shape` of tensors."""
    return _result_shape(
        _kind(x),
        _kind(weight),
        tuple(map(_kind, scales)),
        shape,
        _maybe_kind(thresholds),
        _maybe_kind(flips),
        stride,
        padding,
        dilation,
        _maybe_kind(out_thresholds),
        _maybe_kind(out_flips),
        out_groups,
    )


def _conv2d_elsewhere(
    x: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    shape: Sequence[int],
    thresholds: Tensor | None,
    flips: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_thresholds: Tensor | None,
    out_flips: Tensor | None,
    out_groups: int,
) -> Tensor:
    _checked_shape(
        x, weight, scales, shape, thresholds, flips, stride, padding, dilation, out_thresholds, out_flips, out_groups
    )
    groups = weight.shape[0]
    if thresholds is not None and flips is not None:
        x = _pack_elsewhere(x, thresholds, flips, groups)
    if runs_on(x.device):
        from tamis.kernels.triton import binary_conv

        outwards = (out_thresholds, out_flips, out_groups)
        return binary_conv.conv2d(x, weight, scales, shape, stride, padding, dilation, *outwards)
    y = reference.conv2d(x, weight, scales, shape[1] * groups, shape[2:], stride, padding, dilation)
    if out_thresholds is None or out_flips is None:
        return y
    return reference.pack_bits(y, out_thresholds, out_flips, out_groups)


def _pack_elsewhere(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int) -> Tensor:
    if not runs_on(x.device):
        return reference.pack_bits(x, thresholds, flips, groups)
    from tamis.kernels.triton import binary_conv

    return binary_conv.pack_bits(x, thresholds, flips, groups)


def _conv2d_fake(
    x: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    shape: Sequence[int],
    thresholds: Tensor | None,
    flips: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out_thresholds: Tensor | None,
    out_flips: Tensor | None,
    out_groups: int,
) -> Tensor:
    result_shape = _checked_shape(
        x, weight, scales, shape, thresholds, flips, stride, padding, dilation, out_thresholds, out_flips, out_groups
    )
    return x.new_empty(result_shape, dtype=torch.float32 if out_thresholds is None else torch.int64)


def _pack_fake(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int) -> Tensor:
    batch, channels, height, width = x.shape
    return x.new_empty((batch, groups, reference.words_of(channels // groups), height, width), dtype=torch.int64)


_library = torch.library.Library("tamis", "FRAGMENT")
_library.define("binary_pack(Tensor x, Tensor thresholds, Tensor flips, int groups) -> Tensor")
_library.define(
    "binary_conv2d(Tensor x, Tensor weight, Tensor[] scales, SymInt[] shape, Tensor? thresholds, Tensor? flips, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, Tensor? out_thresholds, Tensor? out_flips, int out_groups) "
    "-> Tensor"
)
_library.impl("binary_pack", _pack_elsewhere, "CompositeExplicitAutograd")
_library.impl("binary_conv2d", _conv2d_elsewhere, "CompositeExplicitAutograd")
_library.impl("binary_pack", _pack_cpu, "CPU")
_library.impl("binary_conv2d", _conv2d_cpu, "CPU")
torch.library.register_fake("tamis::binary_pack", _pack_fake, lib=_library)
torch.library.register_fake("tamis::binary_conv2d", _conv2d_fake, lib=_library)
