"""A graph's fingerprint: whether two networks compute the same function of their parameters, as one short text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from tamis.graph import Network, graph_lines, tensor_bytes


def fingerprint(net: Network) -> str:
    """Compute the sha256 of a graph: operations and how they are wired, shapes, names of parameters, constants.

    Values of parameters, names of nodes and the device do not count. Equal fingerprints and equal parameters mean
    equal outputs.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(1, 3))
        >>> fingerprint(net) == fingerprint(tamis.rescale(net))
        True
    """
    digest = hashlib.sha256()
    for line in graph_lines(net):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def fingerprint_of_values(tensors: Mapping[str, Tensor]) -> str:
    """Compute the sha256 of named tensors: names, dtypes, shapes and every bit; the device does not count."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(tensor_bytes(value).numpy().data)
    return digest.hexdigest()
