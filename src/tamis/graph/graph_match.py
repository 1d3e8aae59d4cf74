"""Two networks have the same graph if they compute the same, whatever the values of their parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tamis.errors import InvalidInput
from tamis.graph.network import Network, Ref
from tamis.graph.tensor_bytes import tensor_bytes

PLACES = ("device", "layout", "pin_memory", "memory_format")  # arguments that say where a tensor is, not what it is


def check_same_graph(net: Network, other: Network, needed_by: str, interchangeable: bool = False) -> None:
    """Raise InvalidInput where two networks differ in more than the values of their parameters.

    Args:
        net, other: the networks.
        needed_by: the computation that needs them, for the message.
        interchangeable: whether parameters of the one are put into the other. Then names of nodes do not matter, but
            constants must have the same values, and each parameter the same dtype and device. Otherwise both are
            walked side by side, name by name, and constants may differ as parameters may.

    Example:
        >>> net = tamis.trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
        >>> check_same_graph(net, net.with_params({"bias": torch.zeros(2)}), "path_metric")
        >>> check_same_graph(net, net.to(torch.float64), "path_metric", interchangeable=True)
        Traceback (most recent call last):
        tamis.errors.InvalidInput: ... 'weight' has the dtype torch.float32 in the first and torch.float64...
    """
    for place, value in (("first", net), ("second", other)):
        if not isinstance(value, Network):
            raise InvalidInput(f"{needed_by} needs two Networks, the {place} is {type(value).__name__}")
    difference = _find_first_difference(net, other, interchangeable)
    if difference is not None:
        hint = "the second must be made from the first" if interchangeable else "make it with net.with_params(...)"
        raise InvalidInput(
            f"{needed_by} needs two networks with one and the same graph, got {net!r} and {other!r}: {difference}; "
            f"{hint}"
        )


def _find_first_difference(net: Network, other: Network, interchangeable: bool) -> str | None:
    lines = [graph_lines(each) if interchangeable else _write_named_lines(each) for each in (net, other)]
    for mine, theirs in zip_longest(*lines):
        if mine != theirs:
            return f"the first has '{_shorten(mine)}' where the second has '{_shorten(theirs)}'"
    for name, value in net.params.items() if interchangeable else ():
        for kind in ("dtype", "device"):
            if getattr(value, kind) != getattr(other.params[name], kind):
                mine, theirs = getattr(value, kind), getattr(other.params[name], kind)
                return f"'{name}' has the {kind} {mine} in the first and {theirs} in the second"
    return None


def _shorten(line: str | None) -> str:
    return "nothing" if line is None else line if len(line) <= 120 else f"{line[:117]}..."


def graph_lines(net: Network) -> list[str]:
    """Describe a graph by a line for each input, parameter, constant and node, and one for the outputs.

    Nodes go by their places and constants by their content: the same lines and the same parameters mean the same
    outputs, whatever the nodes are called. Fingerprints in stored files are digests of these lines, so their wording
    must not change.
    """
    # Names come from torch.export and change with its version; places in the order of the graph do not.
    labels = {name: f"%{place}" for place, name in enumerate([*net.inputs, *(node.name for node in net.nodes)])}
    labels |= {name: f"constant{place}" for place, name in enumerate(net.constants)}
    return _write_lines(net, labels, [f"constant {_hash_content(value)}" for value in net.constants.values()])


def _write_named_lines(net: Network) -> list[str]:
    """Describe a graph with nodes and constants under their own names, and without the values of constants."""
    labels = {name: name for name in (*net.inputs, *net.node, *net.constants)}
    return _write_lines(net, labels, [f"constant {name} {tuple(value.shape)}" for name, value in net.constants.items()])


def _write_lines(net: Network, labels: Mapping[str, str], constants: list[str]) -> list[str]:
    lines = [f"input {labels[name]} {shape}" for name, shape in zip(net.inputs, net.input_shapes, strict=True)]
    lines.append(f"batched {net.batched}")
    # Sorted, since the order of a state_dict says nothing about the function.
    lines += [f"parameter {name} {tuple(value.shape)}" for name, value in sorted(net.params.items())]
    lines += [f"alias {name} {first}" for name, first in sorted(net.aliases.items())]
    lines += constants
    for node in net.nodes:
        arguments = {name: value for name, value in node.arguments.items() if name not in PLACES}
        lines.append(f"{labels[node.name]} = {node.op} {_write_argument(arguments, labels)}")
    structure = pytree.tree_unflatten(list(range(len(net.outputs))), net.output_structure)
    return [*lines, f"outputs {_write_argument(net.outputs, labels)} as {structure!r}"]


def _write_argument(value: Any, labels: Mapping[str, str]) -> str:
    if isinstance(value, Ref):
        return labels.get(value.name, value.name)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_write_argument(item, labels) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_write_argument(item, labels)}" for key, item in value.items()) + "}"
    if isinstance(value, torch.fx.GraphModule):  # of a higher-order operation
        return str(value.code)
    return repr(value)


def _hash_content(value: Tensor) -> str:
    # By bytes and not by values: two NaNs of the same bits are the same constant, and 0 and −0 are not.
    data = tensor_bytes(value).numpy().data
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"
