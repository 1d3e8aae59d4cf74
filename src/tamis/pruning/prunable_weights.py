"""The parameters that can be pruned are the weights of linear and convolution layers, and their biases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tamis.errors import InvalidInput, join_names
from tamis.graph import Network, Patterns, references_in, selected
from tamis.graph.ops import Capability, capability, describe


@dataclass(frozen=True)
class Candidates:
    """Candidates are the names of parameters to prune, in the order of the layers; `final` is the last one's weight."""

    names: tuple[str, ...]
    final: str


def find_candidates(
    net: Network, include: Patterns = None, exclude: Patterns = None, biases: bool = False
) -> Candidates:
    """Choose parameters by the user's patterns among those that can be pruned."""
    met = list(_find_met(net, "multipliers"))
    if not met:
        raise InvalidInput(
            f"there is nothing to prune: {net!r} has no linear or convolution layer with trainable weights"
        )
    known = tuple(dict.fromkeys([*met, *(_find_met(net, "addends") if biases else ())]))
    chosen = selected(net, known, include, exclude, done="pruned")
    for name in chosen:
        _refuse_computed(net, name)
    return Candidates(chosen, met[-1])


def _find_met(net: Network, role: str) -> Iterator[str]:
    """Yield the trainable parameters that data meets in a layer, as `multipliers` or as `addends`."""
    for node in net.data_nodes:
        op = describe(node)
        if op.prunable:
            met = references_in([node.arguments.get(argument) for argument in getattr(op, role)])
            for name in met:
                if name not in net.carries_data:
                    yield from net.trainable_sources(name)


def _refuse_computed(net: Network, param: str) -> None:
    """Raise where a weight is computed from a parameter, but not entry by entry, as in weight normalization."""
    # Along every way from the parameter to the data, a zero must stay that one zero: no other parameter may mix in, and
    # each operation must keep zeros in place.
    names = [param]
    while names:
        for node in net.users.get(names.pop(), ()):
            if node.name in net.carries_data:
                continue
            others = {source for name in node.references for source in net.trainable_sources(name)} - {param}
            homogeneous = capability(net, node) is Capability.HOMOGENEOUS  # w / 2 is, 2 / w is not
            if others or not homogeneous or not describe(node).keeps_zeros:
                raise InvalidInput(
                    f"'{param}' cannot be pruned entry by entry: a weight is computed from it by '{node.op}' at "
                    f"{node.module or 'the top level'}{' with ' + join_names(sorted(others)) if others else ''}; "
                    f"bake the parametrization into the weight first, or pass exclude='{param}'"
                )
            names.append(node.name)
