"""A batch of a loader is split into the inputs that a network takes and what comes with them, such as labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from tamis.errors import InvalidInput, TamisError, join_names

AT_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
LABELS = ("labels", "label", "y", "target", "targets")  # under which keys batches that are mappings have them


def split_batch(batch: Any, names: Sequence[str], called: str) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """Return the inputs in a batch, and everything else in it, with labels first if there are any.

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
        >>> split_batch({"image": torch.zeros(1, 2), "label": torch.tensor([7])}, ("input",), "data")
        ((tensor([[0., 0.]]),), (tensor([7]),))
    """
    if isinstance(batch, Mapping):
        return _split_mapping(batch, names, called)
    items = (batch,) if isinstance(batch, Tensor) else tuple(batch) if isinstance(batch, (tuple, list)) else ()
    inputs, rest = items[: len(names)], items[len(names) :]
    if len(inputs) < len(names) or not all(isinstance(item, Tensor) and item.dim() for item in inputs):
        raise InvalidInput(
            f"{called}: a batch must be {len(names)} tensor(s) of inputs, and labels may follow; "
            f"got {type(batch).__name__} {[type(item).__name__ for item in items]}"
        )
    return inputs, rest


def _split_mapping(
    batch: Mapping[Any, Any], names: Sequence[str], called: str
) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    # A network may call one of its inputs "target": then it is an input, and no label.
    label = next((key for key in LABELS if key in batch and key not in names), None)
    found = [name for name in names if name in batch]
    if not found and len(names) == 1:
        found = [key for key, value in batch.items() if key != label and isinstance(value, Tensor)]
    if len(found) != len(names) or not all(isinstance(batch[key], Tensor) and batch[key].dim() for key in found):
        raise InvalidInput(
            f"{called}: the network takes {join_names(names)}, and a batch has {join_names(map(str, batch))}: name "
            f"what goes in as the network does, and labels {' or '.join(LABELS[:2])}"
        )
    rest: tuple[Any, ...] = () if label is None else (batch[label],)
    return tuple(batch[key] for key in found), rest


def batches_in(dataset: Dataset[Any], size: int, called: str) -> Iterator[Any]:
    """Return the samples of a torch Dataset in its own order, `size` at a time."""

    def batch(samples: list[Any]) -> Any:
        try:
            return default_collate(samples)
        except (TypeError, RuntimeError) as error:  # no tensors, or tensors of several shapes
            raise InvalidInput(
                f"{called}: samples of {type(dataset).__name__} do not go into a batch: {error}; give it a transform "
                "that makes tensors of one shape of them, or pass a DataLoader with a collate_fn"
            ) from error

    return batches_from(DataLoader(dataset, batch_size=size, collate_fn=batch), called)


def batches_from(source: Iterable[Any], called: str, as_drawn: bool = False) -> Iterator[Any]:
    """Return the batches of a user's loader, with the same samples in the same order each time.

    A DataLoader that shuffles all of its dataset is gone through in the order of that, and to the end.

    Args:
        source: what gives batches when iterated over.
        called: how messages call it.
        as_drawn: whether it may be other samples, or another order, each time.

    Raises:
        InvalidInput: the code of the user failed, or a DataLoader draws samples at random in another way.
    """
    try:
        yield from source if as_drawn or not isinstance(source, DataLoader) else _unshuffle(source, called)
    except TamisError:
        raise
    except Exception as error:
        said = str(error).strip()
        if said.startswith("Caught "):  # in a process of the loader: a traceback comes as text
            said = said.splitlines()[-1].removeprefix(f"{type(error).__name__}: ")
        raise InvalidInput(f"{called} failed: {type(error).__name__}: {said}") from error


def _unshuffle(loader: DataLoader[Any], called: str) -> DataLoader[Any]:
    """Return the loader, or one that gives the same samples unshuffled."""
    if isinstance(loader.dataset, IterableDataset):
        return loader  # which has an order of its own, and a sampler that nobody asks
    batches: Any = loader.batch_sampler
    # What chooses the samples: of batches that torch cuts, what they are cut from.
    sampler = loader.sampler if batches is None else batches.sampler if type(batches) is BatchSampler else batches
    if _shuffles_all(sampler, loader.dataset):
        size = None if batches is None else batches.batch_size
        return DataLoader(loader.dataset, batch_size=size, collate_fn=loader.collate_fn, num_workers=loader.num_workers)
    # A sampler of the user's own is asked twice: only if it says the same both times can data be named by its order.
    if isinstance(sampler, AT_RANDOM) or list(sampler) != list(sampler):
        raise InvalidInput(
            f"{called} draws its samples by a {type(sampler).__name__}, others or in another order each time, and "
            "what is said of data holds for the same data: pass its Dataset, or a DataLoader with shuffle=False"
        )
    return loader


def _shuffles_all(sampler: Any, dataset: Any) -> bool:
    """Return whether a sampler gives every sample once, as that of shuffle=True does."""
    whole = type(sampler) is RandomSampler and not sampler.replacement
    return whole and sampler.num_samples == len(sampler.data_source) == len(dataset)
