"""Every encoding has this interface, and works on the bits of a tensor."""

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
BLOCK = 1 << 16  # entries to compare at a time: intermediate results stay in the cache


@dataclass(frozen=True, eq=False)
class Decoded:
    """A decoded tensor comes with its mask and its codes.

    Attributes:
        tensor: contiguous, on the CPU.
        mask: which of its entries are kept; the bits of all others are zero. None: it has no mask.
        codes: the codes of its kept entries, if it is quantized. None: it is not.
    """

    tensor: Tensor
    mask: Tensor | None = None
    codes: Codes | None = None


@dataclass(frozen=True)
class Encoded:
    """An encoded tensor is a set of parts that a file stores.

    Attributes:
        parts: tensors, by names made of the letters a to z.
        parameters: whatever else is needed to decode them, as JSON; not under 'name', 'parts', 'encoding', 'shape' or
            'dtype'.
        pending: the parts that other threads are reading already, by their names.
    """

    parts: dict[str, Tensor]
    parameters: dict[str, Any] = field(default_factory=dict)
    pending: Mapping[str, Future[Array]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the size of the parts in bytes."""
        return sum(part.nbytes for part in self.parts.values())

    def require(self, parts: Collection[str], parameters: Collection[str] = ()) -> None:
        """Raise CorruptArtifact unless the parts and parameters are exactly those named."""
        for kind, found, wanted in (("parts", self.parts, parts), ("parameters", self.parameters, parameters)):
            if set(found) != set(wanted):
                raise CorruptArtifact(f"has the {kind} {sorted(found)!s:.200} where {sorted(wanted)} belong")


class Encoding(ABC):
    """An encoding stores a tensor exactly: `decode` turns what `encode` made back into the same bits.

    Its mask and its codes come back as well, the codes with the index 0 for what the mask does not keep.
    """

    name: ClassVar[str]

    @abstractmethod
    def encode(self, decoded: Decoded) -> Encoded | None:
        """Return what to store, or None if this encoding is not for this tensor, its mask or its codes."""

    @abstractmethod
    def decode(self, stored: Encoded, shape: tuple[int, ...], dtype: torch.dtype) -> Decoded:
        """Return the tensor, its mask and its codes, contiguous and in memory that is not that of the parts.

        Shape and dtype are those of the model that is loaded. Nothing else can be relied on: check that the parts
        fit them before allocating anything larger than the parts or the tensor, and raise `CorruptArtifact` if not,
        saying how ("has ...", "is ..."); the reader puts the names of file and tensor before it.
        """

    def prefetch(self, name: str, entries: int) -> Callable[[Tensor], Array] | None:
        """Return a function that reads the part of this name in another thread before `decode`; None: nothing.

        It is for parts, rows of bytes, that take long and need no other one. Allocate the memory of the result here,
        not in the function: a thread that soon ends would allocate all of it anew. `decode` finds the result in
        `stored.pending`.
        """
        return None


def view_bits(tensor: Tensor) -> Array:
    """View the bits of a contiguous tensor as a flat array of integers; the memory is shared."""
    array: Array = tensor.reshape(-1).view(INTEGERS[tensor.itemsize]).numpy()
    return array


def from_bits(array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the tensor with these bits, as `bits` gives them."""
    return torch.from_numpy(array).view(dtype).reshape(shape)


def zero_bits(tensor: Tensor, where: Tensor) -> bool:
    """Tell whether entries are exactly +0.0 (or 0, or False) wherever a boolean tensor is True."""
    row, places = view_bits(tensor), where.reshape(-1).numpy()
    blocks = (slice(start, start + BLOCK) for start in range(0, len(row), BLOCK))
    return not any(((row[block] != 0) & places[block]).any() for block in blocks)


def check_bytes(part: Tensor, name: str) -> Array:
    """Return a part as an array; raise CorruptArtifact unless it is a row of bytes."""
    if part.dtype is not torch.uint8 or part.dim() != 1:
        raise CorruptArtifact(f"has a part '{name}' of {part.dtype} and shape {tuple(part.shape)}, not a row of bytes")
    array: Array = part.numpy()
    return array
