"""The dense encoding stores a tensor as it is."""

from __future__ import annotations

import torch

from tamis.artifact.encodings.base import Decoded, Encoded, Encoding
from tamis.errors import CorruptArtifact


class Dense(Encoding):
    """A dense tensor has one part, `values`: the tensor itself."""

    name = "dense"

    def encode(self, decoded: Decoded) -> Encoded | None:
        if decoded.mask is not None or decoded.codes is not None:
            return None
        return Encoded({"values": decoded.tensor})

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        stored.require({"values"})
        values = stored.parts["values"]
        if values.dtype is not dtype or tuple(values.shape) != shape:
            raise CorruptArtifact(
                f"is stored as {values.dtype} of shape {tuple(values.shape)} but claims {dtype} and {shape}"
            )
        return Decoded(values.clone())
