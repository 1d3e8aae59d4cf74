"""Labelled samples stay in memory as they are stored, and are normalised batch by batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph import Array, sample_digests, tensor_bytes

DIGESTED_AT_ONCE = 1024  # samples
INDEX_DTYPES = (torch.int32, torch.int64)  # torch takes uint8 for booleans, and no other


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A `Data` holds inputs and labels as they are stored; `batch` returns them as a network takes them.

    Args:
        inputs: uint8 images N×C×H×W, floats N×…, or int64 numbers N×… of words, which are used as they are.
        labels: int64 (N,).
        name: the spec that gives it.
        mean, std: per channel, for images on the scale 0..1. If empty, floats are used as they are, and images on the
            scale 0..1.
        classes: how many there are; 0 counts up to the largest label.
        has_labels: whether the labels mean anything; where they are not known, they are 0.
    """

    inputs: Tensor
    labels: Tensor
    name: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: int = 0
    has_labels: bool = True

    def __post_init__(self) -> None:
        if self.labels.dtype is not torch.int64 or self.labels.shape != self.inputs.shape[:1]:
            got = f"{self.labels.dtype} {tuple(self.labels.shape)} for inputs {tuple(self.inputs.shape)}"
            raise InvalidInput(f"'{self.name}' needs an int64 label for each input, got labels {got}")
        if not len(self):
            raise InvalidInput(f"'{self.name}' is empty")
        if len(self.mean) != len(self.std) or (self.mean and self.inputs.shape[1:2] != (len(self.mean),)):
            got = f"mean {self.mean} and std {self.std} for inputs {tuple(self.inputs.shape)}"
            raise InvalidInput(f"'{self.name}' needs a mean and a std for each channel, or none, got {got}")
        if not self.classes:
            # The class is frozen for everyone but itself.
            object.__setattr__(self, "classes", int(self.labels.max()) + 1)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.inputs.shape))
        return f"Data('{self.name}', {shape} {str(self.inputs.dtype).removeprefix('torch.')}, {self.classes} classes)"

    def __getitem__(self, chosen: slice | Tensor) -> Data:
        """Return some samples: a slice, whose name is its spec, or those at the indices or booleans of a tensor.

        What is chosen is copied, so that the rest can be freed.
        """
        if isinstance(chosen, slice):
            # A slice in the name makes it a spec that loads the same samples again; what a tensor chooses has no such
            # name.
            return self._select(self._as_range(chosen), self.name + _format_slice(chosen))
        if not isinstance(chosen, Tensor) or chosen.dim() != 1:
            raise InvalidInput(
                f"'{self.name}' can be indexed by a slice or by a tensor with one axis, got {chosen!r:.80}"
            )
        self._check_index(chosen)
        inputs, labels = (values[chosen.to(values.device)] for values in (self.inputs, self.labels))
        return replace(self, inputs=inputs, labels=labels, name=f"{self.name}[{len(labels)} chosen]")

    def set_aside(self, part: float, seed: int) -> tuple[Data, Data]:
        """Return some samples, drawn at random, and all others, both in order; equal samples go the same way.

        Their names are the specs of them.

        Args:
            part: how many are drawn, as a fraction.
            seed: of the draw.

        Raises:
            InvalidInput: nothing would be drawn, or nothing left.

        Example:
            >>> from tamis.training import load_data
            >>> searched, certified = load_data("digits:test").set_aside(0.5, seed=0)
            >>> certified.name
            'digits:test@rest=0.5,0'
        """
        # Drawn by place, and then widened to all samples that equal a drawn one: none may be on both sides.
        places = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[: round(part * len(self))]
        chosen = torch.from_numpy(np.isin(self.sample_digests, self.sample_digests[places.numpy()]))
        if not chosen.any() or chosen.all():
            distinct = len(np.unique(self.sample_digests))
            note = f" ({distinct:,} distinct ones)" if distinct < len(self) else ""
            raise InvalidInput(f"'{self.name}' has {len(self):,} samples{note}, of which {part:g} cannot be held out")
        share = f"{float(part)!r},{seed}"  # repr, which reads back as the same number
        held_out = replace(self[chosen], name=f"{self.name}@held_out={share}")
        return held_out, replace(self[~chosen], name=f"{self.name}@rest={share}")

    def _as_range(self, chosen: slice) -> range:
        try:
            return range(len(self))[chosen]
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"'{self.name}' cannot be cut by {chosen}: {error}") from error

    def _check_index(self, chosen: Tensor) -> None:
        if chosen.dtype is torch.bool:
            if len(chosen) != len(self):
                raise InvalidInput(
                    f"'{self.name}' has {len(self):,} samples and needs a boolean for each, got {len(chosen):,}"
                )
        elif chosen.dtype not in INDEX_DTYPES:
            raise InvalidInput(f"'{self.name}' can be indexed by booleans, int32 or int64, got {chosen.dtype}")
        elif len(chosen):
            least, most = (int(place) for place in chosen.aminmax())
            if least < -len(self) or most >= len(self):
                wrong = most if most >= len(self) else least
                raise InvalidInput(f"'{self.name}' has the samples 0 to {len(self) - 1}, got the index {wrong}")

    def _select(self, places: range, name: str) -> Data:
        if not places:
            raise InvalidInput(f"'{name}' is empty: it is cut from {len(self):,} samples")
        # `index_select` copies, where a slice would be a view that keeps everything in memory; and torch has no
        # negative steps.
        index = torch.arange(places.start, places.stop, places.step, device=self.inputs.device)
        inputs, labels = (values.index_select(0, index) for values in (self.inputs, self.labels))
        return replace(self, inputs=inputs, labels=labels, name=name)

    def to(self, device: str | torch.device) -> Data:
        """Return the same data on another device, images still as uint8."""
        return replace(self, inputs=self.inputs.to(device), labels=self.labels.to(device))

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs at these indices, as float32 and normalised, and their labels.

        Images x become (x/255 − mean)/std, channel by channel, and floats (x − mean)/std.
        """
        indices = indices.to(self.inputs.device)
        return self._normalise(self.inputs[indices]), self.labels[indices]

    @property
    def example(self) -> Tensor:
        """Return the first input as `batch` gives it, in a batch of one."""
        return self._normalise(self.inputs[:1])

    def digest(self) -> str:
        """Return the sha256 of the stored inputs and labels, and of mean and std, beyond what the name says."""
        # With mean and std: the same pixels, normalised otherwise, are other inputs of a network.
        digest = hashlib.sha256(f"{self.inputs.dtype} {tuple(self.inputs.shape)} {self.mean} {self.std}\n".encode())
        for values in (self.inputs, self.labels):
            digest.update(tensor_bytes(values).numpy().data)
        return digest.hexdigest()

    @cached_property
    def sample_digests(self) -> Array:
        """Return a number for each sample, the same for equal ones; see `tamis.graph.seen_samples`."""
        here = self.to("cpu")  # a GPU may round x/255 otherwise, and one sample would have two digests
        # A few at a time, because as floats images take four times the memory.
        some = (here._normalise(inputs) for inputs in here.inputs.split(DIGESTED_AT_ONCE))
        return np.concatenate([sample_digests((inputs,), (inputs.dtype,)) for inputs in some])

    def normalised(self) -> Tensor:
        """Return all inputs, as `batch` does, in a new tensor."""
        return self._normalise(self.inputs)

    def _normalise(self, inputs: Tensor) -> Tensor:
        if inputs.dtype is torch.int64:
            return inputs.clone()
        # Always a copy, also of what is float32 already: what follows works in place, and must not reach the stored
        # inputs.
        values = inputs.to(torch.float32, copy=True)
        if inputs.dtype is torch.uint8:
            values.div_(255)
        if self.mean:
            mean, std = self._statistics
            values.sub_(mean).div_(std)
        return values

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Return mean and std in the shape of one sample, cached since a copy to a GPU for each batch would be slow."""
        shape = (-1, *[1] * (self.inputs.dim() - 2))
        both = torch.tensor((self.mean, self.std), dtype=torch.float32, device=self.inputs.device)
        return both[0].view(shape), both[1].view(shape)


def _format_slice(chosen: slice) -> str:
    parts = (chosen.start, chosen.stop) if chosen.step is None else (chosen.start, chosen.stop, chosen.step)
    return "[" + ":".join("" if part is None else str(int(part)) for part in parts) + "]"
