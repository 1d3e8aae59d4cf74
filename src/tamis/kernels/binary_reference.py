"""The reference for layers of ±1 inputs and weights is plain PyTorch: slow, obvious, and on any device.

The layouts of packed bits and packed weights are described in tamis.kernels.binary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tamis.kernels.binary_arguments import Geometry
from tamis.kernels.bit_layout import COUNT, OCT, WORD, count_packed_rows, count_taps_per_word, count_words


def pack_bits(x: Tensor, thresholds: Tensor, flips: Tensor, groups: int) -> Tensor:
    """Pack the bits (x ≥ τ_c) xor f_c of (N, C, H, W) into words (N, groups, words, H, W)."""
    batch, channels, height, width = x.shape
    each = channels // groups
    bits = (x >= thresholds[:, None, None]) ^ flips[:, None, None]
    padded = bits.new_zeros(batch, groups, count_words(each) * WORD, height, width)
    padded[:, :, :each] = bits.reshape(batch, groups, each, height, width)
    # Each bit has a place of its own in the word, so that a sum is a union.
    shifts = torch.arange(WORD, device=x.device).view(WORD, 1, 1)
    words = padded.view(batch, groups, count_words(each), WORD, height, width)
    return (words.long() << shifts).sum(3)


def unpack_signs(bits: Tensor, channels: int) -> Tensor:
    """Unpack words (N, groups, words, H, W) into (N, channels, H, W) of ±1 in float64."""
    batch, groups, words, height, width = bits.shape
    shifts = torch.arange(WORD, device=bits.device).view(WORD, 1, 1)
    separate = (bits[:, :, :, None] >> shifts & 1).reshape(batch, groups, words * WORD, height, width)
    each = channels // groups
    return (2 * separate[:, :, :each] - 1).reshape(batch, channels, height, width).double()


def pack_weight(weight: Tensor, groups: int) -> Tensor:
    """Pack the bits weight ≥ 0 of (O, C / groups, kh, kw) into words (groups, octs, rows, 8)."""
    outputs, each, height, width = weight.shape
    of_group, taps = outputs // groups, height * width
    octs, row, in_word = -(-of_group // OCT), taps * count_words(each), count_taps_per_word(each)
    rows, count_rows = count_packed_rows(each, taps)
    bits = np.zeros((groups, octs * OCT, taps, count_words(each) * WORD), dtype=np.bool_)
    positive = (weight.detach() >= 0).cpu().numpy().reshape(groups, of_group, each, taps)
    bits[:, :of_group, :, :each] = positive.transpose(0, 1, 3, 2)
    words = np.packbits(bits, axis=-1, bitorder="little").view("<i8").reshape(groups, octs, OCT, row)
    counts = bits.sum(-1, dtype=np.int64).reshape(groups, octs, OCT, taps)
    packed = np.zeros((groups, octs, OCT, rows + count_rows), dtype=np.int64)
    packed[..., :row] = words
    # The third of each three rows holds the xor of all: with it, three popcounts become two (cpu/binary.h).
    packed[..., 2:rows:3] ^= packed[..., 0:rows:3] ^ packed[..., 1:rows:3]
    for tap in range(taps):
        packed[..., rows + tap // in_word] |= counts[..., tap] << tap % in_word * COUNT
    # Copied into torch's memory, which begins at a cache line, as numpy's need not: kernels read whole lines.
    lines = torch.from_numpy(packed).transpose(2, 3)
    return lines.clone(memory_format=torch.contiguous_format).to(weight.device)


def unpack_weight(packed: Tensor, outputs: int, each: int, kernel: Sequence[int]) -> Tensor:
    """Unpack the weights (outputs, each, kh, kw) of ±1 in float64 that `pack_weight` packed."""
    groups, octs, _, _ = packed.shape
    taps, words = kernel[0] * kernel[1], count_words(each)
    rows, _ = count_packed_rows(each, taps)
    # The third row of each three is the xor of all; xor with the other two gives it back, as xor undoes itself.
    row = packed[:, :, :rows].transpose(2, 3).clone()
    row[..., 2::3] ^= row[..., 0::3] ^ row[..., 1::3]
    row = row[..., : taps * words].reshape(groups, octs * OCT, taps, words, 1)
    bits = (row >> torch.arange(WORD, device=packed.device) & 1).reshape(groups, octs * OCT, taps, words * WORD)
    signs = (2 * bits - 1)[:, : outputs // groups, :, :each].transpose(2, 3)
    return signs.reshape(outputs, each, *kernel).double()


def scale_of(scales: Sequence[Tensor]) -> Tensor:
    """Multiply the factors of a scale, to broadcast over (O, H, W): α[o] · β[h, w], or (α[o] · β[h]) · γ[w]."""
    if len(scales) == 3:
        alpha, beta, gamma = scales
        return (alpha[:, None, None] * beta[:, None]) * gamma
    if len(scales) == 2:
        return scales[0][:, None, None] * scales[1]
    return scales[0] if scales[0].ndim == 3 else scales[0][:, None, None]


def conv2d(bits: Tensor, weight: Tensor, scales: Sequence[Tensor], geometry: Geometry) -> Tensor:
    """Convolve packed bits with packed weights and scale the result: (N, O, H, W) in float32."""
    (outputs, each, *kernel), stride, padding, dilation, _ = geometry
    groups = weight.shape[0]
    signs = unpack_weight(weight, outputs, each, kernel)
    # In float64 every sum of ±1 is exact however it is computed.
    sums = nn.functional.conv2d(unpack_signs(bits, each * groups), signs, None, stride, padding, dilation, groups)
    return (sums.round() + 0.0).float() * scale_of(scales)  # an integer has no −0, which a sum of zeros around may give
