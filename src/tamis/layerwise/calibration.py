"""Calibration data, in any form that users have it in, becomes batches of inputs, checked before they are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tamis.errors import InvalidInput
from tamis.graph import Network, batches_from, batches_in, split_batch
from tamis.training import Data, load_data

LARGEST_BATCH = 128
FEWEST_BATCHES = 5  # where there are as many samples: one in so many batches is held out to choose between candidates
HELD_OUT = 1  # the held-out one of every five is the second, so that two batches already give one

# A tensor, array, Data, the name of a dataset or file, a torch Dataset, or a loader of batches; see `read_calibration`.
Calibration = Any


def read_calibration(calibration: Calibration, net: Network) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches of inputs for a network, on whatever device the data is.

    Args:
        calibration: a tensor or array of inputs (for a network of several inputs a tuple of them); a dataset, as
            `load_data` gives it, or its name ("cifar10:train[:5000]", "images.npz"); a torch Dataset; or anything that
            gives batches when iterated over, such as a DataLoader: tensors, tuples whose first items are inputs, or
            mappings that have them under the names of the network's inputs.
        net: the network that will read them.

    Raises:
        InvalidInput: the data is empty, has the wrong shape, or holds numbers that are not finite.
    """
    count = 0
    for count, inputs in enumerate(_iterate_batches(calibration, net), 1):
        _check(inputs, net, count)
        yield tuple(
            value.to(dtype) if value.is_floating_point() else value
            for value, dtype in zip(inputs, net.input_dtypes, strict=True)
        )
    if count == 0:
        raise InvalidInput("there is no calibration data: it has no batches")


def describe_calibration(calibration: Calibration) -> str:
    """Return how a recipe calls calibration data: by its name, or else by its type."""
    name = getattr(calibration, "name", None)
    return str(calibration if isinstance(calibration, (str, Path)) else name or type(calibration).__name__)


def _iterate_batches(calibration: Calibration, net: Network) -> Iterable[tuple[Tensor, ...]]:
    if isinstance(calibration, (str, Path)):
        calibration = load_data(str(calibration), labelled=False)
    if isinstance(calibration, Data):
        return _split_data(calibration)
    if isinstance(calibration, (np.ndarray, Tensor)):
        calibration = (calibration,)
    if isinstance(calibration, tuple) and all(isinstance(item, (np.ndarray, Tensor)) for item in calibration):
        return _split_tensors(tuple(torch.as_tensor(item) for item in calibration), net)
    if isinstance(calibration, Dataset):
        calibration = batches_in(calibration, LARGEST_BATCH, "calibration")
    if not isinstance(calibration, Iterable):
        raise InvalidInput(
            f"calibration must be a tensor, a dataset or its name, or a DataLoader, got {type(calibration).__name__}"
        )
    return (_select_inputs(batch, net) for batch in batches_from(calibration, "calibration", as_drawn=True))


def _split_data(data: Data) -> Iterator[tuple[Tensor, ...]]:
    for indices in torch.arange(len(data)).split(_choose_batch_size(len(data))):
        yield (data.batch(indices)[0],)


def _split_tensors(inputs: tuple[Tensor, ...], net: Network) -> Iterator[tuple[Tensor, ...]]:
    if not net.batched:
        yield inputs  # a whole input is one sample
        return
    lengths = [len(value) if value.dim() else 0 for value in inputs]
    if len(set(lengths)) > 1:
        raise InvalidInput(f"the calibration inputs have different numbers of samples: {lengths}")
    if any(lengths):
        yield from zip(*(value.split(_choose_batch_size(lengths[0])) for value in inputs), strict=True)


def _choose_batch_size(samples: int) -> int:
    # At least five batches where there are five samples: one in five is held out.
    return max(1, min(LARGEST_BATCH, samples // FEWEST_BATCHES))


def _select_inputs(batch: Any, net: Network) -> tuple[Tensor, ...]:
    """Return the inputs of a loader's batch, without labels."""
    inputs, _ = split_batch(batch, net.inputs, "calibration")
    return tuple(item.clone() for item in inputs)  # a loader may write the next batch into the same tensor


def _check(inputs: tuple[Tensor, ...], net: Network, number: int) -> None:
    try:
        net.check_inputs(inputs)
    except InvalidInput as error:
        raise InvalidInput(f"calibration batch {number}: {error}") from error
    for name, value, dtype in zip(net.inputs, inputs, net.input_dtypes, strict=True):
        if value.is_floating_point() is not dtype.is_floating_point:
            raise InvalidInput(
                f"calibration batch {number}: input '{name}' is {value.dtype}, the network takes {dtype}; convert it "
                "as for the model itself"
            )
        if net.batched and len(value) == 0:
            raise InvalidInput(f"calibration batch {number} is empty: input '{name}' has shape {tuple(value.shape)}")
        wrong = ~torch.isfinite(value)
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise InvalidInput(
                f"calibration batch {number}: input '{name}' has {int(wrong.sum())} entries that are not finite, the "
                f"first at {at}: {value[at].item()}"
            )
