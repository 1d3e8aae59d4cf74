"""Inputs, with labels where there are any, in whatever form users have them: as batches, the same ones each time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph.network import Network

BATCH = 250

# Tensors, arrays, Data, the name of a dataset or of an .npz file, or what gives batches; see `batches_of`.
Inputs = Any


class Batch(NamedTuple):
    """Inputs of some samples, as the network takes them, and their labels if they are known."""

    inputs: tuple[Tensor, ...]
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.inputs[0])


def batches_of(inputs: Inputs, labels: Any, net: Network, called: str = "inputs") -> Iterator[Batch]:
    """Batches for a network, checked, on the CPU or wherever they are.

    Args:
        inputs: a tensor or array (for a network of several inputs a tuple of them); a dataset, as `load_data` gives it,
            or its name ("cifar10:test", "images.npz"), which bring their own labels; or anything that gives batches
            when iterated over, such as a DataLoader: tensors, or tuples of the inputs and, if there are any, labels.
        labels: a tensor or array of class numbers, one for each sample; None: those that come with the inputs, if any.
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
    for count, batch in enumerate(_batches(inputs, labels, net, called), 1):
        _check(batch, net, f"{called}, batch {count}")
        yield Batch(_as_traced(batch.inputs, net), batch.labels)
    if count == 0:
        raise InvalidInput(f"{called}: there is no data, not one batch came")


def _batches(inputs: Inputs, labels: Any, net: Network, called: str) -> Iterable[Batch]:
    if isinstance(inputs, (str, Path)):
        inputs, has_labels = load_named(str(inputs))
        return _of_data(inputs, labels if labels is not None or not has_labels else inputs.labels, called)
    if hasattr(inputs, "batch") and hasattr(inputs, "labels"):
        return _of_data(inputs, inputs.labels if labels is None else labels, called)
    if isinstance(inputs, (np.ndarray, Tensor)):
        inputs = (inputs,)
    if isinstance(inputs, tuple) and all(isinstance(item, (np.ndarray, Tensor)) for item in inputs):
        return _of_tensors(tuple(torch.as_tensor(item) for item in inputs), labels, called)
    if not isinstance(inputs, Iterable):
        raise InvalidInput(f"{called} must be a tensor, a dataset or its name, or a DataLoader, got {inputs!r:.80}")
    if labels is not None:
        raise InvalidInput(f"{called}: labels come with the batches of a {type(inputs).__name__}; leave out labels=")
    return (_of_loader(batch, net, called) for batch in inputs)


def load_named(spec: str) -> tuple[Any, bool]:
    """A dataset by name, and whether it has labels."""
    from tamis.train.data import load_data  # whoever verifies a certificate on tensors needs nothing of that room

    try:
        return load_data(spec), True
    except InvalidInput:
        return load_data(spec, labelled=False), False


def _of_data(data: Any, labels: Any, called: str) -> Iterator[Batch]:
    every = _labels(labels, len(data), called)
    for indices in torch.arange(len(data)).split(BATCH):
        yield Batch((data.batch(indices)[0],), None if every is None else every[indices.to(every.device)])


def _of_tensors(inputs: tuple[Tensor, ...], labels: Any, called: str) -> Iterator[Batch]:
    lengths = [len(value) if value.dim() else 0 for value in inputs]
    if len(set(lengths)) > 1:
        raise InvalidInput(f"{called} have different numbers of samples: {lengths}")
    every = _labels(labels, lengths[0], called)
    for start in range(0, lengths[0], BATCH):
        here = slice(start, start + BATCH)
        yield Batch(tuple(value[here] for value in inputs), None if every is None else every[here])


def _of_loader(batch: Any, net: Network, called: str) -> Batch:
    items = (batch,) if isinstance(batch, Tensor) else tuple(batch) if isinstance(batch, (tuple, list)) else ()
    wanted = len(net.inputs)
    if len(items) not in (wanted, wanted + 1) or not all(isinstance(item, Tensor) for item in items):
        raise InvalidInput(
            f"{called}: a batch must be {wanted} tensor(s) of inputs, and labels may follow; "
            f"got {type(batch).__name__} {[type(item).__name__ for item in items]}"
        )
    labels = _labels(items[wanted], len(items[0]), called) if len(items) > wanted else None
    return Batch(items[:wanted], labels)


def _labels(labels: Any, samples: int, called: str) -> Tensor | None:
    if labels is None:
        return None
    values = torch.as_tensor(labels)
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype is torch.bool:
        raise InvalidInput(f"{called}: labels must be class numbers, got {values.dtype} of shape {tuple(values.shape)}")
    if tuple(values.shape) != (samples,):
        raise InvalidInput(f"{called}: {samples:,} samples need as many labels, got shape {tuple(values.shape)}")
    return values.long()


def _as_traced(inputs: tuple[Tensor, ...], net: Network) -> tuple[Tensor, ...]:
    pairs = zip(inputs, net.input_dtypes, strict=True)
    return tuple(value.to(dtype) if value.is_floating_point() else value for value, dtype in pairs)


def _check(batch: Batch, net: Network, called: str) -> None:
    try:
        net.check_inputs(batch.inputs)
    except InvalidInput as error:
        raise InvalidInput(f"{called}: {error}") from error
    if not len(batch):
        raise InvalidInput(f"{called} is empty: it has shape {tuple(batch.inputs[0].shape)}")
    for name, value, dtype in zip(net.inputs, batch.inputs, net.input_dtypes, strict=True):
        if value.is_floating_point() is not dtype.is_floating_point:
            raise InvalidInput(f"{called}: input '{name}' is {value.dtype}, the network takes {dtype}; convert it")
        if not bool(torch.isfinite(value).all()):
            at = tuple((~torch.isfinite(value)).nonzero()[0].tolist())
            raise InvalidInput(f"{called}: input '{name}' is {value[at].item()} at {list(at)}, which is not finite")


class Fingerprint:
    """The sha256 of data, sample by sample: whatever the batches, the same samples in the same order give the same."""

    def __init__(self) -> None:
        self._digests: list[Any] = []
        self._labels = hashlib.sha256()

    def add(self, batch: Batch) -> None:
        """Go on with these samples."""
        if not self._digests:
            self._digests = [hashlib.sha256(f"{v.dtype} {tuple(v.shape[1:])}\n".encode()) for v in batch.inputs]
        for digest, value in zip(self._digests, batch.inputs, strict=True):
            digest.update(_bytes(value))
        if batch.labels is not None:
            self._labels.update(_bytes(batch.labels))

    @property
    def inputs(self) -> str:
        """Of the inputs."""
        digests = [digest.hexdigest() for digest in self._digests]
        return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()

    @property
    def labels(self) -> str:
        """Of the labels."""
        return self._labels.hexdigest()


def _bytes(value: Tensor) -> Any:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
