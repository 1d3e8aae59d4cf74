"""Lemmas 4.2 to 4.5 of Chee and Loustau bound how much a network's loss rises when the prior perturbs its weights.

An expert w* of L layers, ReLU between them and a softmax after the last, is perturbed by w − w* drawn from the prior
shifted to it. With s_l = E‖x_l‖ and e_l = E‖x_l − x*_l‖ the recursions of Lemmas 4.3 and 4.4 give

    E H(y, g_w(x)) − H(y, g_w*(x)) ≤ 2 (C¹_L s_{L−1} + ‖w*_L‖ e_{L−1} + C²_L) = 2 (pen₁ ‖x‖ + pen₂).

Numbered departures from the text:
1. The closed forms of pen₁ and pen₂ drop terms; the recursions are computed layer by layer (ERRATA 2).
2. Lemma 4.3 is printed with C_l = E‖ReLU(w_l x)‖. |ReLU(a + b) − ReLU(a)| ≤ |b|, not ReLU(b): the recursion of e_l
   needs D_l = E‖w_l x‖, which is up to √2 times as large. That of s_l, and the last layer, do with C_l.
3. The constants are those of the prior, by Jensen: D¹_l ≤ τ√n_l and C¹_l ≤ τ√(n_l/2) for a dense layer of n_l outputs,
   τ√(f s²) and τ√(f s²/2) for a convolution with f filters of s×s (ERRATA 3). Where a truncation at R leaves
   perturbations off-centre, their mean M counts as well: E‖w_l x‖² ≤ Σ variances + ‖M‖², and C¹_l is not below D¹_l.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tamis.bounds.arguments import check_count
from tamis.bounds.bound import SMALLEST, exp_rounded_up, log_of_product, log_of_sum, log_rounded_up, round_up
from tamis.bounds.regret_divergence import Floats, as_expert_weights, mass_up_to
from tamis.errors import InvalidInput


@dataclass(frozen=True)
class PerturbedLayer:
    """A perturbed layer holds what the recursions need to know of one layer of an expert and of its perturbation.

    Attributes:
        norm: ‖w*_l‖, the operator norm.
        bias_norm: ‖ReLU(b*_l)‖.
        c1: C¹_l, a bound of max_{‖x‖=1} E‖ReLU(w_l x)‖, and of the same for −w_l.
        c2: C²_l, a bound of E‖ReLU(b_l)‖, and of the same for −b_l.
        d1: D¹_l, a bound of max_{‖x‖=1} E‖w_l x‖.
        d2: D²_l, a bound of E‖b_l‖.
    """

    norm: float
    bias_norm: float
    c1: float
    c2: float
    d1: float
    d2: float


@dataclass(frozen=True)
class Penalties:
    """The loss of an expert rises by at most 2 (pen1 ‖x‖ + pen2) in expectation, for an input x."""

    pen1: float
    pen2: float

    def rise(self, input_norms: Sequence[float]) -> float:
        """Return the bound of the rise over a sequence of inputs, rounded up: 2 pen₁ Σ_t ‖x_t‖ + 2 T pen₂."""
        if not len(input_norms):
            return 0.0
        # By logarithms, since pen₁ of a deep expert may be beyond float64 where the norms are tiny, or the reverse.
        log_norms = log_of_sum(*map(log_rounded_up, input_norms))
        of_inputs = log_of_product(math.log(2), log_rounded_up(self.pen1), log_norms)
        return exp_rounded_up(
            log_of_sum(of_inputs, log_of_product(math.log(2 * len(input_norms)), log_rounded_up(self.pen2)))
        )


@dataclass(frozen=True)
class Affine:
    """An affine function is slope · ‖x‖ + offset, for the norm ‖x‖ of the input."""

    slope: float
    offset: float


def dense_layer(weight: ArrayLike, bias: ArrayLike | None, tau: float, R: float = math.inf) -> PerturbedLayer:
    """Return a fully connected layer of an expert.

    Args:
        weight: w*_l, (outputs, inputs).
        bias: b*_l, (outputs,); None for a layer without, which is not perturbed there either.
        tau: τ, the scale of the prior.
        R: where the prior is truncated; infinite for not at all.

    Reference: chee2021xnor.
    """
    return _make_layer(weight, bias, tau, R, overlap=1, positions=1)


def convolution_layer(
    kernel: ArrayLike, bias: ArrayLike | None, positions: int, tau: float, R: float = math.inf
) -> PerturbedLayer:
    """Return a convolutional layer of an expert, of any stride, with zero padding or none.

    Args:
        kernel: w*_l, (filters, channels, *window). A pixel lies in at most as many patches as the window has pixels.
        bias: b*_l, (filters,); None for a layer without.
        positions: at how many places each filter is applied.
        tau: τ, the scale of the prior.
        R: where the prior is truncated; infinite for not at all.

    Reference: chee2021xnor.
    """
    check_count("positions", positions)
    window = np.shape(kernel)[2:]
    return _make_layer(kernel, bias, tau, R, overlap=math.prod(window), positions=positions)


def perturbation_penalties(layers: Sequence[PerturbedLayer]) -> Penalties:
    """Compute pen₁ and pen₂ of an expert (Lemma 4.2), by the recursions of Lemmas 4.3 and 4.4 from the first layer on.

    Example:
        >>> last = PerturbedLayer(norm=2.0, bias_norm=0.0, c1=0.1, c2=0.2, d1=0.15, d2=0.3)
        >>> penalties = perturbation_penalties([last])  # rounded up, in the last digits
        >>> round(penalties.pen1, 9), round(penalties.pen2, 9)
        (0.1, 0.2)

    Reference: chee2021xnor.
    """
    if not layers:
        raise InvalidInput("an expert has at least one layer")
    sizes, distances = compute_recursions(layers[:-1])
    size, distance, last = sizes[-1], distances[-1], layers[-1]
    return Penalties(
        pen1=_sum_products_up((last.c1, size.slope), (last.norm, distance.slope)),
        pen2=_sum_products_up((last.c1, size.offset), (last.norm, distance.offset), (1.0, last.c2)),
    )


def compute_recursions(hidden: Sequence[PerturbedLayer]) -> tuple[list[Affine], list[Affine]]:
    """Compute s_l ≥ E‖x_l‖ (16) and e_l ≥ E‖x_l − x*_l‖ (15) for l = 0, 1, …, where s_0 = ‖x‖ and e_0 = 0."""
    # Invariant: after l layers, s_l and e_l are affine in ‖x‖, as both recursions are linear with constants added.
    sizes, distances = [Affine(1.0, 0.0)], [Affine(0.0, 0.0)]
    for layer in hidden:
        size, distance = sizes[-1], distances[-1]
        # ReLU(a + b) ≤ ReLU(a) + ReLU(b): the expert's layer and its perturbation add up in s_l, with C¹ for the
        # second.
        growth = layer.norm + layer.c1
        shift = _sum_products_up((1.0, layer.c2), (1.0, layer.bias_norm))
        sizes.append(
            Affine(_sum_products_up((growth, size.slope)), _sum_products_up((growth, size.offset), (1.0, shift)))
        )
        distances.append(  # printed with C¹ and C²; see departure 2
            Affine(
                _sum_products_up((layer.norm, distance.slope), (layer.d1, size.slope)),
                _sum_products_up((layer.norm, distance.offset), (layer.d1, size.offset), (1.0, layer.d2)),
            )
        )
    return sizes, distances


def _sum_products_up(*products: tuple[float, float]) -> float:
    """Return a sum of products of numbers ≥ 0, rounded up: one that underflows is the smallest number above 0, and not
    0.

    A later layer with large weights would otherwise not bring back what an earlier one with small weights lost.
    """
    return round_up(sum(max(left * right, SMALLEST) for left, right in products if left and right), ulps=8)


@dataclass(frozen=True)
class Moments:
    """Moments of (w − w*)/τ are, for each weight, its mean, the mean of its square, and the larger one-sided half."""

    mean: Floats
    square: Floats
    one_sided: Floats


def perturbation_moments(weights: ArrayLike, tau: float, R: float = math.inf) -> Moments:
    """Compute moments about w* of the prior shifted to w* and truncated to [−R, R]; without truncation 0, 1 and ½.

    In units of τ, so that no power of τ leaves float64. With v = 1/(1 + |w − w*|/τ) at either end they are integrals of
    (t − 1) t^−4 and (t − 1)² t^−4 from 1 to 1/v, that is (1 − v)² (1 + 2v)/6 and (1 − v)³/3.
    """
    shape = np.shape(weights)
    expert = as_expert_weights(weights, tau, R).reshape(shape)
    ends = (R - expert) / tau, (R + expert) / tau
    density = 3 / (mass_up_to(ends[0]) + mass_up_to(ends[1]))
    # x/(1 + x) is 1 − v without what cancels where x is small; at infinity it is 1.
    far = [np.divide(end, 1 + end, out=np.ones_like(end), where=np.isfinite(end)) for end in ends]
    first = [part**2 * (3 - 2 * part) / 6 for part in far]
    second = [part**3 / 3 for part in far]
    return Moments(
        mean=density * (first[0] - first[1]),
        square=density * (second[0] + second[1]),
        one_sided=density * np.maximum(*second),
    )


def _make_layer(
    weight: ArrayLike, bias: ArrayLike | None, tau: float, R: float, overlap: int, positions: int
) -> PerturbedLayer:
    """Return a layer whose weights meet each input number in at most `overlap` places, with biases at `positions`
    places.
    """
    matrix = np.asarray(weight, dtype=np.float64)
    if matrix.ndim < 2:
        raise InvalidInput(f"a layer's weight must have at least two dimensions, got shape {matrix.shape}")
    if not matrix.size:
        raise InvalidInput(f"a layer's weight must not be empty, got shape {matrix.shape}")
    matrix = matrix.reshape(len(matrix), -1)
    moments = perturbation_moments(matrix, tau, R)
    centred = not moments.mean.any()
    variance = float((moments.square - moments.mean**2).sum(0).max())
    # E‖w x‖² for ‖x‖ = 1: the variances weighted by x² are at most the largest column's sum, and the mean adds ‖M x‖².
    # Each input number is met `overlap` times.
    spread = overlap * (variance + (0.0 if centred else np.linalg.norm(moments.mean, 2) ** 2))
    biases = np.zeros(0) if bias is None else np.asarray(bias, dtype=np.float64)
    if bias is not None and biases.shape != (len(matrix),):
        raise InvalidInput(f"the layer has {len(matrix)} outputs or filters, got a bias of shape {biases.shape}")
    shifts = perturbation_moments(biases, tau, R)
    return PerturbedLayer(
        norm=_round_above(math.sqrt(overlap) * _spectral_norm(matrix), matrix.size),
        bias_norm=_round_above(math.sqrt(positions) * _spectral_norm(np.maximum(biases, 0)[:, None]), matrix.size),
        # A symmetric perturbation is positive half of the time, so that ReLU keeps half of the square; one that is
        # off-centre has no such symmetry, and all of it is counted.
        c1=_round_above(tau * math.sqrt(spread / 2 if centred else spread), matrix.size),
        c2=_round_above(tau * math.sqrt(positions * float(shifts.one_sided.sum())), matrix.size),
        d1=_round_above(tau * math.sqrt(spread), matrix.size),
        d2=_round_above(tau * math.sqrt(positions * float(shifts.square.sum())), matrix.size),
    )


def _spectral_norm(matrix: Floats) -> float:
    """Return the largest singular value, scaled by the largest entry: squares of entries may leave float64."""
    largest = float(np.abs(matrix).max(initial=0.0))
    return largest * float(np.linalg.norm(matrix / largest, 2)) if largest else 0.0


def _round_above(number: float, terms: int) -> float:
    """Round up by more than sums of so many terms, or singular values of so many entries, are off."""
    return round_up(number, ulps=16 * (terms + 4))
