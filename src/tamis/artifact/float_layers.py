"""These functions list what compression left as floats, layer by layer under the user's own names, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tamis.errors import join_names
from tamis.graph import Network, Node
from tamis.graph.ops import describe

BIAS = "a bias, one number per output: these few stay floats unless biases are asked for"
NOT_CHOSEN = "nothing chose it: an option left it out, or the method found nothing to gain there"


@dataclass(frozen=True)
class Untouched:
    """Untouched parameters of one layer are neither pruned nor quantized.

    Attributes:
        layer: the module's name; the parameter's own where it stands at the top of the model.
        parameters: their names.
        weights: how many numbers they have together.
        reason: why, in words.
    """

    layer: str
    parameters: tuple[str, ...]
    weights: int
    reason: str


def list_untouched(net: Network, treated: Collection[str]) -> tuple[Untouched, ...]:
    """List the trainable floats of a network beside those that were treated, in its order.

    Args:
        net: the network.
        treated: names of the parameters that are pruned or quantized.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(1, 3))
        >>> [(each.layer, each.weights) for each in list_untouched(net, {"0.weight", "2.weight"})]
        [('0', 4), ('2', 2)]
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name, value in net.params.items():
        if name in net.trainable and name not in treated and value.is_floating_point():
            groups.setdefault((name.rpartition(".")[0] or name, _explain(net, name)), []).append(name)
    return tuple(
        Untouched(layer, tuple(names), sum(net.params[name].numel() for name in names), reason)
        for (layer, reason), names in groups.items()
    )


def sentences(found: Collection[Untouched]) -> list[str]:
    """Write one line for each reason: how many weights of which layers."""
    by_reason: dict[str, list[Untouched]] = {}
    for each in found:
        by_reason.setdefault(each.reason, []).append(each)
    return [
        f"{sum(each.weights for each in some):,} weights of "
        f"{join_names((each.layer for each in some), most=4)}: {reason}"
        for reason, some in by_reason.items()
    ]


def _explain(net: Network, name: str) -> str:
    readers = net.users.get(name, ())
    if not readers:
        return "nothing in the network reads it"
    node = readers[0]
    op = describe(node)
    if op.untouched:
        return op.untouched
    if op.layer(node) is None:
        return f"'{node.op.removesuffix('.default')}' reads it, which is no linear or convolution layer"
    return BIAS if _is_bias(node, name) else NOT_CHOSEN


def _is_bias(node: Node, name: str) -> bool:
    names = describe(node).layer(node)
    bias = node.arguments.get(names.bias) if names and names.bias else None
    return getattr(bias, "name", None) == name
