"""A hand-off passes bits from one binary layer to the next, with the thresholds that this takes.

The next layer compares its input with τ. Let g be everything between the two layers: a bias, and functions that act on
one number at a time and never decrease, or never increase. Where g never decreases, g(y) ≥ τ is the same as y ≥ τ' for
the least y with g(y) ≥ τ, which a bisection over all float32 finds. Where it never increases, the same is done with
g(−y). The bisection computes g as PyTorch does, roundings included, so that the bits are the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from tamis.binary.batchnorm_affine import NORMS
from tamis.binary.layers import BinaryLayer, thresholds
from tamis.binary.tracing import count_uses, find_affine_after, find_called_module, find_only_reader, trace_calls

# What may lie between two layers besides batch normalizations: in evaluation, these hand their input on, or never
# decrease and do not round.
IDENTITIES = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
MONOTONE = (*IDENTITIES, nn.ReLU, nn.ReLU6, nn.Hardtanh)
INFINITY = 0x7F800000  # the bits of float32's


@dataclass(frozen=True)
class BitHandoff:
    """A hand-off is a pair of layers, the first giving the second its bits, with the modules between them in order.

    Attributes:
        increasing: for each channel of the producer, whether what lies between never decreases; else it never
            increases.
    """

    producer: BinaryLayer
    between: tuple[nn.Module, ...]
    reader: BinaryLayer
    increasing: Tensor

    @torch.no_grad()
    def thresholds(self) -> tuple[Tensor, Tensor]:
        """Compute the τ and f with which the producer's output, before its bias, gives the reader's bits."""
        tau, flips = thresholds(self.reader)
        # The search needs a function that never decreases. Where normalizations with a negative slope reverse the
        # order, it runs over z = −y.
        bias, sign = self.producer.bias, torch.where(self.increasing, 1.0, -1.0)

        def pass_through(z: Tensor) -> Tensor:
            y = sign * z if bias is None else sign * z + bias
            for function in self.between:
                y = _apply(function, y)
            return y

        least = find_least_input(pass_through, tau)
        # y ≤ −τ' is not y ≥ the number after −τ'. All y are, where τ' is −∞; none is, where there is no τ'.
        after = torch.where(least == -math.inf, torch.nan, (-least).nextafter(torch.tensor(math.inf)))
        after = torch.where(least.isnan(), -math.inf, after)
        return torch.where(self.increasing, least, after), flips ^ ~self.increasing


def find_handoffs(model: nn.Module) -> list[BitHandoff]:
    """Find the layers of a model that are used once and whose output only another binary layer reads.

    None where `torch.fx` cannot follow the model, which then computes in floats between its layers.

    Args:
        model: in evaluation mode.
    """
    graph = trace_calls(model)
    if graph is None:
        return []
    uses = count_uses(model, graph)
    handoffs = (_find_handoff(model, node, uses) for node in graph.nodes)
    return [handoff for handoff in handoffs if handoff is not None]


def _apply(function: nn.Module, y: Tensor) -> Tensor:
    """Apply a module to one number of each channel."""
    # Not called: `Dropout2d` and its like expect axes that one number for each channel does not have.
    if isinstance(function, IDENTITIES):
        return y
    if isinstance(function, NORMS):
        # As one of many pixels: for a single one PyTorch has a way of its own.
        size = (16,) if isinstance(function, nn.BatchNorm1d) else (4, 4)
        pixels = y.reshape(1, -1, *[1] * len(size)).expand(1, -1, *size).contiguous()
        return torch.as_tensor(function(pixels)).flatten(2)[0, :, 0].contiguous()
    return torch.as_tensor(function(y.clone()))


def find_least_input(function: Callable[[Tensor], Tensor], tau: Tensor) -> Tensor:
    """Find the least float32 y with function(y) ≥ τ, for each τ; return NaN, which no number reaches, if there is none.

    Args:
        function: of a float32 tensor, entry by entry; never decreasing.
        tau: float32.

    Example:
        >>> find_least_input(lambda y: 2 * y, torch.tensor([3.0]))
        tensor([1.5000])
    """
    # Over ranks and not over numbers: float32 has fewer than 2³² of them, so that 32 steps end at the very one.
    # The invariant: below `low` nothing is enough, and at `high` it is, or nothing is at all, as the last line finds.
    low = torch.full(tau.shape, -INFINITY, dtype=torch.int64, device=tau.device)
    high = -low
    for _ in range(32):
        middle = (low + high) // 2
        enough = function(_rank_to_float(middle)) >= tau
        low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
    least = _rank_to_float(high)
    return torch.where(function(least) >= tau, least, torch.nan)


def _rank_to_float(rank: Tensor) -> Tensor:
    """Return the float32 number of each rank, where ranks are integers in the same order, with 0 for 0."""
    # The bits of positive floats are integers in the same order; the sign is a bit apart, and is put on afterwards.
    size = rank.abs().to(torch.int32).view(torch.float32)
    return torch.where(rank < 0, -size, size)


def _find_handoff(model: nn.Module, node: fx.Node, uses: Counter[nn.Module]) -> BitHandoff | None:
    """Follow a layer's output to the binary layer that reads it; None where something else reads it."""
    # Used once: another caller of the layer would be given bits where it expects numbers.
    producer = find_called_module(model, node, uses)
    if not isinstance(producer, BinaryLayer):
        return None
    # A sum with an infinite bias can be NaN, and then g is not monotone.
    if producer.bias is not None and not producer.bias.isfinite().all():
        return None
    between: list[nn.Module] = []
    increasing = torch.ones(producer.weight.shape[0], dtype=torch.bool, device=producer.weight.device)
    while (reader := find_only_reader(node)) is not None:
        # The reader may well have other callers, with numbers: it tells bits from them by their dtype.
        if _reads(model, reader, node):
            last = model.get_submodule(str(reader.target))
            assert isinstance(last, BinaryLayer)
            # Bits are packed along channels: both layers must count the same ones, along the same axes.
            fits = last.dimensions == producer.dimensions and last.norm.num_features == producer.weight.shape[0]
            return BitHandoff(producer, tuple(between), last, increasing) if fits else None
        module = find_called_module(model, reader, uses)
        if module is None or reader.args != (node,):
            return None
        if type(module) in NORMS:
            # The output of a linear layer may have more axes, and then another one than the features is normalized.
            affine = find_affine_after(producer, module) if producer.dimensions > 0 else None
            # A NaN fails every comparison, also one that a negative slope has turned around; with an infinite scale, 0
            # · ∞ is one.
            if affine is None or not producer.scale().isfinite().all():
                return None
            # A negative slope turns the order around, and two of them turn it back.
            increasing = increasing ^ (affine.slope < 0)
        elif type(module) not in MONOTONE:
            return None
        between.append(module)
        node = reader
    return None


def _reads(model: nn.Module, reader: fx.Node, node: fx.Node) -> bool:
    """Return whether a node calls a binary layer on another node's result, and not as the summand of its output."""
    if reader.op != "call_module" or reader.kwargs or reader.args[:1] != (node,) or node in reader.args[1:]:
        return False
    return isinstance(model.get_submodule(str(reader.target)), BinaryLayer)
