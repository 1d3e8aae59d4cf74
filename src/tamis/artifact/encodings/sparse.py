"""The kept entries of a masked tensor, and where they stand."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tamis.artifact.encodings.base import Encoded, Encoding, bits, flat_bytes, from_bits
from tamis.artifact.encodings.narrowing import narrowed, widened
from tamis.artifact.encodings.positions import CODINGS
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.kernels.expand import expand


class Sparse(Encoding):
    """Two parts: `values`, narrowed where possible, in C order; and their positions, named after their coding."""

    name = "sparse"

    def encode(self, tensor: Tensor, mask: Tensor | None) -> Encoded | None:
        if mask is None:
            return None
        kept = mask.reshape(-1).numpy()
        values = bits(tensor)[kept]
        exact = from_bits(values, values.shape, tensor.dtype)
        narrow = narrowed(exact)
        codes = {name: coding.write(kept) for name, coding in CODINGS.items()}
        shortest = min(codes, key=lambda name: len(codes[name]))
        positions = torch.from_numpy(codes[shortest])
        return Encoded({"values": exact if narrow is None else narrow, shortest: positions})

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        coding = next((name for name in CODINGS if name in stored.parts), "bitmask")
        stored.require({"values", coding})
        values, entries = stored.parts["values"], math.prod(shape)
        mask = CODINGS[coding].read(flat_bytes(stored.parts[coding], coding), entries)
        if values.dim() != 1:
            raise CorruptArtifact(f"has values of shape {tuple(values.shape)}, not in a row")
        try:
            tensor = expand(bits(widened(values, dtype)), mask)
        except InvalidInput as error:
            raise CorruptArtifact(f"has another number of values than of kept entries ({error})") from error
        return from_bits(tensor, shape, dtype), torch.from_numpy(mask).reshape(shape)
