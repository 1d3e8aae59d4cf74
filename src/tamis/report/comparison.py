"""Two networks side by side, before and after: what is counted, what the certificate counted, and what is measured."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tamis.artifact.compressed import Compressed
from tamis.graph.network import Network
from tamis.graph.operations import operations_of
from tamis.kernels.energy import NOT_MEASURED, measure

SECONDS = 0.5  # of measuring, for each network: many runs of a small one
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    """One line of the table, as people read it; `how` says where the numbers come from."""

    name: str
    before: str
    after: str
    how: str


def certified_rows(content: Mapping[str, Any]) -> list[Row]:
    """What a certificate alone says of both networks: their bytes, and their accuracies where labels were known."""
    sizes = content["network"]["bytes"], content["file"]["bytes"]
    how = "before: all parameters as they lie in memory; after: the file"
    rows = [Row("bytes", f"{sizes[0]:,}", f"{sizes[1]:,}", how)]
    counts = {claim["claim"]: claim["measured"] for claim in content["claims"]}
    if {"error_rate", "accuracy_change"} <= set(counts):
        samples, wrong = counts["error_rate"]["samples"], counts["error_rate"]["errors"]
        change = counts["accuracy_change"]
        wrong_before = wrong - change["worse"] + change["better"]
        before, after = (f"{(samples - errors) / samples:.2%}" for errors in (wrong_before, wrong))
        rows.append(Row("accuracy", before, after, f"on the {samples:,} held-out inputs of the certificate"))
    return rows


def counted_rows(original: Network, small: Compressed, file_bytes: int) -> list[Row]:
    """What follows from the two networks: numbers, multiply-accumulates and bytes moved."""
    numbers = [sum(values[n].numel() for n in original.trainable) for values in (original.params, small.params)]
    left = sum(int(small.params[name].count_nonzero()) for name in original.trainable)
    macs, useful = _multiplications(original, small)
    activations = _activation_bytes(original)
    weights = sum(value.nbytes for value in original.params.values())
    return [
        Row("parameters", f"{numbers[0]:,}", f"{left:,}", "after: those that are not zero"),
        Row("multiply-accumulates", f"{macs:,}", f"{useful:,}", "for one input; after: by weights that are not zero"),
        Row(
            "bytes moved",
            f"{weights + activations:,}",
            f"{file_bytes + activations:,}",
            "for one input, if each operation reads its inputs and writes its result: weights as floats before, and "
            "as they lie in the file after",
        ),
    ]


def measured_rows(original: Network, small: Compressed, batch: int) -> list[Row]:
    """Seconds and joules of both networks on this machine, run by torch in floats."""
    networks = (original, small.network)
    before, after = (f"{1e3 * seconds:.3g} ms" for seconds in latencies(networks, batch))
    threads = torch.get_num_threads()
    how = f"batch {batch}, {threads} thread{'s' * (threads > 1)}, run by torch in floats: the best of several runs"
    latency = Row("latency", before, after, how)
    inputs = example_inputs(original, batch)
    spent = [measure(partial(net, *inputs)) for net in networks]
    joules = [NOT_MEASURED if each.joules is None else f"{each.joules / batch:.3g} J" for each in spent]
    return [latency, Row("energy", joules[0], joules[1], f"for one input, at batch {batch}: {spent[0].reason}")]


def latencies(networks: tuple[Network, ...], batch: int) -> list[float]:
    """The shortest time of each, taken in turns, since a machine is not equally fast from one second to the next."""
    inputs = example_inputs(networks[0], batch)
    best = [math.inf] * len(networks)
    with torch.inference_mode():
        for net in networks:
            net(*inputs)  # the first run allocates and chooses kernels
        until, rounds = time.perf_counter() + SECONDS * len(networks), 0
        while rounds < FEWEST_ROUNDS or time.perf_counter() < until:
            for place, net in enumerate(networks):
                start = time.perf_counter()
                net(*inputs)
                best[place] = min(best[place], time.perf_counter() - start)
            rounds += 1
    return best


def example_inputs(net: Network, batch: int) -> tuple[torch.Tensor, ...]:
    """Inputs of the right shapes, seeded: noise, or zeros where they are no floats."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for shape, dtype in zip(net.input_shapes, net.input_dtypes, strict=True):
        whole = (batch, *shape[1:]) if net.batched else shape
        real = dtype.is_floating_point
        made.append(torch.randn(whole, generator=draw).to(dtype) if real else torch.zeros(whole, dtype=dtype))
    return tuple(made)


def _multiplications(original: Network, small: Compressed) -> tuple[int, int]:
    """Multiply-accumulates of an input, and those of them whose weight is not zero in the small network.

    Every weight of a convolution or a linear layer is used equally often, so its zeros save their share.
    """
    total, useful = 0, 0.0
    for operation in operations_of(original):
        macs = operation.macs or 0
        weights = [small.params[name] for name in operation.parameters if small.params[name].dim() > 1]
        numbers = sum(weight.numel() for weight in weights)
        share = sum(int(weight.count_nonzero()) for weight in weights) / numbers if numbers else 1.0
        total += macs
        useful += macs * share
    return total, round(useful)


def _activation_bytes(net: Network) -> int:
    """Bytes that operations read and write for one input, their parameters aside."""
    shapes = {node.name: node.shape for node in net.data_nodes if node.shape is not None}
    shapes |= dict(zip(net.inputs, net.input_shapes, strict=True))
    size = {name: math.prod(shape) * net.input_dtypes[0].itemsize for name, shape in shapes.items()}
    written = sum(size.get(node.name, 0) for node in net.data_nodes)
    return written + sum(size.get(name, 0) for node in net.data_nodes for name in node.references)
