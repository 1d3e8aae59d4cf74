"""What an encoding is, and the bits it works on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from tamis.artifact.codes import Codes
from tamis.errors import CorruptArtifact

Array = NDArray[Any]
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by width in bytes
BLOCK = 1 << 16  # entries that are looked at at a time: what is made of them stays in the cache


@dataclass(frozen=True, eq=False)
class Decoded:
    """A tensor with what belongs to it.

    Attributes:
        tensor: contiguous, on the CPU.
        mask: which of its entries are kept; the bits of all others are zero. None: it has no mask.
        codes: what it is where it is kept, if it is quantized. None: it is not.
    """

    tensor: Tensor
    mask: Tensor | None = None
    codes: Codes | None = None


@dataclass(frozen=True)
class Encoded:
    """What a file holds of one tensor.

    Attributes:
        parts: tensors, by names made of the letters a to z.
        parameters: whatever else is needed to decode them, as JSON; not under 'name', 'parts', 'encoding', 'shape' or
            'dtype'.
        begun: what another thread reads of some parts, by their names.
    """

    parts: dict[str, Tensor]
    parameters: dict[str, Any] = field(default_factory=dict)
    begun: Mapping[str, Future[Array]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The size of the parts."""
        return sum(part.nbytes for part in self.parts.values())

    def require(self, parts: Collection[str], parameters: Collection[str] = ()) -> None:
        """Refuse parts and parameters that are not exactly those named."""
        for kind, found, wanted in (("parts", self.parts, parts), ("parameters", self.parameters, parameters)):
            if set(found) != set(wanted):
                raise CorruptArtifact(f"has the {kind} {sorted(found)!s:.200} where {sorted(wanted)} belong")


class Encoding(ABC):
    """An exact way of storing a tensor: what `encode` makes of it, `decode` turns back into the same bits.

    Its mask and its codes come back as well, the codes with the index 0 for what the mask does not keep.
    """

    name: ClassVar[str]

    @abstractmethod
    def encode(self, decoded: Decoded) -> Encoded | None:
        """What to store, or None if this encoding is not for this tensor, its mask or its codes."""

    @abstractmethod
    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        """The tensor, its mask and its codes, contiguous, and in memory of their own, which the parts are not.

        Shape and dtype are those of the model that is loaded. Nothing else can be relied on: check that the parts
        fit them before allocating anything larger than the parts or the tensor, and raise `CorruptArtifact` if not,
        saying how ("has ...", "is ..."); the reader puts the names of file and tensor before it.
        """

    def ahead(self, name: str, entries: int) -> Callable[[Tensor], Array] | None:
        """What reads a part of this name, a row of bytes, before `decode` begins and in another thread; None: nothing.

        It is for parts that take long and need no other. It is made where the result is waited for, and should make the
        memory for that then: the memory of a thread that soon ends is all new. `decode` finds it in `stored.begun`.
        """
        return None


def bits(tensor: Tensor) -> Array:
    """The bits of a contiguous tensor as a flat array of integers: memory is shared, and no number is interpreted."""
    array: Array = tensor.reshape(-1).view(INTEGERS[tensor.itemsize]).numpy()
    return array


def from_bits(array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The tensor with these bits, as `bits` gives them."""
    return torch.from_numpy(array).view(dtype).reshape(shape)


def zero_bits(tensor: Tensor, where: Tensor) -> bool:
    """Whether entries are exactly +0.0 (or 0, or False) wherever a boolean tensor says so."""
    row, places = bits(tensor), where.reshape(-1).numpy()
    blocks = (slice(start, start + BLOCK) for start in range(0, len(row), BLOCK))
    return not any(((row[block] != 0) & places[block]).any() for block in blocks)


def flat_bytes(part: Tensor, name: str) -> Array:
    """A part that must be a vector of bytes."""
    if part.dtype is not torch.uint8 or part.dim() != 1:
        raise CorruptArtifact(f"has a part '{name}' of {part.dtype} and shape {tuple(part.shape)}, not a row of bytes")
    array: Array = part.numpy()
    return array
