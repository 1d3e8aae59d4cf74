"""Streams of images, a time series or the nodes of a graph are learnt online, by unions of networks for them.

    series   windows of a noisy oscillation, of one of three frequencies and any phase: classes differ by no mean, so
             that a network without a hidden layer can do no better than guess
    graph    nodes of three communities, joined more often within one than between two, each with three noisy features:
             neighbours' features tell more than a node's own

All else that `tamis.training.load_data` names is a set of images, whose order is drawn.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tamis.bayes.networks import Conv1d, Conv2d, Dense, Graph, Nodes
from tamis.bayes.space import Space
from tamis.bayes.xnor import Xnor
from tamis.bounds import check_count
from tamis.errors import InvalidInput, join_names
from tamis.training import load_data

SERIES, GRAPH = "series", "graph"
SAMPLES, LENGTH, FREQUENCIES, NOISE = 4000, 16, (0.08, 0.2, 0.36), 0.3
NODES, COMMUNITIES, WITHIN, BETWEEN, FEATURE_NOISE = 90, 3, 0.25, 0.03, 1.0
MADE_WITH = 20210618  # the seed of what is made: a stream is the same for every learner


@dataclass(frozen=True, eq=False)
class Stream:
    """A stream is a set of labelled examples, from which each round takes some.

    Attributes:
        name: what it is called.
        inputs: (samples, …), as a space takes them.
        labels: (samples,).
        classes: how many there are.
        graph: adjacency and features, where inputs are numbers of nodes.
    """

    name: str
    inputs: Tensor
    labels: Tensor
    classes: int
    graph: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one input, which is () for a node."""
        return tuple(self.inputs.shape[1:])

    def order(self, rounds: int, batch: int, seed: int) -> Tensor:
        """Draw which samples each round takes, (rounds, batch): all in random order, then all again in another order.

        The first rounds are the same, however many there are in all.

        Example:
            >>> load_images("digits:train[:10]").order(rounds=2, batch=5, seed=0).flatten().sort().values.tolist()
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        check_count("rounds", rounds)
        check_count("batch", batch)
        generator = torch.Generator().manual_seed(seed)
        # Whole passes are drawn one after the other from one generator, so that more rounds only add to the end.
        passes = math.ceil(rounds * batch / len(self))
        orders = [torch.randperm(len(self), generator=generator) for _ in range(passes)]
        return torch.cat(orders)[: rounds * batch].reshape(rounds, batch)

    def select(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of these samples."""
        return self.inputs[places], self.labels[places]

    def flatten(self) -> Stream:
        """Return the same stream with inputs of one axis, for dense networks."""
        return replace(self, inputs=self.inputs.flatten(1))


def load_stream(data: str, pool: int = 1) -> Stream:
    """Return the stream of a name: `series`, `graph`, or images that `load_data` knows, pooled as by `load_images`."""
    if data not in (SERIES, GRAPH):
        return load_images(data, pool)
    if pool != 1:
        raise InvalidInput(f"pool is for images, and {data} are none: leave it out, got pool = {pool}")
    return make_series() if data == SERIES else make_nodes()


def load_images(data: str, pool: int = 1) -> Stream:
    """Load the images of a dataset on the scale 0 to 1, without normalization, in float64.

    Args:
        data: a spec that `tamis.training.load_data` knows.
        pool: the side of the squares whose mean is one pixel; what a round costs grows with the number of pixels.
    """
    check_count("pool", pool)
    found = replace(load_data(data), mean=(), std=())
    if found.inputs.dim() != 4:
        raise InvalidInput(f"'{data}' has inputs of shape {tuple(found.inputs.shape[1:])}, and images are wanted")
    if pool > min(found.inputs.shape[2:]):
        size = "×".join(map(str, found.inputs.shape[2:]))
        raise InvalidInput(f"pool = {pool} is more than the {size} pixels of '{data}'")
    return Stream(data, F.avg_pool2d(found.normalised(), pool).double(), found.labels, found.classes)


