"""Whether two networks are one graph with two sets of parameters."""

from __future__ import annotations

from typing import Any

from tamis.errors import InvalidInput
from tamis.graph.network import Network


def check_one_graph(net: Network, other: Network, wanted_by: str) -> None:
    """Raise InvalidInput where two networks differ in more than the values of their parameters.

    Args:
        net, other: the networks.
        wanted_by: who compares them, for the message.
    """
    for name, value in (("first", net), ("second", other)):
        if not isinstance(value, Network):
            raise InvalidInput(f"{wanted_by} needs two Networks, the {name} is {type(value).__name__}")
    if _graph(net) != _graph(other):
        raise InvalidInput(
            f"{wanted_by} compares parameters of one and the same graph, got {net!r} and {other!r}; "
            "make the second with net.with_params(...)"
        )


def _graph(net: Network) -> Any:
    """All of a network but the values of its parameters."""
    nodes = [(node.name, node.target, node.args, dict(node.kwargs)) for node in net.nodes]
    tensors = {name: value.shape for name, value in {**net.params, **net.constants}.items()}
    return nodes, net.inputs, net.input_shapes, net.outputs, tensors
