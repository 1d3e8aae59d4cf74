"""A graph's fingerprint: whether two networks compute the same function of their parameters, as one short text."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tamis.graph import Network, Ref

PLACES = ("device", "layout", "pin_memory", "memory_format")  # arguments that say where a tensor is, not what it is


def fingerprint(net: Network) -> str:
    """The sha256 of a graph: its operations and how they are wired, shapes, names of parameters, and constants.

    Values of parameters, names of nodes and the device do not count. Equal fingerprints and equal parameters mean
    equal outputs.

    Example:
        >>> fingerprint(tamis.trace(model, x)) == fingerprint(tamis.rescale(tamis.trace(model, x)))
        True
    """
    digest = hashlib.sha256()
    for line in _lines(net):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _lines(net: Network) -> list[str]:
    labels = {name: f"%{place}" for place, name in enumerate([*net.inputs, *(node.name for node in net.nodes)])}
    lines = [f"input {labels[name]} {shape}" for name, shape in zip(net.inputs, net.input_shapes, strict=True)]
    lines.append(f"batched {net.batched}")
    lines += [f"parameter {name} {tuple(value.shape)}" for name, value in sorted(net.params.items())]
    lines += [f"alias {name} {first}" for name, first in sorted(net.aliases.items())]
    # A constant has no name of the user's, and an unused one does not count.
    lines += [f"constant {_content(value)}" for value in net.constants.values()]
    labels |= {name: f"constant{place}" for place, name in enumerate(net.constants)}
    for node in net.nodes:
        arguments = {name: value for name, value in node.arguments.items() if name not in PLACES}
        lines.append(f"{labels[node.name]} = {node.op} {_written(arguments, labels)}")
    structure = pytree.tree_unflatten(list(range(len(net.outputs))), net.output_structure)
    return [*lines, f"outputs {_written(net.outputs, labels)} as {structure!r}"]


def _written(value: Any, labels: Mapping[str, str]) -> str:
    if isinstance(value, Ref):
        return labels.get(value.name, value.name)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_written(item, labels) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(item, labels)}" for key, item in value.items()) + "}"
    if isinstance(value, torch.fx.GraphModule):  # of a higher-order operation
        return str(value.code)
    return repr(value)


def _content(value: Tensor) -> str:
    data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(data).hexdigest()}"


def fingerprint_of_values(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of named tensors: names, dtypes, shapes and every bit; the device does not count."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
