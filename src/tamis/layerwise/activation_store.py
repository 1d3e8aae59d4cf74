"""The activations that a walk still needs are stored in memory up to a budget, and in files beyond it."""

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


class ActivationStore:
    """An activation store holds, for each batch, the values that later nodes will still read.

    Args:
        first: the inputs of each batch, drawn one by one as they are asked for.
        budget: how many bytes may stay in memory.
        device: where values go when they are read back from files.

    Use it in a `with` statement, which removes the files.
    """

    def __init__(self, first: Iterable[Values], budget: int, device: torch.device) -> None:
        self._first: Iterator[Values] | None = iter(first)
        self._budget, self._device = budget, device
        self._batches: list[Values | Path] = []
        self._bytes = 0
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> ActivationStore:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def __iter__(self) -> Iterator[tuple[int, Values]]:
        """Yield every batch with its number; the caller's changes to it are stored when the next one is asked for."""
        for number, values in enumerate(self._load_batches()):
            yield number, values
            self._batches[number] = self._store(number, values)

    def _load_batches(self) -> Iterator[Values]:
        # The first pass draws the inputs, so that the calibration data is never in memory as a whole.
        if self._first is not None:
            first, self._first = self._first, None
            for values in first:
                self._batches.append(values)
                yield values
            return
        for number, batch in enumerate(self._batches):
            if isinstance(batch, Path):
                stored = torch.load(batch, map_location=self._device, weights_only=True)
                # A pair of one is a shared value: both networks must get the same object again.
                yield {name: (pair[0], pair[-1]) for name, pair in stored.items()}
            else:
                # The batch is the caller's while it is out: its bytes are counted anew when it comes back.
                self._bytes -= count_bytes(batch)
                self._batches[number] = {}
                yield batch

    def _store(self, number: int, values: Values) -> Values | Path:
        size = count_bytes(values)
        if self._bytes + size <= self._budget:
            self._bytes += size
            return values
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="tamis-")
        path = Path(self._folder.name) / f"{number}.pt"
        # Write once what both networks share. Clone, because torch.save of a slice writes the tensor it was cut from.
        distinct = {name: pair[:1] if pair[0] is pair[1] else pair for name, pair in values.items()}
        torch.save(pytree.tree_map_only(Tensor, Tensor.clone, distinct), path)
        return path


def count_bytes(values: Values) -> int:
    """Count the bytes of all tensors, once for a tensor that two names or both networks share."""
    tensors = {id(leaf): leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)}
    return sum(tensor.nbytes for tensor in tensors.values())
