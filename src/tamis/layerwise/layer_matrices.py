"""A matrix layout turns a layer into a family of least-squares problems, rows of data times the weights of neurons.

A linear layer is one problem: m rows of N features, n neurons of N weights each. A convolution is one problem for each
of its groups, whose rows are the patches that its windows see. Taken one 2-D kernel at a time (GPFQ, section 6.2;
ERRATA 11), it is one problem for each input channel. Matrices have the axes (problem, neuron, feature), rows
(problem, sample, feature).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from tamis.graph.ops import spaced

Shape = tuple[int, ...]


@dataclass(frozen=True)
class MatrixLayout(ABC):
    """A layout is the way in which the weight and the inputs of one layer become matrices.

    Attributes:
        shape: that of the layer's weight.
        groups: how many groups of channels do not mix.
        problems, neurons, features: the shape of the weight as matrices.
    """

    shape: Shape
    groups: int
    problems: int
    neurons: int
    features: int

    @abstractmethod
    def to_matrix(self, weight: Tensor) -> Tensor:
        """Lay out a weight as (problems, neurons, features)."""

    @abstractmethod
    def to_weight(self, matrix: Tensor) -> Tensor:
        """Undo `to_matrix`."""

    @abstractmethod
    def to_rows(self, inputs: Tensor) -> Tensor:
        """Lay out inputs of the layer as (problems, samples, features)."""

    @abstractmethod
    def has_batch(self, inputs: Tensor) -> bool:
        """Tell whether the first axis of the layer's inputs counts samples, and so can be cut into pieces."""

    @property
    @abstractmethod
    def channel_shape(self) -> Shape:
        """Return the shape in which one number an output channel broadcasts over the weight (see `Codes.scales`)."""

    @property
    def overlap(self) -> int:
        """Return the largest number of rows that one entry of the inputs is in."""
        return 1

    @property
    def channels(self) -> int:
        """Return the number of output channels."""
        return self.groups * self.neurons

    def sum_by_channel(self, values: Tensor) -> Tensor:
        """Sum one number for each neuron, (problems, neurons), over the neurons of each output channel."""
        # The problems of a group are next to each other, and its neurons are the same output channels in each.
        return values.reshape(self.groups, -1, self.neurons).sum(1).reshape(-1)

    def spread_channels(self, values: Tensor) -> Tensor:
        """Give each output channel's number to each of its neurons: (problems, neurons)."""
        each = self.problems // self.groups
        return values.reshape(self.groups, 1, self.neurons).expand(-1, each, -1).reshape(self.problems, self.neurons)


@dataclass(frozen=True)
class DenseLayout(MatrixLayout):
    """This is the layout of a linear layer: y = x Wᵀ, or y = x W where `transposed`, over the last axis."""

    transposed: bool

    @classmethod
    def of(cls, shape: Shape, transposed: bool) -> DenseLayout:
        neurons, features = reversed(shape) if transposed else shape
        return cls(shape, 1, 1, neurons, features, transposed)

    @property
    def channel_shape(self) -> Shape:
        return (1, self.neurons) if self.transposed else (self.neurons, 1)

    def to_matrix(self, weight: Tensor) -> Tensor:
        return (weight.T if self.transposed else weight)[None]

    def to_weight(self, matrix: Tensor) -> Tensor:
        return (matrix[0].T if self.transposed else matrix[0]).contiguous()

    def to_rows(self, inputs: Tensor) -> Tensor:
        return inputs.reshape(1, -1, self.features)

    def has_batch(self, inputs: Tensor) -> bool:
        return inputs.dim() > 1


