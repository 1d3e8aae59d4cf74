"""These statistics describe an L1,∞-normalized network: norms and zeros of its layers, and norms of its outputs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from tamis.errors import InvalidInput
from tamis.graph import Patterns
from tamis.l1inf.layers import Layer, find_hidden_layers, find_layers


@dataclass(frozen=True)
class LayerStatistics:
    """These figures of a hidden layer are its name, ‖T_l‖_{1,∞} with biases, and its `weights` and exact `zeros`."""

    name: str
    norm: float
    zeros: int
    weights: int

    @property
    def sparsity(self) -> float:
        return self.zeros / self.weights if self.weights else 0.0


@dataclass(frozen=True)
class Statistics:
    """These are the constants that the bounds `tamis.bounds.l1inf_*` need, and the sparsity of the hidden layers.

    Attributes:
        layers: the hidden ones.
        o: the ℓ1-norm of each output's incoming weights with its bias; empty where no layer is left for the output.
    """

    layers: tuple[LayerStatistics, ...]
    o: tuple[float, ...]

    @property
    def k(self) -> int:
        """Return the number of hidden layers."""
        return len(self.layers)

    @property
    def c(self) -> float:
        """Return max_l ‖T_l‖_{1,∞} of the trained network, which is the least c of a class that contains it."""
        return max(layer.norm for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """Return the share of exact zeros among all weights of hidden layers, without biases."""
        weights = sum(layer.weights for layer in self.layers)
        return sum(layer.zeros for layer in self.layers) / weights if weights else 0.0


def statistics(model: nn.Module, exclude: Patterns = None) -> Statistics:
    """Measure the current L1,∞ norms and sparsity of a model's layers.

    Batch normalization is not folded in; `tamis.bounds.l1inf_class.l1inf_constants` does that, and checks that the
    theorems cover the network.

    Args:
        model: any module with linear or convolutional layers.
        exclude: as `L1Inf` takes it. The last of the excluded layers is the output; the others count as nothing.

    Example:
        >>> from tamis.bounds import l1inf_output
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> figures = statistics(model)
        >>> round(l1inf_output(figures.k, figures.c, figures.o).value, 3)
        1.645

    Reference: yang2021l1inf.
    """
    hidden = find_hidden_layers(model, exclude)
    names = {layer.name for layer in hidden}
    free = [layer for layer in find_layers(model) if layer.name not in names]
    # The last of the free layers is the output; others that are free are neither constrained nor the output.
    o = tuple(free[-1].column_norms().tolist()) if free else ()
    return Statistics(tuple(_measure_layer(layer) for layer in hidden), o)


def _measure_layer(layer: Layer) -> LayerStatistics:
    norms = layer.column_norms()
    if not bool(norms.isfinite().all()):
        raise InvalidInput(f"layer '{layer.name}' holds weights that are not finite: it has no norm")
    zeros = int((layer.weight == 0).sum())
    return LayerStatistics(layer.name, float(norms.max()) if len(norms) else 0.0, zeros, layer.weight.numel())
