"""These graph convolutional networks work on one fixed graph.

Reference: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR 2017.
"""

import torch
from torch import Tensor, nn


class GraphConvolution(nn.Module):
    """A graph convolution maps x to A x W + b, with the normalised adjacency A given at each call."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, adjacency: Tensor, x: Tensor) -> Tensor:
        return self.linear(adjacency @ x)


class GCN(nn.Module):
    """A `GCN` has two graph convolutions with a ReLU between, and one prediction per node."""

    adjacency: Tensor

    def __init__(self, adjacency: Tensor, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("adjacency", normalised_adjacency(adjacency))
        self.layer1 = GraphConvolution(features, hidden)
        self.relu = nn.ReLU()
        self.layer2 = GraphConvolution(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.layer1(self.adjacency, x))
        return self.layer2(self.adjacency, hidden)


def normalised_adjacency(adjacency: Tensor) -> Tensor:
    """Compute D^(-1/2) (A + I) D^(-1/2), where D is the diagonal of the degrees of A + I.

    `adjacency` is a square symmetric matrix of non-negative edge weights, without self-loops.
    """
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1]:
        raise ValueError(f"an adjacency is a square matrix, got the shape {tuple(adjacency.shape)}")
    weights = adjacency.to(torch.get_default_dtype())
    if not torch.equal(weights, weights.T) or bool((weights < 0).any()):
        raise ValueError("an adjacency is symmetric with non-negative weights")
    with_loops = weights + torch.eye(len(weights), dtype=weights.dtype, device=weights.device)
    scale = with_loops.sum(dim=1).rsqrt()
    return scale[:, None] * with_loops * scale[None, :]


def ring_with_chords(nodes: int) -> Tensor:
    """Return the adjacency of a ring whose even nodes are also joined to the node a third of the way round."""
    adjacency = torch.zeros(nodes, nodes)
    edges = [(node, (node + 1) % nodes) for node in range(nodes)]
    edges += [(node, (node + nodes // 3) % nodes) for node in range(0, nodes, 2)]
    for start, end in edges:
        # In a ring of one or two nodes, an edge can lead back to its own node; loops are added later, to all nodes.
        if start != end:
            adjacency[start, end] = adjacency[end, start] = 1.0
    return adjacency


def gcn(nodes: int = 12, features: int = 8, hidden: int = 16, classes: int = 3, adjacency: Tensor | None = None) -> GCN:
    """Build a two-layer graph convolutional network, (N, nodes, features) to (N, nodes, classes).

    Arguments:
        nodes: the size of the built-in graph, a ring with chords; not used when `adjacency` is given.
        features, hidden, classes: the features per node at the input, between the layers and at the output.
        adjacency: a graph of your own, square, symmetric, non-negative, without self-loops; it is normalised here.
    """
    return GCN(ring_with_chords(nodes) if adjacency is None else adjacency, features, hidden, classes)