@dataclass(frozen=True)
class Geometry:
    """A geometry says how a window moves; `padding` is as `F.pad` takes it, negative where the input is cut."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


@dataclass(frozen=True)
class ConvolutionLayout(MatrixLayout):
    """This is the layout of a convolution with the kernel (outputs, inputs / groups, *window)."""

    geometry: Geometry

    @classmethod
    def of(cls, shape: Shape, groups: int, geometry: Geometry, per_channel: bool) -> ConvolutionLayout:
        """Make the layout of a kernel; `per_channel` takes one 2-D kernel at a time, not a group's channels jointly."""
        problems, features = _count_problems(shape[1], groups, math.prod(shape[2:]), per_channel)
        return cls(shape, groups, problems, shape[0] // groups, features, geometry)

    @property
    def overlap(self) -> int:
        return math.prod(self.shape[2:])

    @property
    def channel_shape(self) -> Shape:
        return (self.shape[0], *[1] * (len(self.shape) - 1))

    def to_matrix(self, weight: Tensor) -> Tensor:
        # One kernel at a time, a group's input channels are problems of their own, each with all the group's neurons.
        per_group = weight.reshape(self.groups, self.neurons, self.problems // self.groups, self.features)
        return per_group.transpose(1, 2).reshape(self.problems, self.neurons, self.features)

    def to_weight(self, matrix: Tensor) -> Tensor:
        per_group = matrix.reshape(self.groups, self.problems // self.groups, self.neurons, self.features)
        return per_group.transpose(1, 2).reshape(self.shape)

    def to_rows(self, inputs: Tensor) -> Tensor:
        x = inputs if self.has_batch(inputs) else inputs[None]
        return _cut_rows(x, self.shape[2:], self.geometry, self.problems)

    def has_batch(self, inputs: Tensor) -> bool:
        return inputs.dim() == len(self.shape)


@dataclass(frozen=True)
class TransposedConvolutionLayout(MatrixLayout):
    """This is the layout of a transposed convolution with the kernel (inputs, outputs / groups, *window).

    It is a convolution of stride 1 over the input with `spacing` − 1 zeros between its pixels, with the kernel flipped
    along all its spatial axes.
    """

    geometry: Geometry
    spacing: tuple[int, ...]

    @classmethod
    def of(
        cls, shape: Shape, groups: int, geometry: Geometry, spacing: tuple[int, ...], per_channel: bool
    ) -> TransposedConvolutionLayout:
        problems, features = _count_problems(shape[0] // groups, groups, math.prod(shape[2:]), per_channel)
        return cls(shape, groups, problems, shape[1], features, geometry, spacing)

    @property
    def overlap(self) -> int:
        return math.prod(self.shape[2:])

    @property
    def channel_shape(self) -> Shape:
        return (self.groups, self.shape[1], *[1] * (len(self.shape) - 2))

    def to_matrix(self, weight: Tensor) -> Tensor:
        # A transposed convolution puts the kernel down at each pixel; seen from an output, it is read backwards.
        flipped = weight.flip(*range(2, weight.dim()))
        # Input channels come first here: those of one problem are next to each other, as its features must be.
        per_problem = flipped.reshape(self.problems, -1, self.neurons, math.prod(self.shape[2:]))
        return per_problem.transpose(1, 2).reshape(self.problems, self.neurons, self.features)

    def to_weight(self, matrix: Tensor) -> Tensor:
        # The same steps as in `to_matrix`, in the opposite order.
        per_problem = matrix.reshape(self.problems, self.neurons, -1, math.prod(self.shape[2:]))
        flipped = per_problem.transpose(1, 2).reshape(self.shape)
        return flipped.flip(*range(2, flipped.dim()))

    def to_rows(self, inputs: Tensor) -> Tensor:
        x = inputs if self.has_batch(inputs) else inputs[None]
        return _cut_rows(spaced(x, self.spacing), self.shape[2:], self.geometry, self.problems)

    def has_batch(self, inputs: Tensor) -> bool:
        return inputs.dim() == len(self.shape)


def _count_problems(channels: int, groups: int, window: int, per_channel: bool) -> tuple[int, int]:
    """Count the problems that a convolution is, and the features of each."""
    # `channels` are those that one group reads.
    return (groups * channels, window) if per_channel else (groups, channels * window)


def _cut_rows(x: Tensor, window: Shape, geometry: Geometry, problems: int) -> Tensor:
    """Cut an input into patches, and lay them out as rows with the channels split among the problems."""
    padded = F.pad(x, geometry.padding) if any(geometry.padding) else x
    windows = extract_patches(padded, window, geometry.stride, geometry.dilation)
    split = windows.unflatten(1, (problems, -1))  # batch, problems, channels of each, *outputs, *window
    # Samples and output positions become rows; channels and window become features, in the order of `to_matrix`.
    outputs, inside = range(3, 3 + len(window)), range(3 + len(window), 3 + 2 * len(window))
    features = split.shape[2] * math.prod(window)
    return split.permute(1, 0, *outputs, 2, *inside).reshape(problems, -1, features)


def extract_patches(x: Tensor, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> Tensor:
    """Return the patches that the windows see, a view: (batch, channels, *outputs, *window), in any dimension.

    Example:
        >>> extract_patches(torch.arange(5.0)[None, None], [2], [2], [1])[0, 0]
        tensor([[0., 1.],
                [2., 3.]])
    """
    spatial, steps = x.shape[2:], x.stride()[2:]
    outputs = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(spatial, window, stride, dilation, strict=True)]
    # Strided views overlap without a copy: moving a window moves by `stride`, moving inside it by `dilation`.
    moves = [step * s for step, s in zip(steps, stride, strict=True)]
    inside = [step * d for step, d in zip(steps, dilation, strict=True)]
    return x.as_strided((*x.shape[:2], *outputs, *window), (*x.stride()[:2], *moves, *inside))
