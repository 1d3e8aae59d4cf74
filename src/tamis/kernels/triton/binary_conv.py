"""Binary layers on a GPU, of the packed bits and packed weights of tamis.kernels.binary, to the same bits.

Floats are packed in one launch and convolved in another, a program for a tile of pixels and output channels. It passes
over the rows of the packed weights, one tap and 64 input channels each, and loads of the input what that tap sees of
its pixels: patches are never stored. For words x, y, z in which inputs and weights differ,

    popcount(x) + popcount(y) + popcount(z) = popcount(x ^ y ^ z) + 2 popcount(majority of x, y, z),

so that three rows take two popcounts, which are what a GPU is slow at, and nine rows take four. Around the image no bit
differs, and the pixel has so many products fewer.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from tamis.kernels.binary_arguments import Geometry
from tamis.kernels.triton import launching_on

WORD = 64  # bits in a word
ENOUGH_PROGRAMS = 256  # about two for each multiprocessor of a large GPU
TILES = ((8, 128, 2), (8, 64, 1), (8, 32, 1), (4, 32, 1))  # channels, pixels and warps of a program, largest first
TILE_TO_BITS = (WORD, 32, 8)
MOST_WORDS = 1 << 16  # of bits that one launch gives; beyond, floats that a second one packs are faster
PACKED_PIXELS = 64  # of which a program packs the words


def pack_bits(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int) -> Tensor:
    """Pack the bits (x ≥ τ_c) xor f_c of float32 (N, C, H, W) into words (N, groups, words, H, W)."""
    batch, channels, height, width = x.shape
    each, plane = channels // groups, height * width
    words = triton.cdiv(each, WORD)
    bits = torch.empty((batch, groups, words, height, width), dtype=torch.int64, device=x.device)
    if bits.numel() == 0:
        return bits
    with launching_on(x.device):
        _pack[(triton.cdiv(batch * plane, PACKED_PIXELS), groups * words)](
            x.contiguous(),
            thresholds.contiguous(),
            flips.contiguous(),
            bits,
            batch * plane,
            plane,
            channels,
            each,
            words,
            PIXELS=PACKED_PIXELS,
            num_warps=PACKED_PIXELS // 32,
        )
    return bits


def conv2d(
    bits: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    geometry: Geometry,
    out_thresholds: Tensor | None = None,
    out_flips: Tensor | None = None,
) -> Tensor:
    """Compute a layer of packed bits: float32 (N, O, H', W'), or with `out_thresholds` and `out_flips` packed bits.

    Args:
        bits: (N, groups, words, H, W).
        weight: what `tamis.kernels.binary.pack_weight` gave for weights of `geometry.weight_shape`.

    The others are those of `tamis.kernels.binary.binary_conv2d`, which has checked all of them.
    """
    batch, groups, _, height, width = bits.shape
    (outputs, _, *kernel), stride, padding, dilation, out_groups = geometry
    rows, columns = (
        (length + 2 * p - d * (k - 1) - 1) // s + 1
        for length, k, s, p, d in zip((height, width), kernel, stride, padding, dilation, strict=True)
    )
    to_bits = out_thresholds is not None and out_flips is not None
    # A tile of 64 output channels is a word of the result, unless groups begin within words.
    # A program that makes whole words needs all 64 channels of a pixel, and so few programs: it pays for small results
    # only.
    few = batch * rows * columns * triton.cdiv(outputs, WORD) <= MOST_WORDS
    whole_words = to_bits and few and groups == 1 and (out_groups == 1 or outputs // out_groups % WORD == 0)
    if whole_words:
        words = triton.cdiv(outputs // out_groups, WORD)
        result = torch.empty((batch, out_groups, words, rows, columns), dtype=torch.int64, device=bits.device)
    else:
        result = torch.empty((batch, outputs, rows, columns), dtype=torch.float32, device=bits.device)
    if result.numel():
        compare = (out_thresholds, out_flips) if whole_words else (None, None)
        _launch(bits.contiguous(), weight.contiguous(), scales, geometry, compare, result)
    if whole_words or out_thresholds is None or out_flips is None:
        return result
    return pack_bits(result, out_thresholds, out_flips, out_groups)


def _launch(
    bits: Tensor,
    weight: Tensor,
    scales: Sequence[Tensor],
    geometry: Geometry,
    compare: tuple[Tensor | None, Tensor | None],
    result: Tensor,
) -> None:
    """Launch the convolution; with thresholds and flips to compare with, the result is packed bits."""
    batch, groups, words, height, width = bits.shape
    (outputs, each, *kernel), stride, padding, dilation, _ = geometry
    rows, columns = result.shape[-2:]
    taps, of_group, pixels = kernel[0] * kernel[1], outputs // groups, batch * rows * columns
    # Rows come in threes for the carry-save adder. Those past the last tap are masked, so that they count as equal.
    padded_rows = triton.cdiv(taps * words, 3) * 3
    channels, pixels_each, warps = _tile(of_group, pixels, groups) if compare[0] is None else TILE_TO_BITS
    factors = [scale.contiguous() for scale in scales]
    # Missing scales are stood in for by alpha, which the kernel does not read as such: SCALE says which there are.
    alpha, beta, gamma = (*factors, factors[0], factors[0])[:3]
    # A kernel needs some tensor for each argument; which ones it reads is in its constants.
    vectors = [alpha if vector is None else vector.contiguous() for vector in compare]
    with launching_on(bits.device):
        _conv[(triton.cdiv(pixels, pixels_each), triton.cdiv(of_group, channels), groups)](
            bits,
            weight,
            alpha,
            beta,
            gamma,
            *vectors,
            result,
            pixels,
            outputs,
            of_group,
            each,
            height,
            width,
            rows,
            columns,
            *kernel,
            *stride,
            *padding,
            *dilation,
            weight.shape[2],
            WORDS=words,
            TAPS=taps,
            ROWS=padded_rows,
            AT_ONCE=9 if padded_rows % 9 == 0 else 3,
            SCALE=4 if factors[0].ndim == 3 else len(factors),
            MASKED=max(padding) > 0 or padded_rows > taps * words,
            TO_BITS=compare[0] is not None,
            CHANNELS=channels,
            PIXELS=pixels_each,
            num_warps=warps,
        )


def _tile(of_group: int, pixels: int, groups: int) -> tuple[int, int, int]:
    """Choose channels, pixels and warps of a program: the most that leave every multiprocessor something to run."""
    tiles = [(min(channels, triton.next_power_of_2(of_group)), *others) for channels, *others in TILES]
    programs = [triton.cdiv(of_group, channels) * triton.cdiv(pixels, each) * groups for channels, each, _ in tiles]
    return next((tile for tile, count in zip(tiles, programs, strict=True) if count >= ENOUGH_PROGRAMS), tiles[-1])


INTERPRETED: tl.constexpr = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def _pack(x, thresholds, flips, bits, total, plane, channels, each, words, PIXELS: tl.constexpr):
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    group, word = tl.program_id(1) // words, tl.program_id(1) % words
    # 64 bits for what is multiplied by the image: an activation may have more than 2³¹ entries.
    image, place = (pixel // plane).to(tl.int64), pixel % plane
    first = group * each + word * 64
    # The last word of a group may have fewer channels: its other bits are 0, as in the packed weights, and never
    # differ.
    left = each - word * 64
    x += (image * channels + first) * plane + place
    packed = tl.zeros((PIXELS,), tl.int64)
    for place_in_word in tl.static_range(64):  # all loads can be under way at once
        known = place_in_word < left
        value = tl.load(x, mask=(pixel < total) & known, other=0.0)
        x += plane
        threshold = tl.load(thresholds + first + place_in_word, mask=known, other=0.0)
        flip = tl.load(flips + first + place_in_word, mask=known, other=0) != 0
        packed |= (((value >= threshold) ^ flip) & known).to(tl.int64) << place_in_word
    target = (image * tl.num_programs(1) + tl.program_id(1)) * plane + place
    tl.store(bits + target, packed, mask=pixel < total)


@triton.jit
def _conv(
    bits,
    weight,
    alpha,
    beta,
    gamma,
    thresholds,
    flips,
    result,
    pixels,
    outputs,
    of_group,
    each,
    height,
    width,
    rows,
    columns,
    kernel_height,
    kernel_width,
    stride_y,
    stride_x,
    padding_y,
    padding_x,
    dilation_y,
    dilation_x,
    stored_rows,
    WORDS: tl.constexpr,
    TAPS: tl.constexpr,
    ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr,
    SCALE: tl.constexpr,
    MASKED: tl.constexpr,
    TO_BITS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
):
    group = tl.program_id(2)
    # Channels are the first axis of every tile and pixels the last, which neighbouring threads share out.
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[None, :]
    inside = (channel < of_group) & (pixel < pixels)
    pixel = tl.minimum(pixel, pixels - 1)  # so that loads need no mask
    if CHANNELS > 8:  # of eight that begin in a group, packed weights have all
        channel = tl.minimum(channel, of_group - 1)
    plane = rows * columns
    image, place = (pixel // plane).to(tl.int64), pixel % plane
    y, x = place // columns, place % columns
    top, left = y * stride_y - padding_y, x * stride_x - padding_x
    bits += (image * tl.num_programs(2) + group) * (WORDS * height * width)
    weight += ((group * tl.cdiv(of_group, 8) + channel // 8) * stored_rows).to(tl.int64) * 8 + channel % 8
    image_size = (height, width)
    taps = (kernel_width, dilation_y, dilation_x)

    # A carry-save adder: three words of bits become ones and twos, and nine become ones, twos, twos and fours, so that
    # four popcounts do for nine rows.
    differing = tl.zeros((CHANNELS, PIXELS), tl.int32)
    for row in range(0, ROWS, AT_ONCE):
        ones, twos = _three(bits, weight, row, top, left, image_size, taps, WORDS, TAPS, MASKED)
        if AT_ONCE == 9:
            ones_2, twos_2 = _three(bits, weight, row + 3, top, left, image_size, taps, WORDS, TAPS, MASKED)
            ones_3, twos_3 = _three(bits, weight, row + 6, top, left, image_size, taps, WORDS, TAPS, MASKED)
            differing += 4 * _popcount(_majority(twos, twos_2, twos_3))
            twos = twos ^ twos_2 ^ twos_3
            differing += 2 * _popcount(_majority(ones, ones_2, ones_3))
            ones = ones ^ ones_2 ^ ones_3
        differing += _popcount(ones) + 2 * _popcount(twos)

    # Of n products, n − d are +1 and d are −1 where d bits differ: n − 2d. Taps around the image are none of the n, and
    # their bits were counted as equal.
    seen_y = _inside(top, height, kernel_height, dilation_y)
    seen_x = _inside(left, width, kernel_width, dilation_x)
    value = (each * seen_y * seen_x - 2 * differing).to(tl.float32)

    # Channels past the last read the last one's scale, and are masked when stored.
    channel = tl.minimum(channel, of_group - 1) + group * of_group
    if SCALE == 4:
        scale = tl.load(alpha + channel.to(tl.int64) * plane + place)
    else:
        scale = tl.load(alpha + channel)
        if SCALE == 2:
            scale = scale * tl.load(beta + place)
        if SCALE == 3:
            scale = (scale * tl.load(beta + y)) * tl.load(gamma + x)  # in this order: the CPU's kernels round so
    value = value * scale

    if TO_BITS:
        flip = tl.load(flips + channel).to(tl.int1)
        bit = ((value >= tl.load(thresholds + channel)) ^ flip) & inside
        # Every bit has a place of its own, so that the sum is their union.
        whole = tl.sum(bit.to(tl.int64) << (channel % 64).to(tl.int64), 0, keep_dims=True)
        target = (image * tl.num_programs(1) + tl.program_id(1)) * plane + place
        tl.store(result + target, whole, mask=tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)[None, :] < pixels)
    else:
        tl.store(result + (image * outputs + channel) * plane + place, value, mask=inside)


@triton.jit
def _three(
    bits, weight, row, top, left, image_size, taps, WORDS: tl.constexpr, TAPS: tl.constexpr, MASKED: tl.constexpr
):
    """Add three rows of differing bits place by place, and return the ones and the twos of the sum."""
    weight_a = tl.load(weight + row * 8)
    weight_b = tl.load(weight + row * 8 + 8)
    weight_c = tl.load(weight + row * 8 + 16) ^ weight_a ^ weight_b  # what is stored is the xor of all three
    x = _differing(bits, weight_a, row, top, left, image_size, taps, WORDS, TAPS, MASKED)
    y = _differing(bits, weight_b, row + 1, top, left, image_size, taps, WORDS, TAPS, MASKED)
    z = _differing(bits, weight_c, row + 2, top, left, image_size, taps, WORDS, TAPS, MASKED)
    return x ^ y ^ z, _majority(x, y, z)


@triton.jit
def _differing(
    bits, weight, row, top, left, image_size, taps, WORDS: tl.constexpr, TAPS: tl.constexpr, MASKED: tl.constexpr
):
    """Return the bits in which one row of weights and the input at each pixel differ; around the image none do."""
    height, width = image_size
    kernel_width, dilation_y, dilation_x = taps
    tap, word = row // WORDS, row % WORDS
    y = top + tap // kernel_width * dilation_y
    x = left + tap % kernel_width * dilation_x
    place = (word * height + y) * width + x
    if not MASKED:
        return tl.load(bits + place) ^ weight
    # One shift instead of five comparisons: the sign bit of an or is set if that of any term is.
    beyond = (y | x | (height - 1 - y) | (width - 1 - x) | (TAPS - 1 - tap)) >> 31  # −1 where a number is negative
    mask = (~beyond).to(tl.int64)
    if not INTERPRETED:
        # A copy of the mask that the compiler cannot see through. Otherwise it would select between numbers, where
        # (a ^ b) & c is one instruction.
        mask = tl.inline_asm_elementwise("mov.b64 $0, $1;", "=l,l", [mask], dtype=tl.int64, is_pure=True, pack=1)
    return (tl.load(bits + place, mask=beyond == 0, other=0) ^ weight) & mask


@triton.jit
def _majority(x, y, z):
    return (x & y) | ((x | y) & z)


@triton.jit
def _popcount(words):
    """Count the bits that are 1."""
    if not INTERPRETED:
        return libdevice.popc(words)
    words = words - ((words >> 1) & 0x5555555555555555)
    words = (words & 0x3333333333333333) + ((words >> 2) & 0x3333333333333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F0F0F0F0F
    return ((words * 0x0101010101010101) >> 56).to(tl.int32)


@triton.jit
def _inside(start, length, taps, dilation):
    """Count the taps at start, start + dilation, … that lie in [0, length)."""
    # The number of taps with start + k · dilation < 0, and below it of those with start + k · dilation < length.
    first = tl.maximum(0, tl.cdiv(tl.maximum(-start, 0), dilation))
    last = tl.minimum(taps, tl.cdiv(tl.maximum(length - start, 0), dilation))
    return tl.maximum(last - first, 0)
