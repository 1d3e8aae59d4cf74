"""A comparison puts two networks side by side, with what was certified, what is counted, and what is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tamis.artifact import Compressed
from tamis.graph import Network, operations_of
from tamis.kernels import NOT_MEASURED, measure_energy

SECONDS = 0.5  # of measuring, for each network: many runs of a small one
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """A row is one line of the table, as people read it; `how` says where the numbers come from."""

    name: str
    before: str
    after: str
    how: str


def make_certified_rows(content: Mapping[str, Any]) -> list[Row]:
    """Make the rows that follow from a certificate alone: bytes, and accuracies where labels were known."""
    sizes = content["network"]["bytes"], content["file"]["bytes"]
    how = "before: all parameters as they lie in memory; after: the file"
    rows = [Row("bytes", f"{sizes[0]:,}", f"{sizes[1]:,}", how)]
    if (accuracy := content.get("accuracy")) is not None:
        how = f"on the {content['data']['samples']:,} held-out inputs of the certificate"
        rows.append(Row("accuracy", f"{accuracy['before']:.2%}", f"{accuracy['after']:.2%}", how))
    return rows


def make_counted_rows(original: Network, small: Compressed, file_bytes: int) -> list[Row]:
    """Make the rows that follow from the two networks: parameters, multiply-accumulates and bytes moved."""
    # Zeros count before: the original is what was shipped, whether or not some of its weights happen to be zero.
    numbers, left = _count_numbers(original), _count_numbers(small.network, but_zeros=True)
    macs, useful = (
        _count_multiplications(original, but_zeros=False),
        _count_multiplications(small.network, but_zeros=True),
    )
    weights = sum(value.nbytes for value in original.params.values())
    return [
        Row("parameters", f"{numbers:,}", f"{left:,}", "after: those that are not zero"),
        Row(
            "multiply-accumulates",
            f"{macs:,}",
            f"{useful:,}",
            f"for one input; after: by weights that are not zero{_name_uncounted(small.network)}",
        ),
        Row(
            "bytes moved",
            f"{weights + _count_activation_bytes(original):,}",
            f"{file_bytes + _count_activation_bytes(small.network):,}",
            "for one input, if each operation reads its inputs and writes its result: weights as floats before, and "
            "as they lie in the file after",
        ),
    ]


def measure_rows(original: Network, small: Compressed, batch: int) -> list[Row]:
    """Measure seconds and joules of both networks on this machine, run by torch in floats."""
    networks = (original, small.network)
    # Three digits: measured again, the next ones would be others.
    before, after = (f"{1e3 * seconds:.3g} ms" for seconds in latencies(networks, batch))
    threads = torch.get_num_threads()
    how = f"batch {batch}, {threads} thread{'s' * (threads > 1)}, run by torch in floats: the best of several runs"
    latency = Row("latency", before, after, how)
    inputs = draw_example_inputs(original, batch)
    energies = [measure_energy(partial(net, *inputs)) for net in networks]
    joules = [NOT_MEASURED if each.joules is None else f"{each.joules / batch:.3g} J" for each in energies]
    return [latency, Row("energy", joules[0], joules[1], f"for one input, at batch {batch}: {energies[0].reason}")]


def latencies(networks: tuple[Network, ...], batch: int) -> list[float]:
    """Measure the shortest time of each network.

    The networks take turns, since a machine is not equally fast from one second to the next.
    """
    inputs = draw_example_inputs(networks[0], batch)
    best = [math.inf] * len(networks)
    # Without the bookkeeping of gradients, as a network runs where it is deployed.
    with torch.inference_mode():
        for net in networks:
            net(*inputs)  # the first run allocates and chooses kernels
        until, rounds = time.perf_counter() + SECONDS * len(networks), 0
        # Some rounds even of a network that takes longer than the time for measuring.
        while rounds < FEWEST_ROUNDS or time.perf_counter() < until:
            for place, net in enumerate(networks):
                start = time.perf_counter()
                net(*inputs)
                # The shortest, because all that disturbs a run makes it longer.
                best[place] = min(best[place], time.perf_counter() - start)
            rounds += 1
    return best


def draw_example_inputs(net: Network, batch: int) -> tuple[torch.Tensor, ...]:
    """Draw seeded inputs of the right shapes: noise, or zeros where they are no floats."""
    draw = torch.Generator().manual_seed(0)
    inputs = []
    for shape, dtype in zip(net.input_shapes, net.input_dtypes, strict=True):
        # Inputs without a batch axis are run as they are.
        full_shape = (batch, *shape[1:]) if net.batched else shape
        # A whole number is mostly the number of a word or a class, of which 0 always exists.
        real = dtype.is_floating_point
        inputs.append(
            torch.randn(full_shape, generator=draw).to(dtype) if real else torch.zeros(full_shape, dtype=dtype)
        )
    return tuple(inputs)


def _count_numbers(net: Network, but_zeros: bool = False) -> int:
    # Running statistics are no parameters, though they lie in the file.
    values = [net.params[name] for name in net.trainable]
    return sum(int(value.count_nonzero()) if but_zeros else value.numel() for value in values)


def _count_multiplications(net: Network, but_zeros: bool) -> int:
    """Count the multiply-accumulates for one input, or only those whose weight is not zero.

    A layer uses each of its weights equally often, so zeros save their share of its multiply-accumulates.
    """
    total = 0.0
    for operation in operations_of(net):
        # Biases are added: a zero among them saves no multiplication.
        weights = [net.params[name] for name in operation.parameters if net.params[name].dim() > 1]
        numbers = sum(weight.numel() for weight in weights)
        useful = sum(int(weight.count_nonzero()) for weight in weights) if but_zeros else numbers
        total += (operation.macs or 0) * (useful / numbers if numbers else 1.0)
    return round(total)


def _name_uncounted(net: Network) -> str:
    """Name the operations whose multiply-accumulates are not counted; return an empty text if there are none."""
    unknown = dict.fromkeys(operation.op for operation in operations_of(net) if operation.macs is None)
    return f"; not counted: {', '.join(unknown)}" if unknown else ""


def _count_activation_bytes(net: Network) -> int:
    """Count the bytes that operations read and write for one input, without their parameters."""
    shapes = {node.name: node.shape for node in net.data_nodes if node.shape is not None}
    shapes |= dict(zip(net.inputs, net.input_shapes, strict=True))
    size = {name: math.prod(shape) * net.input_dtypes[0].itemsize for name, shape in shapes.items()}
    # A value whose shape is not known counts as nothing, before and after alike.
    written_bytes = sum(size.get(node.name, 0) for node in net.data_nodes)
    # Read once by each operation that uses it, as no cache is counted on.
    return written_bytes + sum(size.get(name, 0) for node in net.data_nodes for name in node.references)
