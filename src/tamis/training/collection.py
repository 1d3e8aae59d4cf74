"""Collection brings the samples of tensors, torch Datasets and loaders into memory, in the order in which they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tamis.errors import InvalidInput
from tamis.graph import batches_from, batches_in, split_batch
from tamis.training.data_files import RawData

BATCH = 250
FORMS = "a tensor of inputs, a pair (inputs, labels), a torch Dataset, or a DataLoader"


def collect(source: Any, called: str) -> RawData:
    """Collect all samples of a dataset that a user has in Python.

    Args:
        source: a tensor or array of inputs as the network takes them; a pair of inputs and labels; a torch Dataset; or
            what gives batches when iterated over: tensors, pairs, or mappings, as `split_batch` takes them apart. A
            DataLoader that shuffles is gone through in the order of its dataset (`batches_from`).
        called: how messages call it.

    Raises:
        InvalidInput: the source is of another kind, fails, is empty, has several inputs, or lacks some labels.
    """
    inputs: list[Tensor] = []
    labels: list[Tensor] = []
    for batch in _split_into_batches(source, called):
        (values,), rest = split_batch(batch, ("inputs",), called)
        # Shapes are compared in the end, when all of them can be named.
        inputs.append(_copy_inputs(values, called))
        if rest:
            labels.append(_read_class_numbers(rest, len(values), called))
    # Not by the number of batches: some loaders give empty ones.
    if not sum(map(len, inputs)):
        raise InvalidInput(f"{called} is empty: not one sample came")
    shapes = {tuple(values.shape[1:]) for values in inputs}
    if len(shapes) > 1:
        raise InvalidInput(f"{called} has inputs of several shapes: {', '.join(map(str, sorted(shapes)))}")
    if labels and len(labels) < len(inputs):
        raise InvalidInput(f"{called} has labels in {len(labels)} of {len(inputs)} batches: it needs all or none")
    together = torch.cat(inputs)
    class_numbers = torch.cat(labels) if labels else torch.zeros(len(together), dtype=torch.int64)
    return RawData(together, class_numbers, int(class_numbers.max()) + 1, has_labels=bool(labels))


def _split_into_batches(source: Any, called: str) -> Iterable[Any]:
    # Tensors and mappings can be iterated over as well, which would take them apart into samples: they are one batch.
    if isinstance(source, (Tensor, np.ndarray)):
        return [torch.as_tensor(source)]
    if isinstance(source, tuple) and source and all(isinstance(item, (Tensor, np.ndarray)) for item in source):
        return [tuple(torch.as_tensor(item) for item in source)]
    if isinstance(source, Mapping):
        return [source]
    if isinstance(source, Dataset):
        return batches_in(source, BATCH, called)
    if isinstance(source, str) or not isinstance(source, Iterable):
        raise InvalidInput(f"{called} must be {FORMS}, got {type(source).__name__}: {source!r:.80}")
    return batches_from(source, called)


def _copy_inputs(values: Tensor, called: str) -> Tensor:
    """Copy a batch of inputs, which a loader may overwrite, to a dtype in which data is kept."""
    # How a network wants its pixels scaled cannot be known here.
    if values.dtype is torch.uint8:
        raise InvalidInput(f"{called} has uint8 inputs: convert them to what the network takes, as (x / 255).float()")
    if values.dim() < 2 or values.is_complex() or values.dtype is torch.bool:
        raise InvalidInput(f"{called} must have batches N×… of numbers, got {values.dtype} {tuple(values.shape)}")
    result = values.detach().cpu().to(torch.float32 if values.is_floating_point() else torch.int64, copy=True)
    # A number beyond float32 becomes infinite above, and a network would answer nonsense without an error.
    if not bool(torch.isfinite(result).all()):
        raise InvalidInput(f"{called} has inputs that are not finite in float32")
    return result


def _read_class_numbers(rest: tuple[Any, ...], samples: int, called: str) -> Tensor:
    if len(rest) > 1:
        raise InvalidInput(f"{called}: a batch must be inputs and labels, got {len(rest) + 1} items")
    try:
        labels = torch.as_tensor(rest[0]).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{called}: labels must be class numbers, got {rest[0]!r:.80}") from error
    # Class numbers that come as floats are most likely something else, such as targets of a regression.
    are_whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool)
    if not are_whole or labels.shape != (samples,) or (samples and int(labels.min()) < 0):
        got = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise InvalidInput(f"{called}: {samples:,} samples need as many class numbers from 0 on, got {got}")
    return labels.to(torch.int64, copy=True)
