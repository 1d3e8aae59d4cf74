"""Order statistics along a dimension (max, min, kthvalue, median, topk, sort) are k-max-pooling neurons."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from tamis.graph.ops.base import Call, Capability, IntervalRule, Op, Rank, Targets
from tamis.graph.symmetry import Scales

aten = torch.ops.aten


class Order(Op):
    """Each output is the k-th largest of all values along a dimension; on |θ|^q it is their sum."""

    targets: Targets = (
        aten.max.dim,
        aten.min.dim,
        aten.amax.default,
        aten.amin.default,
        aten.max.default,
        aten.min.default,
        aten.kthvalue.default,
        aten.median.dim,
        aten.topk.default,
        aten.sort.default,
        aten.sort.stable,
    )
    interval = IntervalRule.SELECTING

    def capability(self, call: Call) -> Capability:
        return Capability.HOMOGENEOUS

    def magnitude(self, call: Call, q: float, one: float) -> Any:
        # Which entry is selected depends on the input, so each of them is an edge of weight one: their sum, every time.
        return self._spread(call, call["self"].sum(self._read_dims(call), keepdim=True))

    def reach(self, call: Call) -> Any:
        return self._spread(call, call["self"].amax(self._read_dims(call), keepdim=True))

    def summands(self, call: Call) -> int:
        return math.prod(call["self"].shape[dim] for dim in self._read_dims(call))

    def ties(self, call: Call, scales: Scales) -> Any:
        # Entries are compared with one another, which only a common scale leaves in the same order.
        return self._spread(call, scales.reduced(call["self"], self._read_dims(call), True))

    def ranks(self, call: Call) -> list[Rank]:
        name, named = call.node.op.removeprefix("aten.").split(".")[0], call.node.arguments
        if name == "kthvalue":
            return [("smallest", named["k"])]
        if name in ("max", "amax", "min", "amin"):
            return [("smallest" if name in ("min", "amin") else "largest", 1)]
        length = call["self"].shape[named["dim"]]
        if name == "median":  # the lower one of two in the middle
            return [("smallest", (length + 1) // 2)]
        # All ranks of a sort occur, in either direction: counted from the largest they are the same set.
        several = length if name == "sort" else named["k"]
        side: Literal["largest", "smallest"] = "largest" if name == "sort" or named["largest"] else "smallest"
        return [(side, k) for k in range(1, several + 1)]

    @staticmethod
    def _read_dims(call: Call) -> tuple[int, ...]:
        # max and min without a dimension look at the whole tensor, and so do amax and amin with an empty list.
        dim = call.node.arguments.get("dim", [])
        dims = tuple(dim) if isinstance(dim, (list, tuple)) else (dim,)
        return dims or tuple(range(call["self"].dim()))

    @staticmethod
    def _spread(call: Call, combined: Tensor) -> Any:
        """Give every output neuron the same combined value; indices are not data."""
        # Run for its shapes alone, which differ between topk, sort and max with and without keepdim.
        result = call.run()
        values = result if isinstance(result, Tensor) else result[0]
        kept = combined.dim() == values.dim()
        spread = combined.expand(values.shape) if kept else combined.reshape(values.shape)
        return spread if isinstance(result, Tensor) else (spread, None)
