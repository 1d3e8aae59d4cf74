"""Coordinates of θ in the thesis' sense are parameters that are factors of the products along paths."""

from __future__ import annotations

from tamis.errors import InvalidInput
from tamis.graph import Network, fold_batch_norm, is_shape_arithmetic
from tamis.graph.ops import Entrywise, describe

# What makes a tensor proportional to its first argument, entry by entry, where the others depend on no parameter.
PROPORTIONAL = (Entrywise.NEGATION, Entrywise.QUOTIENT, Entrywise.RESHAPE, Entrywise.MOVE)


def path_coordinates(net: Network) -> frozenset[str]:
    """Return trainable parameters that meet data only as factors: a weight, a bias, or one of them times a constant.

    A batch-norm's γ and β, and a bias that it absorbs, are terms of the folded bias s·b + β − s·μ and so are not among
    them; the weights before it, which it multiplies by s, are.
    """
    if not isinstance(net, Network):
        raise InvalidInput(f"path_coordinates needs a Network, got {type(net).__name__}: trace the model first")
    folded = fold_batch_norm(net)
    survey = _Survey(folded)
    for name in folded.weights_of_data_nodes:
        survey.factors_of(name)
    return net.trainable - survey.others - survey.multiplied()


class _Survey:
    """A survey walks back from the weights that data meets to the parameters that they are computed from."""

    def __init__(self, net: Network) -> None:
        self.net = net
        self.others: set[str] = set()  # parameters that are more than a factor somewhere
        self.pairs: list[tuple[frozenset[str], frozenset[str]]] = []  # factors of one product

    def factors_of(self, name: str) -> frozenset[str]:
        """Return the parameters that a fixed tensor is proportional to."""
        if name in self.net.trainable:
            return frozenset([name])
        node = self.net.node.get(name)
        if node is None or is_shape_arithmetic(node.target):
            return frozenset()
        sides = [self.factors_of(source) for source in node.references]
        entrywise = describe(node).entrywise(node)
        if entrywise is Entrywise.PRODUCT:
            self.pairs += [(a, b) for i, a in enumerate(sides) for b in sides[:i] if a and b]
            return frozenset().union(*sides)
        if entrywise in PROPORTIONAL and sides[1:] == [frozenset()] * len(sides[1:]):
            return sides[0] if sides else frozenset()
        # Anything else, a sum above all, makes its parameters terms rather than factors.
        self.others.update(source for name in node.references for source in self.net.trainable_sources(name))
        return frozenset()

    def multiplied(self) -> frozenset[str]:
        """Return parameters that are multiplied with one another: neither is a coordinate if both could be."""
        # Asked at the end, since a factor may turn out later to be more than that elsewhere, which frees the other one.
        free = [(a - self.others, b - self.others) for a, b in self.pairs]
        return frozenset().union(*(a | b for a, b in free if a and b))
