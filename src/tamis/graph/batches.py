"""What a loader gives, told apart: the inputs that a network takes, and what comes beside them, such as labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from tamis.errors import InvalidInput, listed

LABELS = ("labels", "label", "y", "target", "targets")  # under which keys batches that are mappings have them


def split_batch(batch: Any, names: Sequence[str], called: str) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """The inputs in a batch, and whatever else is in it: labels first, if there are any.

    A tensor is the only input. Of a tuple or a list, the first items are the inputs. Of a mapping, inputs are found by
    the names that the network gives them; a network of one input takes the only tensor beside the labels, whatever its
    key. Labels are what stands under "labels", "label", "y", "target" or "targets".

    Args:
        batch: what a loader gave.
        names: what the network calls its inputs.
        called: how messages call the data.

    Raises:
        InvalidInput: the inputs cannot be told from the rest.

    Example:
        >>> split_batch({"image": x, "label": y}, ("input",), "data")
        ((x,), (y,))
    """
    if isinstance(batch, Mapping):
        return _of_mapping(batch, names, called)
    items = (batch,) if isinstance(batch, Tensor) else tuple(batch) if isinstance(batch, (tuple, list)) else ()
    inputs, rest = items[: len(names)], items[len(names) :]
    if len(inputs) < len(names) or not all(isinstance(item, Tensor) and item.dim() for item in inputs):
        raise InvalidInput(
            f"{called}: a batch must be {len(names)} tensor(s) of inputs, and labels may follow; "
            f"got {type(batch).__name__} {[type(item).__name__ for item in items]}"
        )
    return inputs, rest


def _of_mapping(
    batch: Mapping[Any, Any], names: Sequence[str], called: str
) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    label = next((key for key in LABELS if key in batch and key not in names), None)
    found = [name for name in names if name in batch]
    if not found and len(names) == 1:
        found = [key for key, value in batch.items() if key != label and isinstance(value, Tensor)]
    if len(found) != len(names) or not all(isinstance(batch[key], Tensor) and batch[key].dim() for key in found):
        raise InvalidInput(
            f"{called}: the network takes {listed(names)}, and a batch has {listed(map(str, batch))}: name what goes "
            f"in as the network does, and labels {' or '.join(LABELS[:2])}"
        )
    rest: tuple[Any, ...] = () if label is None else (batch[label],)
    return tuple(batch[key] for key in found), rest


def batches_in(dataset: Dataset[Any], size: int, called: str) -> Iterator[Any]:
    """The samples of a torch Dataset in its own order, so many at once."""
    try:
        yield from DataLoader(dataset, batch_size=size)
    except TypeError as error:  # of what torch cannot put into one tensor
        raise InvalidInput(
            f"{called}: samples of {type(dataset).__name__} do not go into a batch: {error}; give it a transform that "
            "makes tensors of them, or pass a DataLoader with a collate_fn"
        ) from error
