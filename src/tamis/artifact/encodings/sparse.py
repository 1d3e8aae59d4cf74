"""The sparse encoding stores the kept entries of a masked tensor, and their positions."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tamis.artifact.encodings import positions
from tamis.artifact.encodings.base import Array, Decoded, Encoded, Encoding, from_bits, view_bits
from tamis.artifact.encodings.narrow_float import narrow_if_possible, widen_dtype
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.kernels import expand


class Sparse(Encoding):
    """A sparse tensor has two parts: `values`, narrowed where possible, in C order; and positions, named by coding."""

    name = "sparse"

    def encode(self, decoded: Decoded) -> Encoded | None:
        if decoded.mask is None or decoded.codes is not None:
            return None
        return Encoded({"values": select_kept_values(decoded.tensor, decoded.mask), **positions.to_part(decoded.mask)})

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        coding = positions.find_part(stored.parts) or "bitmask"
        stored.require({"values", coding})
        mask = positions.from_part(stored.parts[coding], coding, math.prod(shape))
        return expand_values(stored.parts["values"], mask, shape, dtype)


def select_kept_values(tensor: Tensor, mask: Tensor) -> Tensor:
    """Return the kept entries in a row, narrowed where possible."""
    values = view_bits(tensor).take(np.flatnonzero(mask.reshape(-1).numpy()))
    return narrow_if_possible(from_bits(values, values.shape, tensor.dtype))


def expand_values(values: Tensor, mask: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
    """Make the tensor and its mask from a row of values and a flat mask."""
    if values.dim() != 1:
        raise CorruptArtifact(f"has values of shape {tuple(values.shape)}, not in a row")
    try:
        tensor = expand(view_bits(widen_dtype(values, dtype)), mask)
    except InvalidInput as error:
        raise CorruptArtifact(f"has another number of values than of kept entries ({error})") from error
    return Decoded(from_bits(tensor, shape, dtype), torch.from_numpy(mask).reshape(shape))
