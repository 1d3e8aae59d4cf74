"""Dense, convolutional and graph-convolutional networks have ReLU between their layers (Chee and Loustau, 2.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from tamis.bayes.space import UNIFORM, Block, Space, Structure, StructurePrior, grid
from tamis.bounds import check_count
from tamis.errors import InvalidInput

DTYPE = torch.float64  # the energy of a long run is a large number of which small differences count


class Chain(Space):
    """A chain is a network g_w(x) = softmax(w_k · σ(w_{k−1} * … σ(w_1 * x + b_1) …) + b_k)  (1).

    The first k − 1 layers are convolutions of stride 1 without padding, and the last is fully connected. Its weight has
    the shape (classes, filters, *positions). Structures whose filters are larger than what they are applied to are left
    out, and the probabilities of the others divided by their sum.

    Args:
        input_shape: of one input: (features,), (channels, length) or (channels, rows, columns).
        classes: K.
        layers, filters, sizes: which numbers of layers, numbers of filters and sizes of filters the union is over.
        structure_prior: their prior probabilities; uniform where none are given.

    Reference: chee2021xnor.
    """

    axes: int

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        layers: Sequence[int],
        filters: Sequence[int],
        sizes: Sequence[int],
        structure_prior: StructurePrior = UNIFORM,
    ) -> None:
        if not isinstance(input_shape, Sequence) or len(input_shape) != self.axes + 1:
            raise InvalidInput(
                f"{type(self).__name__} takes an input_shape of {self.axes + 1} numbers ≥ 1, got {input_shape!r}"
            )
        for extent in input_shape:
            check_count("each number of input_shape", extent)
        self.input_shape = tuple(input_shape)
        # Filtered before `Space` makes the union: it divides the probabilities of what is left by their sum.
        union = grid(layers, filters, sizes, structure_prior)
        fitting = {structure: share for structure, share in union.items() if self._fits(structure)}
        if not fitting:
            raise InvalidInput(f"no structure fits inputs of shape {self.input_shape}: {sizes=} are too large")
        super().__init__(classes, fitting)

    @property
    def identity(self) -> dict[str, object]:
        return {**super().identity, "input_shape": list(self.input_shape)}

    def positions(self, structure: Structure, layer: int) -> tuple[int, ...]:
        """Return the rows and columns of a hidden layer's output, counted from 1; those of the input for 0."""
        # Stride 1 and no padding: every layer costs size − 1 rows and columns.
        return tuple(extent - layer * (structure.size - 1) for extent in self.input_shape[1:])

    def _fits(self, structure: Structure) -> bool:
        # Positions only shrink from layer to layer, so that the last hidden one decides.
        return all(extent >= 1 for extent in self.positions(structure, structure.layers - 1))

    def channels(self, structure: Structure, layer: int) -> int:
        """Count the channels of a hidden layer's output, counted from 1; those of the input for 0."""
        return structure.filters if layer else self.input_shape[0]

    def _find_weight_shape(self, structure: Structure, layer: int) -> tuple[int, ...]:
        """Return the shape of the weight of a hidden layer, counted from 1."""
        return (structure.filters, self.channels(structure, layer - 1), *[structure.size] * self.axes)

    def _list_last_blocks(self, structure: Structure) -> tuple[Block, Block]:
        hidden = structure.layers - 1
        # The axes are kept apart, though `classify` flattens them: a jump lays the weights of two structures over each
        # other by filter and position, and a flat row would pair weights of different filters.
        shape = (self.classes, self.channels(structure, hidden), *self.positions(structure, hidden))
        return Block("last.weight", shape), Block("last.bias", (self.classes,))

    def blocks(self, structure: Structure) -> tuple[Block, ...]:
        hidden = [
            block
            for layer in range(1, structure.layers)
            for block in (
                Block(f"hidden.{layer - 1}.weight", self._find_weight_shape(structure, layer)),
                Block(f"hidden.{layer - 1}.bias", (structure.filters,)),
            )
        ]
        return (*hidden, *self._list_last_blocks(structure))

    def forward(self, structure: Structure, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        for layer in range(structure.layers - 1):
            x = F.relu(self.convolve(x, weights[f"hidden.{layer}.weight"], weights[f"hidden.{layer}.bias"]))
        return self.classify(weights, x)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute w * x + b of one layer."""
        # A dense layer is a convolution over no axes: filters are neurons, and their weight is (neurons, features).
        return (F.linear, F.conv1d, F.conv2d)[self.axes](x, weight, bias)

    def classify(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Apply the last layer, which is fully connected."""
        return F.linear(x.flatten(1), weights["last.weight"].flatten(1), weights["last.bias"])

    def check_inputs(self, x: Tensor) -> Tensor:
        if x.dim() < 1 or tuple(x.shape[1:]) != self.input_shape or not len(x):
            raise InvalidInput(
                f"inputs must have the shape (batch, {_join_extents(self.input_shape)}), got {tuple(x.shape)}"
            )
        if x.is_complex():
            raise InvalidInput(f"inputs must be real numbers, got {x.dtype}")
        # One infinite input would make every loss of the round NaN, and with it every weight of the posterior.
        if not bool(torch.isfinite(x).all()):
            raise InvalidInput(
                f"inputs must be finite: {int((~torch.isfinite(x)).sum())} of {x.numel()} numbers are not"
            )
        return x.detach().to(DTYPE)


def refuse_sizes(sizes: Sequence[int]) -> None:
    """Raise InvalidInput for sizes of filters where layers are dense, and so have none."""
    if list(sizes) != [1]:
        raise InvalidInput(f"neurons of a dense layer have no size: leave sizes out, got sizes = {list(sizes)}")


class Dense(Chain):
    """A `Dense` network is fully connected: `filters` are the neurons of a hidden layer, and inputs (batch, features).

    Example:
        >>> space = Dense((64,), classes=10, layers=[1, 2, 3], filters=[8, 16])

    Reference: chee2021xnor.
    """

    axes = 0

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        layers: Sequence[int],
        filters: Sequence[int],
        sizes: Sequence[int] = (1,),
        structure_prior: StructurePrior = UNIFORM,
    ) -> None:
        refuse_sizes(sizes)
        super().__init__(input_shape, classes, layers, filters, sizes, structure_prior)


