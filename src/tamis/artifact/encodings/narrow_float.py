"""A tensor in a narrower floating-point type that holds every one of its values."""

from __future__ import annotations

import torch

from tamis.artifact.encodings.base import Decoded, Encoded, Encoding
from tamis.artifact.encodings.narrow_types import narrowed, widened
from tamis.errors import CorruptArtifact


class Narrow(Encoding):
    """One part, `values`: the tensor in a narrower type."""

    name = "narrow"

    def encode(self, decoded: Decoded) -> Encoded | None:
        if decoded.mask is not None or decoded.codes is not None:
            return None
        values = narrowed(decoded.tensor)
        return None if values is None else Encoded({"values": values})

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        stored.require({"values"})
        values = stored.parts["values"]
        if values.dtype is dtype or tuple(values.shape) != shape:
            raise CorruptArtifact(
                f"is stored as {values.dtype} of shape {tuple(values.shape)} but claims {dtype} and {shape}"
            )
        return Decoded(widened(values, dtype))
