"""Inputs, with labels where there are any, in whatever form users have them: as batches, the same ones each time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tamis.errors import InvalidInput
from tamis.graph import Network, batches_from, batches_in, split_batch, tensor_bytes

BATCH = 250
NUMBERS = "fiub"  # kinds of numpy's dtypes: floats, integers, unsigned ones, booleans

# Tensors, arrays, Data, the name of a dataset or of a file, a torch Dataset, or what gives batches; see
# `iterate_batches`.
Inputs = Any


class Batch(NamedTuple):
    """Inputs of some samples, as the network takes them, and their labels if they are known."""

    inputs: tuple[Tensor, ...]
    labels: Tensor | None

    @property
    def samples(self) -> int:
        """Return how many samples there are."""
        return len(self.inputs[0])


@dataclass(frozen=True)
class Samples:
    """Samples to run networks on, as a user gave them.

    Attributes:
        inputs, labels: as `iterate_batches` takes them.
        called: how messages call the inputs.
        needs_labels: what labels are needed for, as messages say it; None: they are not.
    """

    inputs: Inputs
    labels: Any = None
    called: str = "inputs"
    needs_labels: str | None = None


def iterate_batches(inputs: Inputs, labels: Any, net: Network, called: str = "inputs") -> Iterator[Batch]:
    """Iterate over checked batches for a network, on the CPU or wherever they are.

    Args:
        inputs: a tensor or array (for a network of several inputs a tuple of them); a dataset, as `load_data` gives it,
            or its name ("cifar10:test", "images.npz"), which bring their own labels; a torch Dataset; or anything that
            gives batches when iterated over, such as a DataLoader: tensors, tuples of the inputs and, if there are any,
            labels, or mappings, as `split_batch` takes them apart. A DataLoader that shuffles is gone through in the
            order of its dataset.
        labels: class numbers, one for each sample; None: those that come with the inputs, if any.
        net: what they are for.
        called: how messages call the inputs.

    Raises:
        InvalidInput: they are empty, have the wrong shape, or hold numbers that are not finite.
    """
    if not net.batched:
        raise InvalidInput(
            f"{net!r} takes no batches: a whole input is one sample, and what holds for inputs like these cannot be "
            "told from one"
        )
    count = 0
    for count, batch in enumerate(_iterate_unchecked(inputs, labels, net, called), 1):
        yield _check_batch(batch, net, f"{called}, batch {count}")
    if count == 0:
        raise InvalidInput(f"{called}: there is no data, not one batch came")


def _iterate_unchecked(inputs: Inputs, labels: Any, net: Network, called: str) -> Iterable[Batch]:
    if isinstance(inputs, (str, Path)):
        inputs = _load_named(str(inputs))
    if hasattr(inputs, "batch") and hasattr(inputs, "labels"):
        own = inputs.labels if getattr(inputs, "has_labels", True) else None
        return _of_data(inputs, own if labels is None else labels, called)
    if isinstance(inputs, (np.ndarray, Tensor)):
        inputs = (inputs,)
    if isinstance(inputs, tuple) and inputs and all(isinstance(item, (np.ndarray, Tensor)) for item in inputs):
        return _of_tensors(tuple(as_tensor(item, called) for item in inputs), labels, called)
    kind = type(inputs).__name__
    if isinstance(inputs, Dataset):
        inputs = batches_in(inputs, BATCH, called)
    if not isinstance(inputs, Iterable):
        raise InvalidInput(f"{called} must be a tensor, a dataset or its name, or a DataLoader, got {inputs!r:.80}")
    if labels is not None:
        raise InvalidInput(f"{called}: labels come with the batches of a {kind}; leave out labels=")
    return (_of_loader(batch, net, called) for batch in batches_from(inputs, called))


def first_input(inputs: Inputs) -> tuple[Tensor, ...] | None:
    """Return the first input, in a batch of one, where it can be had without going through the data."""
    if isinstance(inputs, (str, Path)):
        inputs = _load_named(str(inputs))
    if hasattr(inputs, "example"):
        return (inputs.example,)
    items = inputs if isinstance(inputs, tuple) else (inputs,)
    if not items or not all(isinstance(item, (np.ndarray, Tensor)) and item.ndim for item in items):
        return None
    return tuple(as_tensor(item[:1], "inputs") for item in items)


def name_of(inputs: Inputs) -> str:
    """Return what the user calls the data: the name of the dataset or of its file, or else the kind of object."""
    if isinstance(inputs, tuple) and inputs:
        return name_of(inputs[0])
    kind = type(inputs).__name__
    return _find_own_name(inputs) or {"Tensor": "tensor", "ndarray": "array"}.get(kind, kind)


def quote_name(inputs: Inputs, argument: str, called: str | None = None) -> str:
    """Return what messages call the data: the user's own name for it, in quotes, or else the argument's."""
    name = called or _find_own_name(inputs)
    return f"'{name}'" if name else argument


def _find_own_name(inputs: Inputs) -> str | None:
    name = str(inputs) if isinstance(inputs, (str, Path)) else getattr(inputs, "name", None)
    return name if isinstance(name, str) else None


def _load_named(spec: str) -> Any:
    """Load a dataset by name, with or without labels.

    The only import of this package that goes beyond what it judges by: names of data sets are `training`'s to know,
    and whoever verifies on tensors, arrays or loaders never comes here.
    """
    from tamis.training import load_data

    return load_data(spec, labelled=False)


def _of_data(data: Any, labels: Any, called: str) -> Iterator[Batch]:
    every = _check_labels(labels, len(data), called)
    for indices in torch.arange(len(data)).split(BATCH):
        yield Batch((data.batch(indices)[0],), None if every is None else every[indices.to(every.device)])


def _of_tensors(inputs: tuple[Tensor, ...], labels: Any, called: str) -> Iterator[Batch]:
    lengths = [len(value) if value.dim() else 0 for value in inputs]
    if len(set(lengths)) > 1:
        raise InvalidInput(f"{called} have different numbers of samples: {lengths}")
    every = _check_labels(labels, lengths[0], called)
    for start in range(0, lengths[0], BATCH):
        here = slice(start, start + BATCH)
        yield Batch(tuple(value[here] for value in inputs), None if every is None else every[here])


def _of_loader(batch: Any, net: Network, called: str) -> Batch:
    inputs, rest = split_batch(batch, net.inputs, called)
    if len(rest) > 1:
        raise InvalidInput(
            f"{called}: a batch must be {len(net.inputs)} tensor(s) of inputs, and labels may follow; "
            f"got {len(inputs) + len(rest)} items"
        )
    return Batch(inputs, _check_labels(rest[0], len(inputs[0]), called) if rest else None)


def as_tensor(value: Tensor | np.ndarray, called: str) -> Tensor:
    """Return a tensor of numbers; arrays are copied where torch cannot take their layout or byte order."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise InvalidInput(f"{called} must be a tensor or an array, got {type(value).__name__}")
    if value.dtype.kind not in NUMBERS:
        raise InvalidInput(f"{called} must be numbers, got an array of {value.dtype}")
    native = value.astype(value.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def _check_labels(labels: Any, samples: int, called: str) -> Tensor | None:
    if labels is None:
        return None
    try:
        values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except (TypeError, ValueError) as error:  # bfloat16, or lists of different lengths
        raise InvalidInput(f"{called}: labels must be class numbers, got {labels!r:.80}: {error}") from error
    if values.dtype.kind not in "iu":
        raise InvalidInput(f"{called}: labels must be class numbers, got {values.dtype} of shape {values.shape}")
    if values.shape != (samples,):
        raise InvalidInput(f"{called}: {samples:,} samples need as many labels, got shape {values.shape}")
    if samples and int(values.max()) >= 2**31:
        raise InvalidInput(f"{called}: labels must be class numbers, got {values.max()}")
    return torch.from_numpy(values.astype(np.int64))


def _check_batch(batch: Batch, net: Network, called: str) -> Batch:
    """Check a batch, and return it as the network takes it."""
    try:
        net.check_inputs(batch.inputs)
    except InvalidInput as error:
        raise InvalidInput(f"{called}: {error}") from error
    if not batch.samples:
        raise InvalidInput(f"{called} is empty: it has shape {tuple(batch.inputs[0].shape)}")
    named = zip(net.inputs, batch.inputs, net.input_dtypes, strict=True)
    return Batch(tuple(_arrange_as_traced(name, value, dtype, called) for name, value, dtype in named), batch.labels)


def _arrange_as_traced(name: str, value: Tensor, dtype: torch.dtype, called: str) -> Tensor:
    if value.is_floating_point() is not dtype.is_floating_point:
        raise InvalidInput(f"{called}: input '{name}' is {value.dtype}, the network takes {dtype}; convert it")
    converted = value.to(dtype)
    if not bool(torch.isfinite(converted).all()):
        at = tuple((~torch.isfinite(converted)).nonzero()[0].tolist())
        raise InvalidInput(
            f"{called}: input '{name}' is {value[at].item()} at {list(at)}, which is not finite as {dtype}"
        )
    return converted


class Fingerprint:
    """The sha256 of data, sample by sample: whatever the batches, the same samples in the same order give the same."""

    def __init__(self) -> None:
        self._digests: list[Any] = []
        self._labels = hashlib.sha256()

    def add(self, batch: Batch) -> None:
        """Add the samples of a batch."""
        if not self._digests:
            self._digests = [hashlib.sha256(f"{v.dtype} {tuple(v.shape[1:])}\n".encode()) for v in batch.inputs]
        for digest, value in zip(self._digests, batch.inputs, strict=True):
            digest.update(_view_bytes(value))
        if batch.labels is not None:
            self._labels.update(_view_bytes(batch.labels))

    @property
    def inputs(self) -> str:
        """Return the sha256 of the inputs."""
        digests = [digest.hexdigest() for digest in self._digests]
        return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()

    @property
    def labels(self) -> str:
        """Return the sha256 of the labels."""
        return self._labels.hexdigest()


def _view_bytes(value: Tensor) -> Any:
    return tensor_bytes(value).numpy().data
