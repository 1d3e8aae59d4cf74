"""The entropy encoding replaces rows of indices, masks and integers by shorter, entropy-coded rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.codes import Codes
from tamis.artifact.encodings import coded_digits, packing, positions
from tamis.artifact.encodings.base import Array, Decoded, Encoded, Encoding, check_bytes, from_bits, view_bits
from tamis.artifact.encodings.levels import (
    decode_codes,
    make_levels_and_scales,
    read_levels,
    read_scales,
    select_kept_indices,
)
from tamis.artifact.encodings.sparse import expand_values, select_kept_values
from tamis.errors import CorruptArtifact

WORTHWHILE = 16  # bytes that must be saved: other names of parts can make the header as much longer
MOST_DISTINCT = 256


class Entropy(Encoding):
    """An entropy-coded tensor has the parts of `levels` or `sparse`, of which it replaces one or two.

    `codedindices` stands for `codes`, and `codedmask` for the positions. Integers without a mask have `table`, the
    values that occur, and `codedindices`. The encoding accepts only what it makes shorter than all others that ship do.
    """

    name = "entropy"

    def encode(self, decoded: Decoded) -> Encoded | None:
        codes, mask = decoded.codes, decoded.mask
        if codes is None and mask is None:
            return _of_integers(decoded.tensor)
        where, saved = ({}, 0) if mask is None else _code_positions(mask)
        if codes is None:
            assert mask is not None
            return (
                Encoded({**where, "values": select_kept_values(decoded.tensor, mask)}) if saved > WORTHWHILE else None
            )
        indices, more = _code_indices(codes, mask)
        return Encoded({**where, **indices, **make_levels_and_scales(codes)}) if saved + more > WORTHWHILE else None

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        if "table" in stored.parts:
            return _decode_integers(stored, shape, dtype)
        where = "codedmask" if "codedmask" in stored.parts else positions.find_part(stored.parts)
        if "values" in stored.parts:
            stored.require({"values", "codedmask"})
            return expand_values(
                stored.parts["values"], _read_kept(stored, "codedmask", math.prod(shape)), shape, dtype
            )
        name = "codedindices" if "codedindices" in stored.parts else "codes"
        stored.require({name, "levels", "scales"} | ({where} if where else set()))
        levels, scales = read_levels(stored.parts["levels"], dtype), read_scales(stored.parts["scales"], shape, dtype)
        kept = _read_kept(stored, where, math.prod(shape)) if where else None
        count = math.prod(shape) if kept is None else int(np.count_nonzero(kept))
        unpack = coded_digits.from_row if name == "codedindices" else packing.unpack
        indices = unpack(check_bytes(stored.parts[name], name), count, len(levels))
        return decode_codes(indices, levels, scales, kept, shape)

    def prefetch(self, name: str, entries: int) -> Callable[[Tensor], Array] | None:
        if name != "codedmask":
            return None
        room = coded_digits.allocate_digits(entries, 2)
        return lambda part: _mask(part, entries, room)


def _code_positions(mask: Tensor) -> tuple[dict[str, Tensor], int]:
    """Code the positions of a mask as one part; return it with a lower bound on the bytes saved over plain codings."""
    row = mask.reshape(-1).numpy()
    least = positions.bound_bytes(row)
    # A row within the lower bound of all plain codings is no longer than any of them, so that none need be written.
    short = coded_digits.to_row(row.view(np.uint8), 2, least)
    if short is not None:  # the plain ones need not be made
        return {"codedmask": torch.from_numpy(short)}, least - len(short)
    ((name, plain),) = positions.to_part(mask).items()
    short = coded_digits.to_row(row.view(np.uint8), 2, plain.nbytes - 1) if plain.nbytes > least else None
    return ({name: plain}, 0) if short is None else ({"codedmask": torch.from_numpy(short)}, plain.nbytes - len(short))


def _code_indices(codes: Codes, mask: Tensor | None) -> tuple[dict[str, Tensor], int]:
    """Code the kept indices as one part; return it with the bytes saved over packed indices."""
    indices, levels = select_kept_indices(codes, mask), len(codes.levels)
    plain = packing.compute_packed_size(len(indices), levels)
    short = coded_digits.to_row(indices, levels, plain - 1)
    if short is None:
        return {"codes": torch.from_numpy(packing.pack(indices, levels))}, 0
    return {"codedindices": torch.from_numpy(short)}, plain - len(short)


def _read_kept(stored: Encoded, name: str, entries: int) -> Array:
    if name in stored.pending:
        return stored.pending[name].result()
    part = stored.parts[name]
    return _mask(part, entries) if name == "codedmask" else positions.from_part(part, name, entries)


def _mask(part: Tensor, entries: int, room: Array | None = None) -> Array:
    mask: Array = coded_digits.from_row(check_bytes(part, "codedmask"), entries, 2, room).view(np.bool_)
    return mask


def _of_integers(tensor: Tensor) -> Encoded | None:
    if tensor.is_floating_point() or tensor.nbytes <= WORTHWHILE:
        return None
    row = view_bits(tensor)
    table = np.empty(0, dtype=row.dtype)
    for start in range(0, len(row), coded_digits.FEW):
        table = np.union1d(table, row[start : start + coded_digits.FEW])
        if len(table) > MOST_DISTINCT:
            return None
    indices = np.searchsorted(table, row).astype(np.uint8)
    short = coded_digits.to_row(indices, max(len(table), 2), tensor.nbytes - table.nbytes - WORTHWHILE - 1)
    if short is None:
        return None
    return Encoded({"table": from_bits(table, table.shape, tensor.dtype), "codedindices": torch.from_numpy(short)})


def _decode_integers(stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
    stored.require({"table", "codedindices"})
    part = stored.parts["table"]
    if part.dtype is not dtype or dtype.is_floating_point or part.dim() != 1 or not 0 < len(part) <= MOST_DISTINCT:
        raise CorruptArtifact(f"has a table of {part.dtype} and shape {tuple(part.shape)} for integers of {dtype}")
    table, row = view_bits(part), check_bytes(stored.parts["codedindices"], "codedindices")
    if (table[1:] <= table[:-1]).any():
        raise CorruptArtifact("has a table of integers that do not ascend")
    indices = coded_digits.from_row(row, math.prod(shape), max(len(table), 2))
    if (indices >= len(table)).any():
        raise CorruptArtifact("has indices beyond a table of one integer")
    return Decoded(from_bits(table[indices], shape, dtype))
