"""A tensor as it is."""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.artifact.encodings.base import Encoded, Encoding
from tamis.errors import CorruptArtifact


class Dense(Encoding):
    """One part, `values`: the tensor itself."""

    name = "dense"

    def encode(self, tensor: Tensor, mask: Tensor | None) -> Encoded | None:
        return Encoded({"values": tensor}) if mask is None else None

    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        stored.require({"values"})
        values = stored.parts["values"]
        if values.dtype is not dtype or tuple(values.shape) != shape:
            raise CorruptArtifact(
                f"is stored as {values.dtype} of shape {tuple(values.shape)} but claims {dtype} and {shape}"
            )
        return values.clone(), None
