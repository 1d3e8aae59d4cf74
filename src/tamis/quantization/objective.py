"""The error of a layer is a quadratic function of its weights, known from Gram matrices without the data.

‖Yw − Ỹq‖² = qᵀGq − 2 qᵀb + ‖Yw‖²      with G = ỸᵀỸ, b = ỸᵀYw = (G + E) w.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.layerwise import Gram
from tamis.quantization.feedback import Recursion


@dataclass(frozen=True)
class Objective:
    """An objective holds G, (problems, features, features), and b, (problems, neurons, features)."""

    inputs: Tensor
    products: Tensor

    @classmethod
    def of(cls, weights: Tensor, gram: Gram, offset: Tensor | None = None) -> Objective:
        """Set up the objective for neurons with the original weights w, (problems, neurons, features).

        `offset` is what each neuron's output is to have beyond Yw, (problems, neurons).
        """
        # Transposed: E = Ỹᵀ(Y − Ỹ) is not symmetric, and b = (G + E) w for each row w.
        products = weights @ (gram.inputs + gram.drift).mT
        if offset is not None:
            products = products + offset[:, :, None] * gram.input_sums[:, None, :]
        return cls(gram.inputs, products)

    def repeat_neurons(self, times: int) -> Objective:
        """Repeat every neuron so many times, to compare several choices at once."""
        return Objective(self.inputs, self.products.repeat(1, times, 1))

    def error(self, chosen: Tensor) -> Tensor:
        """Compute ‖Yw − Ỹq‖² − ‖Yw‖² of each neuron: the second term is the same for all choices."""
        # qᵀGq − 2qᵀb, row by row, in one product with G.
        return ((chosen @ self.inputs - 2 * self.products) * chosen).sum(2)

    def scale_terms(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Compute numerator and denominator of the best factor of q for each neuron, qᵀb / qᵀGq.

        They stay apart because neurons that share a scale add them up before the division.
        """
        return (chosen * self.products).sum(2), (chosen @ self.inputs * chosen).sum(2)

    def descent(self, chosen: Tensor) -> Recursion:
        """Set up a pass of coordinate descent, which puts every weight in turn on the best level given all the others.

        With z_t = q_t + (b − Gq)_t / G_tt for the weights as they are when its turn comes, rounding z_t is that best
        level; those before it have moved by q_j − q'_j meanwhile. So it is a recursion as well, and never raises the
        error. A feature that is always zero keeps its weight.
        """
        norms = self.inputs.diagonal(dim1=1, dim2=2)
        inverse = torch.where(norms > 0, 1 / norms, 0.0)
        # b − Gq is half of minus the gradient; of a parabola, the level nearest to its minimum is the best one.
        gradient = self.products - chosen @ self.inputs
        return Recursion(chosen + gradient * inverse[:, None, :], chosen, self.inputs * inverse[:, :, None])
