"""A quantized tensor: the indices of its levels, packed; the levels; the scales; and what is kept, if it has a mask."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.codes import FEWEST_LEVELS, MOST_LEVELS, Codes, divides
from tamis.artifact.encodings import packing, positions
from tamis.artifact.encodings.base import Array, Decoded, Encoded, Encoding, bits, flat_bytes
from tamis.artifact.encodings.narrow_types import narrowed_or_same, widened
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.kernels import expand


class Levels(Encoding):
    """Three parts: `codes`, the packed indices of the kept entries in C order; `levels` and `scales`, narrowed.

    A tensor with a mask has a fourth, as in `sparse`: the positions of what is kept.
    """

    name = "levels"

    def encode(self, decoded: Decoded) -> Encoded | None:
        codes, mask = decoded.codes, decoded.mask
        if codes is None:
            return None
        packed = packing.pack(kept_indices(codes, mask), len(codes.levels))
        parts = {"codes": torch.from_numpy(packed), **levels_and_scales(codes)}
        return Encoded(parts if mask is None else parts | positions.to_part(mask))

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        coding = positions.part_among(stored.parts)
        stored.require({"codes", "levels", "scales"} | ({coding} if coding else set()))
        levels, scales = read_levels(stored.parts["levels"], dtype), read_scales(stored.parts["scales"], shape, dtype)
        packed, entries = flat_bytes(stored.parts["codes"], "codes"), math.prod(shape)
        kept = positions.from_part(stored.parts[coding], coding, entries) if coding else None
        count = entries if kept is None else int(np.count_nonzero(kept))
        return quantized(packing.unpack(packed, count, len(levels)), levels, scales, kept, shape)


def kept_indices(codes: Codes, mask: Tensor | None) -> Array:
    """The indices in a row, of the kept entries where there is a mask."""
    indices: Array = codes.indices.reshape(-1).numpy()
    return indices if mask is None else indices.take(np.flatnonzero(mask.reshape(-1).numpy()))


def levels_and_scales(codes: Codes) -> dict[str, Tensor]:
    """Two parts, narrowed where possible."""
    return {
        "levels": narrowed_or_same(codes.levels.contiguous()),
        "scales": narrowed_or_same(codes.scales.contiguous()),
    }


def read_levels(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Levels in the tensor's dtype; whether they ascend is for `quantized` to see."""
    if part.dim() != 1 or not FEWEST_LEVELS <= len(part) <= MOST_LEVELS:
        raise CorruptArtifact(
            f"has levels of shape {tuple(part.shape)}, not {FEWEST_LEVELS} to {MOST_LEVELS} of them in a row"
        )
    return widened(part, dtype).clone()


def read_scales(part: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Only what fits the shape is widened: it takes no more memory than the tensor."""
    if not divides(tuple(part.shape), shape):
        raise CorruptArtifact(f"has scales of shape {tuple(part.shape)}, which does not divide {shape}")
    return widened(part, dtype).clone()


def quantized(indices: Array, levels: Tensor, scales: Tensor, kept: Array | None, shape: tuple[int, ...]) -> Decoded:
    """The tensor of indices in a row, of the kept entries where there is a flat mask."""
    mask = None if kept is None else torch.from_numpy(kept).reshape(shape)
    placed = indices if kept is None else expand(indices, kept)
    try:
        codes = Codes(torch.from_numpy(placed).reshape(shape), levels, scales)
    except InvalidInput as error:
        raise CorruptArtifact(f"has codes that cannot be: {error}") from error
    if not np.array_equal(bits(codes.levels), bits(levels)):
        raise CorruptArtifact("has a level of −0.0")
    return Decoded(codes.values(mask), mask, codes)
