"""For each layer of a network, these figures say what became of it: weights, zeros, bits, bytes and error."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tamis.artifact import Compressed, File, errors_of, stored_bytes


@dataclass(frozen=True)
class Layer:
    """A layer is one parameter of more than one dimension, before and after.

    Attributes:
        name: as the user's state_dict has it.
        weights: how many numbers it has.
        zeros: how many of them are zero now.
        before, after: its bytes, as floats and in the file.
        error: of its outputs on the calibration data, relative, as the last step that chose it says; None: none did.
    """

    name: str
    weights: int
    zeros: int
    before: int
    after: int
    error: float | None

    @property
    def bits(self) -> float:
        """Return how many bits each weight takes in the file, on average."""
        return 8 * self.after / max(self.weights, 1)

    @property
    def sparsity(self) -> float:
        """Return the fraction of weights that is zero."""
        return self.zeros / max(self.weights, 1)


def list_layers(small: Compressed, file: str | Path | File) -> tuple[Layer, ...]:
    """List the layers of a small network that was read from a file, in their order.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2)), torch.zeros(1, 64))
        >>> tamis.prune(net, 0.5).save("small.tamis")
        >>> first, last = list_layers(tamis.load("small.tamis", net), "small.tamis")
        >>> first.name, last.name, first.bits < 32
        ('0.weight', '2.weight', True)
    """
    sizes, errors = stored_bytes(file, small.params), errors_of(small.recipe)
    # Matrices and kernels; biases and norms take too few bytes to have a bar of their own.
    matrices = {name: value for name, value in small.params.items() if value.dim() > 1}
    return tuple(
        Layer(
            name,
            value.numel(),
            value.numel() - int(value.count_nonzero()),
            value.nbytes,
            sizes[name],
            errors.get(name),
        )
        for name, value in matrices.items()
    )
