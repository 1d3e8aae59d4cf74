"""The levels encoding stores a quantized tensor as packed indices, levels, scales, and the positions that are kept."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.codes import FEWEST_LEVELS, MOST_LEVELS, Codes, divides
from tamis.artifact.encodings import packing, positions
from tamis.artifact.encodings.base import Array, Decoded, Encoded, Encoding, check_bytes, view_bits
from tamis.artifact.encodings.narrow_float import narrow_if_possible, widen_dtype
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.kernels import expand


class Levels(Encoding):
    """A quantized tensor has three parts: `codes`, packed indices of kept entries in C order; `levels`; and `scales`.

    Levels and scales are narrowed where possible. A tensor with a mask has a fourth part, as in `sparse`: the positions
    of the kept entries.
    """

    name = "levels"

    def encode(self, decoded: Decoded) -> Encoded | None:
        codes, mask = decoded.codes, decoded.mask
        if codes is None:
            return None
        packed = packing.pack(select_kept_indices(codes, mask), len(codes.levels))
        parts = {"codes": torch.from_numpy(packed), **make_levels_and_scales(codes)}
        return Encoded(parts if mask is None else parts | positions.to_part(mask))

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        coding = positions.find_part(stored.parts)
        stored.require({"codes", "levels", "scales"} | ({coding} if coding else set()))
        levels, scales = read_levels(stored.parts["levels"], dtype), read_scales(stored.parts["scales"], shape, dtype)
        packed, entries = check_bytes(stored.parts["codes"], "codes"), math.prod(shape)
        kept = positions.from_part(stored.parts[coding], coding, entries) if coding else None
        count = entries if kept is None else int(np.count_nonzero(kept))
        return decode_codes(packing.unpack(packed, count, len(levels)), levels, scales, kept, shape)


def select_kept_indices(codes: Codes, mask: Tensor | None) -> Array:
    """Return the indices in a row; where there is a mask, only those of the kept entries."""
    indices: Array = codes.indices.reshape(-1).numpy()
    return indices if mask is None else indices.take(np.flatnonzero(mask.reshape(-1).numpy()))


def make_levels_and_scales(codes: Codes) -> dict[str, Tensor]:
    """Make the parts `levels` and `scales`, narrowed where possible."""
    return {
        "levels": narrow_if_possible(codes.levels.contiguous()),
        "scales": narrow_if_possible(codes.scales.contiguous()),
    }


def read_levels(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Read levels in the tensor's dtype; `decode_codes` checks that they ascend."""
    if part.dim() != 1 or not FEWEST_LEVELS <= len(part) <= MOST_LEVELS:
        raise CorruptArtifact(
            f"has levels of shape {tuple(part.shape)}, not {FEWEST_LEVELS} to {MOST_LEVELS} of them in a row"
        )
    return widen_dtype(part, dtype).clone()


def read_scales(part: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Read scales, and widen them only if they fit the shape: they take no more memory than the tensor."""
    if not divides(tuple(part.shape), shape):
        raise CorruptArtifact(f"has scales of shape {tuple(part.shape)}, which does not divide {shape}")
    return widen_dtype(part, dtype).clone()


def decode_codes(indices: Array, levels: Tensor, scales: Tensor, kept: Array | None, shape: tuple[int, ...]) -> Decoded:
    """Make the tensor from a row of indices, those of the kept entries where there is a flat mask."""
    mask = None if kept is None else torch.from_numpy(kept).reshape(shape)
    placed = indices if kept is None else expand(indices, kept)
    try:
        codes = Codes(torch.from_numpy(placed).reshape(shape), levels, scales)
    except InvalidInput as error:
        raise CorruptArtifact(f"has impossible codes: {error}") from error
    if not np.array_equal(view_bits(codes.levels), view_bits(levels)):
        raise CorruptArtifact("has a level of −0.0")
    return Decoded(codes.values(mask), mask, codes)