class Conv1d(Chain):
    """A `Conv1d` network convolves signals (batch, channels, length).

    Example:
        >>> space = Conv1d((1, 32), classes=2, layers=[2, 3], filters=[2, 4], sizes=[3, 5])

    Reference: chee2021xnor.
    """

    axes = 1


class Conv2d(Chain):
    """A `Conv2d` network convolves images (batch, channels, rows, columns) with square filters.

    Example:
        >>> space = Conv2d((1, 8, 8), classes=10, layers=[1, 2, 3], filters=[4, 8], sizes=[3])

    Reference: chee2021xnor.
    """

    axes = 2


@dataclass(frozen=True)
class Nodes:
    """The nodes of one graph have edges between them and features of their own.

    Attributes:
        adjacency: A, (nodes, nodes), symmetric, ≥ 0. Give A + I where a node shall see itself. A node without edges
            gets zeros.
        features: H^0, (nodes, features).
    """

    adjacency: Tensor
    features: Tensor

    def __post_init__(self) -> None:
        count = len(self.features)
        if self.features.dim() != 2 or tuple(self.adjacency.shape) != (count, count):
            got = f"adjacency {tuple(self.adjacency.shape)} and features {tuple(self.features.shape)}"
            raise InvalidInput(f"a graph has adjacency (nodes, nodes) and features (nodes, features), got {got}")
        if not bool(torch.isfinite(self.adjacency).all() and torch.isfinite(self.features).all()):
            raise InvalidInput("adjacency and features must be finite")
        # D^−½ needs degrees ≥ 0, and one D on both sides needs rows and columns to have the same sums.
        if not torch.equal(self.adjacency, self.adjacency.T) or bool((self.adjacency < 0).any()):
            raise InvalidInput("adjacency must be symmetric and ≥ 0")