def make_series(samples: int = SAMPLES, seed: int = MADE_WITH) -> Stream:
    """Make windows of an oscillation: x_i = √2 sin(2π f i + phase) + noise, labelled by f; inputs (1, length)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(FREQUENCIES), (samples,), generator=generator)
    # Of a turn, uniform: the mean signal of each class is then 0.
    phase = torch.rand(samples, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, LENGTH, generator=generator, dtype=torch.float64)
    frequency = torch.tensor(FREQUENCIES, dtype=torch.float64)[labels][:, None]
    turns = frequency * torch.arange(LENGTH, dtype=torch.float64) + phase
    signal = math.sqrt(2) * torch.sin(2 * math.pi * turns) + NOISE * noise
    return Stream(SERIES, signal[:, None], labels, len(FREQUENCIES))


def make_nodes(count: int = NODES, seed: int = MADE_WITH) -> Stream:
    """Make the nodes of a stochastic block model, labelled by community; features are its indicator and noise.

    A node sees itself: the adjacency has ones on the diagonal.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % COMMUNITIES
    same = labels[:, None] == labels
    joined = torch.rand(count, count, generator=generator) < torch.where(same, WITHIN, BETWEEN)
    # Drawn for both triangles and one of them used: edges have no direction, and A must be symmetric.
    half = joined.triu(1).double()
    indicator = F.one_hot(labels, COMMUNITIES).double()
    noise = torch.randn(indicator.shape, generator=generator, dtype=torch.float64)
    adjacency = half + half.T + torch.eye(count, dtype=torch.float64)
    features = indicator + FEATURE_NOISE * noise
    return Stream(GRAPH, torch.arange(count), labels, COMMUNITIES, (adjacency, features))


# -- spaces ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StructureGrid:
    """A grid gives a union's numbers of layers and filters, and its filter sizes, () where it has none."""

    layers: tuple[int, ...]
    filters: tuple[int, ...]
    sizes: tuple[int, ...] = ()


UNIONS = {
    "dense": StructureGrid((1, 2), (8, 16)),
    "conv1d": StructureGrid((1, 2, 3), (2, 4), (3, 5)),
    "conv2d": StructureGrid((1, 2, 3), (2, 4), (3,)),
    "graph": StructureGrid((1, 2, 3), (4, 8), (1,)),
    "xnor": StructureGrid((3, 4), (4, 8), (3,)),
}
AXES = {"conv1d": 2, "conv2d": 3}  # of one input
KINDS = {0: "numbers of nodes", 2: "signals", 3: "images"}


def build_space(
    stream: Stream,
    space: str,
    layers: Sequence[int] = (),
    filters: Sequence[int] = (),
    sizes: Sequence[int] = (),
) -> tuple[Space, Stream]:
    """Build a union of networks for a stream, and also return the stream in the form that they take.

    Args:
        stream: what is to be learnt.
        space: `dense`, `conv1d`, `conv2d`, `graph` or `xnor`.
        layers, filters, sizes: of the union; those of `UNIONS` where none are given.

    Example:
        >>> space, stream = build_space(load_stream("digits"), "conv2d", layers=[1, 2])
        >>> space.structures
        (Structure(layers=1, filters=0, size=0), Structure(layers=2, filters=2, size=3), ...)
    """
    if space not in UNIONS:
        raise InvalidInput(f"space must be one of {join_names(UNIONS)}, got '{space}'")
    axes = len(stream.shape)
    if (space == "graph") != (stream.graph is not None) or AXES.get(space, axes) != axes:
        fitting = [name for name in UNIONS if (name == "graph") == (axes == 0) and AXES.get(name, axes) == axes]
        raise InvalidInput(
            f"space {space} does not take the {KINDS[axes]} of '{stream.name}': take one of {join_names(fitting)}"
        )
    default = UNIONS[space]
    layers, filters = tuple(layers) or default.layers, tuple(filters) or default.filters
    if sizes and not default.sizes:
        raise InvalidInput(f"space {space} has no sizes of filters: leave them out, got {list(sizes)}")
    sizes = tuple(sizes) or default.sizes
    if stream.graph is not None:
        return Graph(Nodes(*stream.graph), stream.classes, layers, filters, sizes), stream
    if space == "dense":
        flat = stream.flatten()
        return Dense(flat.shape, flat.classes, layers, filters), flat
    made = {"conv1d": Conv1d, "conv2d": Conv2d, "xnor": Xnor}[space]
    return made(stream.shape, stream.classes, layers, filters, sizes), stream
