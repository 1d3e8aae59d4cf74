"""Which binary layers can hand their output to the next one as bits, and the thresholds that this takes.

The next layer compares its input with τ. Let g be all that lies between the two: a bias, and functions that never
decrease and act on one number at a time. Then g(y) ≥ τ is y ≥ τ' for the least y with g(y) ≥ τ, which bisection over
all float32 finds: additions and comparisons are rounded alike everywhere, so that bits are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from tamis.binary.layers import BinaryLayer, thresholds

# What may lie between two layers: in evaluation, these hand their input on, or never decrease and do not round.
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
class Exchange:
    """Two layers between which bits will do, and the modules between them, in order."""

    giver: BinaryLayer
    between: tuple[nn.Module, ...]
    reader: BinaryLayer

    def thresholds(self) -> tuple[Tensor, Tensor]:
        """τ and f for the giver's output before its bias, with which the reader's bits come out."""
        tau, flips = thresholds(self.reader)
        bias = None if self.giver.bias is None else self.giver.bias.detach()

        def through(y: Tensor) -> Tensor:
            for function in self.between:
                y = function(y) if not isinstance(function, IDENTITIES) else y
            return y

        with torch.no_grad():
            return least_input(lambda y: through(y.clone() if bias is None else y + bias), tau), flips


def exchanges(model: nn.Module) -> list[Exchange]:
    """Where bits will do in a model: a layer is used once, and another one is all that reads what comes of it.

    None where `torch.fx` cannot follow the model, which then computes in floats between its layers.

    Args:
        model: in evaluation mode.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception:  # whatever a module does that depends on the values of its input
        return []
    calls = [node for node in graph.nodes if node.op == "call_module"]
    uses = Counter(model.get_submodule(str(node.target)) for node in calls)
    found = (_exchange(model, node, uses) for node in calls)
    return [exchange for exchange in found if exchange is not None]


def least_input(function: Callable[[Tensor], Tensor], tau: Tensor) -> Tensor:
    """The least float32 y with function(y) ≥ τ, for each τ; NaN, which no number is ≥, where there is none.

    Args:
        function: of a float32 tensor, entry by entry; never decreasing.
        tau: float32.

    Example:
        >>> least_input(lambda y: y + 1, torch.tensor([3.0]))
        tensor([2.])
    """
    low = torch.full(tau.shape, -INFINITY, dtype=torch.int64, device=tau.device)
    high = -low
    for _ in range(32):
        middle = (low + high) // 2
        enough = function(_number(middle)) >= tau
        low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
    least = _number(high)
    return torch.where(function(least) >= tau, least, torch.nan)


def _number(rank: Tensor) -> Tensor:
    """float32 numbers from integers in the same order, 0 for 0."""
    size = rank.abs().to(torch.int32).view(torch.float32)
    return torch.where(rank < 0, -size, size)


class _Tracer(fx.Tracer):
    """Takes binary layers for whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, BinaryLayer) or super().is_leaf_module(m, module_qualified_name)


def _exchange(model: nn.Module, node: fx.Node, uses: Counter[nn.Module]) -> Exchange | None:
    """From a call of a layer to the one that reads it, if nothing else does."""
    giver = model.get_submodule(str(node.target))
    if not isinstance(giver, BinaryLayer) or uses[giver] > 1:
        return None
    if giver.bias is not None and not giver.bias.isfinite().all():
        return None
    between: list[nn.Module] = []
    while len(node.users) == 1:
        (reader,) = node.users
        if reader.op != "call_module" or reader.args != (node,) or reader.kwargs:
            return None
        module = model.get_submodule(str(reader.target))
        if isinstance(module, BinaryLayer):
            fits = module.dimensions == giver.dimensions and module.norm.num_features == giver.weight.shape[0]
            return Exchange(giver, tuple(between), module) if fits else None
        if type(module) not in MONOTONE or uses[module] > 1 or module._forward_hooks or module._forward_pre_hooks:
            return None
        between.append(module)
        node = reader
    return None