class Graph(Space):
    """A `Graph` network convolves on one graph: H^{l+1} = σ(D^−½ A D^−½ H^l W^l), with a softmax after the last layer.

    Inputs are numbers of nodes, (batch,), whose classes are asked for. A size j > 1 takes the j-th power of the
    propagation matrix: neighbours up to j edges away.

    Args:
        nodes: A and H^0.
        classes, layers, filters, sizes, structure_prior: as of `Chain`.

    Example:
        >>> ring = torch.eye(6) + torch.eye(6).roll(1, 0) + torch.eye(6).roll(-1, 0)
        >>> space = Graph(Nodes(ring, torch.rand(6, 4)), classes=7, layers=[2, 3], filters=[8, 16])
        >>> len(space.structures)
        4

    Reference: chee2021xnor.
    """

    def __init__(
        self,
        nodes: Nodes,
        classes: int,
        layers: Sequence[int],
        filters: Sequence[int],
        sizes: Sequence[int] = (1,),
        structure_prior: StructurePrior = UNIFORM,
    ) -> None:
        # Copied, since h_t is over all rounds: a caller that changes its tensor later would change past losses.
        self.features = nodes.features.detach().to(DTYPE, copy=True)
        adjacency = nodes.adjacency.detach().to(DTYPE)
        self._digest = _digest(adjacency, self.features)  # now: the caller may change its matrix afterwards
        # D^−½ A D^−½ with 0 for a node without edges: 1/√0 would spread infinities over the whole matrix.
        degrees = adjacency.sum(1)
        root = torch.where(degrees > 0, degrees, 1.0).rsqrt() * (degrees > 0)
        propagation = root[:, None] * adjacency * root
        # 1 is always there, because a structure of one layer has no filters and the size 0: `forward` takes 1 for it.
        self.propagation = {size: torch.linalg.matrix_power(propagation, size) for size in (*sizes, 1)}
        super().__init__(classes, grid(layers, filters, sizes, structure_prior))

    @property
    def identity(self) -> dict[str, object]:
        return {**super().identity, "graph": self._digest}

    def blocks(self, structure: Structure) -> tuple[Block, ...]:
        # No biases: the propagation rule of the paper has none.
        widths = [self.features.shape[1], *[structure.filters] * (structure.layers - 1)]
        hidden = [Block(f"hidden.{layer}.weight", (*pair,)) for layer, pair in enumerate(pairwise(widths))]
        return (*hidden, Block("last.weight", (widths[-1], self.classes)))

    def forward(self, structure: Structure, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        propagation = self.propagation[structure.size or 1].to(x.device)
        hidden = self.features.to(x.device)
        for layer in range(structure.layers - 1):
            # H W first: the product with the graph, the dear one, then has one column a filter, and not one a feature.
            hidden = F.relu(propagation @ (hidden @ weights[f"hidden.{layer}.weight"]))
        # All nodes are computed, though a few are asked for: after some layers, a node depends on most of the others.
        return (propagation @ (hidden @ weights["last.weight"])).index_select(0, x)

    def check_inputs(self, x: Tensor) -> Tensor:
        if x.dim() != 1 or x.is_floating_point() or x.is_complex() or x.dtype is torch.bool or not len(x):
            raise InvalidInput(f"inputs must be numbers of nodes, integers (batch,), got {x.dtype} {tuple(x.shape)}")
        if bool((x < 0).any() | (x >= len(self.features)).any()):
            raise InvalidInput(
                f"nodes are numbered 0 to {len(self.features) - 1}, got {int(x.min())} to {int(x.max())}"
            )
        return x.detach().to(torch.int64)


def _digest(*tensors: Tensor) -> str:
    """Compute the first half of the SHA-256 of tensors' shapes and numbers, which identifies them."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(repr(tuple(tensor.shape)).encode() + tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:32]


def _join_extents(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))
