"""The activations that a walk still needs, batch by batch: in memory up to a budget, in files beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

# A value of the original network and of the small one; the same object where they do not differ.
Pair = tuple[Any, Any]
Values = dict[str, Pair]


class Frontier:
    """What each batch has computed and will still be asked for.

    Args:
        first: the inputs of each batch, taken as they are asked for.
        budget: how many bytes may stay in memory.
        device: where values come back from files.

    Use it in a `with` statement, which removes the files.
    """

    def __init__(self, first: Iterable[Values], budget: int, device: torch.device) -> None:
        self._first: Iterator[Values] | None = iter(first)
        self._budget, self._device = budget, device
        self._kept: list[Values | Path] = []
        self._bytes = 0
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Frontier:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def __iter__(self) -> Iterator[tuple[int, Values]]:
        """Every batch with its number, to be changed, and kept as it was left when the next one is asked for."""
        for number, values in enumerate(self._taken()):
            yield number, values
            self._kept[number] = self._stored(number, values)

    def _taken(self) -> Iterator[Values]:
        if self._first is not None:
            first, self._first = self._first, None
            for values in first:
                self._kept.append(values)
                yield values
            return
        for number, kept in enumerate(self._kept):
            if isinstance(kept, Path):
                stored = torch.load(kept, map_location=self._device, weights_only=True)
                yield {name: (pair[0], pair[-1]) for name, pair in stored.items()}
            else:
                self._bytes -= size_of(kept)
                self._kept[number] = {}
                yield kept

    def _stored(self, number: int, values: Values) -> Values | Path:
        size = size_of(values)
        if self._bytes + size <= self._budget:
            self._bytes += size
            return values
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="tamis-")
        path = Path(self._folder.name) / f"{number}.pt"
        # What both networks share stands there once. A slice would take the tensor it was cut from into the file.
        distinct = {name: pair[:1] if pair[0] is pair[1] else pair for name, pair in values.items()}
        torch.save(pytree.tree_map_only(Tensor, Tensor.clone, distinct), path)
        return path


def size_of(values: Values) -> int:
    """The bytes of all tensors, those that two names or both networks share counted once."""
    tensors = {id(leaf): leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)}
    return sum(tensor.nbytes for tensor in tensors.values())
