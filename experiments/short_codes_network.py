"""Networks that a short message describes: ternary weights that choose among analytic filters.

What is free, because it is fixed before any data is seen, is all that stands in this file: cosine filters, opponent
colours, normalisation of each sample by its own mean and deviation, both halves of the rectifier. What is learned is a
few ternary matrices, most of whose entries are zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
OPPONENT = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (-0.5, 1.0, -0.5))  # light, red − blue, green − magenta
SHIFT = 0.5  # how far one bias of weight ±1 moves a unit of norm 1
DIM = 0.01  # the mean square below which a channel of the stem fades
FLOOR = 0.1  # keeps the norm of a row of zeros, and the gradient there, small


@dataclass(frozen=True)
class Shape:
    """Sizes of a network.

    Attributes:
        channels: of the images, 1 or 3.
        widths: filters of each stage; a stage's output has twice as many channels, both halves of the rectifier.
        banks: for each stage, the side of its cosine filters and how many of them there are, low frequencies first.
        pools: for each stage, by how much its output is averaged down.
        grid: the read-out sees each channel as the cosine coefficients of a grid × grid average.
        kept: whether a stage also hands on what it got.
        stem: the side of fixed filters before the first stage, 0 for none; their outputs are rectified.
        shrink: by how much images are averaged down first.
    """

    channels: int
    widths: tuple[int, ...]
    banks: tuple[tuple[int, int], ...]
    pools: tuple[int, ...]
    grid: int
    kept: bool = False
    stem: int = 0
    shrink: int = 1


def make_cosines(side: int, count: int | None = None) -> Tensor:
    """Return the `count` filters of lowest frequency among the side × side orthonormal cosines, (count, side, side)."""
    places = torch.arange(side, dtype=torch.float64) + 0.5
    waves = torch.stack([torch.cos(math.pi * places * frequency / side) for frequency in range(side)])
    waves = waves / waves.norm(dim=1, keepdim=True)
    pairs = [(u, v) for u in range(side) for v in range(side)]
    pairs.sort(key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))
    return torch.stack([torch.outer(waves[u], waves[v]) for u, v in pairs[:count]]).float()


def normalise(values: Tensor) -> Tensor:
    """Return each sample with mean 0 and deviation 1, over everything but the batch."""
    return functional.layer_norm(values.float(), values.shape[1:]).to(values.dtype)


def split_signs(values: Tensor) -> Tensor:
    """Return relu(x) and relu(−x), side by side."""
    return torch.cat([functional.relu(values), functional.relu(-values)], dim=1)


class Stage(nn.Module):
    """Filters that are ternary combinations of cosines; each has norm 1 whatever its number of terms.

    Row o of `weight` is for filter o: an entry for each input channel and cosine, and a last one for the bias.
    """

    bank: Tensor

    def __init__(self, channels: int, width: int, bank: tuple[int, int], pool: int, kept: bool) -> None:
        super().__init__()
        self.channels, self.pool, self.kept, self.margin = channels, pool, kept, bank[0] // 2
        self.register_buffer("bank", make_cosines(*bank), persistent=False)
        self.weight = nn.Parameter(torch.zeros(width, channels * len(self.bank) + 1))

    def forward(self, values: Tensor) -> Tensor:
        rows = self.weight * (self.weight.square().sum(dim=1, keepdim=True) + FLOOR).rsqrt()
        terms = rows[:, :-1].reshape(len(rows), self.channels, len(self.bank))
        filters = torch.einsum("ock,khw->ochw", terms, self.bank).to(values.dtype)
        padded = functional.pad(values, [self.margin] * 4, mode="replicate") if self.margin else values
        outputs = functional.conv2d(padded, filters, SHIFT * rows[:, -1].to(values.dtype))
        return self.hand_on(values, outputs)

    def hand_on(self, values: Tensor, outputs: Tensor) -> Tensor:
        """Return what the next stage gets, of a stage's inputs and of what its filters answer."""
        outputs = split_signs(normalise(outputs))
        if self.kept:
            outputs = torch.cat([values, outputs], dim=1)
        return functional.avg_pool2d(outputs, self.pool) if self.pool > 1 else outputs


class Stem(nn.Module):
    """Images made smaller, and every cosine of every channel, rectified: nothing of it is learned."""

    bank: Tensor

    def __init__(self, channels: int, side: int, shrink: int) -> None:
        super().__init__()
        self.channels, self.side, self.shrink = channels, side, shrink
        bank = make_cosines(side).repeat(channels, 1, 1)[:, None] if side else torch.zeros(0)
        self.register_buffer("bank", bank, persistent=False)
        self.outputs = 2 * channels * side**2 if side else channels

    def forward(self, images: Tensor) -> Tensor:
        values = functional.avg_pool2d(images, self.shrink) if self.shrink > 1 else images
        if not self.side:
            return values
        padded = functional.pad(values, [self.side // 2] * 4, mode="replicate")
        outputs = functional.conv2d(padded, self.bank, groups=self.channels)
        return split_signs(outputs * (outputs.square().mean(dim=(2, 3), keepdim=True) + DIM).rsqrt())


class ReadOut(nn.Module):
    """Ternary combinations of the cosine coefficients of each channel, one for each class; the last entry is a bias."""

    bank: Tensor

    def __init__(self, channels: int, grid: int) -> None:
        super().__init__()
        self.grid = grid
        self.register_buffer("bank", make_cosines(grid), persistent=False)
        self.weight = nn.Parameter(torch.zeros(CLASSES, channels * len(self.bank) + 1))

    def forward(self, values: Tensor) -> Tensor:
        return functional.linear(self.features(values), self.weight[:, :-1], self.weight[:, -1])

    def features(self, values: Tensor) -> Tensor:
        """Return what the weights, but for the bias, combine."""
        means = functional.adaptive_avg_pool2d(values.float(), self.grid)
        return normalise(torch.einsum("nchw,khw->nck", means, self.bank).flatten(1))


class ShortNetwork(nn.Module):
    """Stages of ternary filters, and a ternary read-out. All weights of a new one are zero.

    Example:
        >>> net = ShortNetwork(Shape(1, (6, 10), ((5, 15), (3, 9)), (2, 2), 4))
        >>> net(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.stem = Stem(shape.channels, shape.stem, shape.shrink)
        channels = self.stem.outputs
        stages: list[Stage] = []
        for width, bank, pool in zip(shape.widths, shape.banks, shape.pools, strict=True):
            stages.append(Stage(channels, width, bank, pool, shape.kept))
            channels = 2 * width + (channels if shape.kept else 0)
        self.stages = nn.Sequential(*stages)
        self.readout = ReadOut(channels, shape.grid)

    @property
    def each_stage(self) -> list[Stage]:
        return [stage for stage in self.stages if isinstance(stage, Stage)]

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.readout(self.stages(self.stem(images)))
        return outputs


def prepare(images: Tensor) -> Tensor:
    """Return uint8 images on a fixed scale, colours as opponents; nothing is measured on the data."""
    values = images.float() / 255
    if images.shape[1] == 1:
        return 2 * values - 0.5
    opponent = torch.tensor(OPPONENT, device=images.device)
    opponent = opponent / opponent.norm(dim=1, keepdim=True)
    return 4 * torch.einsum("dc,nchw->ndhw", opponent, values - 0.5)
