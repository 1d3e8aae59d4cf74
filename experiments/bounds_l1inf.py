"""The bounds of L1,∞ weight normalization on the synthetic experiments of its paper.

Networks are trained with the incoming weights and the bias of every hidden neuron scaled back to an ℓ1-norm of c after
every step. Scaling keeps a neuron in the class that the theorems speak of, and makes no weight zero; the projection
onto the ℓ1-ball, which the paper trains with and which does, is another method.

Deviations from the paper:
    1. Inputs are clipped to [−1, 1], where the theorems need them (ERRATA 24). Labels and targets are those of the
       inputs before clipping.
    2. In classification, ζ is drawn for each sample (ERRATA 24). In regression, z has an entry more than x, for the
       last of x; targets are divided by 1,000, nearly their standard deviation, and clipped to [−3, 3], because
       Theorem 5 needs a largest target.
    3. Adam with a step of 0.001·min(1, c) for hidden layers and 0.001·max(1, c^−k) for the output layer: hidden signals
       shrink like c^k, and with one step for all a small c leaves the network at the majority class.
    4. A larger sample beside the paper's, to see the bounds fall like 1/√n.

Reference: yang2021l1inf.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.bounds_training import Batches, Loss, compute_margins, compute_outputs, fit, make_perceptron
from tamis.bounds import (
    Bound,
    l1inf_classification,
    l1inf_lipschitz_loss,
    l1inf_lipschitz_vector_loss,
    l1inf_output,
    l1inf_rademacher,
    l1inf_regression,
)
from tamis.bounds.l1inf_class import L1InfConstants, l1inf_constants
from tamis.bounds.margin import margin_loss
from tamis.graph import trace

LARGEST_TARGET = 3.0
INSIDE = 1 - 1e-6  # a little inside the ball, so that rounding does not lead out of it
Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class L1InfPlan:
    """Sizes of training sets with their epochs, and values of c by experiment; None trains without normalization."""

    sizes: tuple[tuple[int, int], ...] = ((500, 80), (20_000, 4))
    classification: tuple[float | None, ...] = (None, 2.0, 1.0, 0.5, 0.16)
    regression: tuple[float | None, ...] = (None, 4.0, 1.0, 0.25)
    batch: int = 100
    test: int = 5_000
    delta: float = 0.05
    seed: int = 0


FULL = L1InfPlan()
SHORT = L1InfPlan(sizes=((500, 80),), test=1_000)


@dataclass(frozen=True)
class Experiment:
    """A network, what it is trained on, and a second loss, which is Lipschitz, for the lemmas.

    Attributes:
        widths: of the layers.
        draw: samples, independent of one another.
        loss: what is trained and what the theorem bounds.
        lipschitz_loss: what the lemma bounds.
        guess: both losses of the best constant guess: a bound of use is below.
    """

    widths: tuple[int, ...]
    draw: Draw
    loss: Loss
    lipschitz_loss: Loss
    guess: Callable[[Tensor], tuple[float, float]]


def run_l1inf(plan: L1InfPlan) -> dict[str, Any]:
    """Return errors and bounds of both experiments, for every size and every c."""
    found: dict[str, Any] = {"plan": asdict(plan)}
    for name, experiment in (("classification", make_classification()), ("regression", make_regression(plan.seed))):
        cs = plan.classification if name == "classification" else plan.regression
        found[name] = [row for n, epochs in plan.sizes for row in _measure_rows(experiment, plan, n, epochs, cs)]
    return found


def make_classification() -> Experiment:
    """Make an experiment with two classes that depend on four of 500 inputs, and a network 500-100-50-20-2."""
    return Experiment(
        (500, 100, 50, 20, 2),
        draw_classified_samples,
        cross_entropy,
        lambda logits, labels: torch.tensor(margin_loss(compute_margins(logits, labels), log_gamma=0.0)),
        guess_of_classes,
    )


def make_regression(seed: int) -> Experiment:
    """Make an experiment with a linear function of 100 of 1,000 inputs, and a network 1000-300-1."""
    beta = torch.empty(100).uniform_(0.15, 150, generator=torch.Generator().manual_seed(seed))
    return Experiment(
        (1000, 300, 1),
        lambda n, generator: draw_linear_samples(n, beta, generator),
        lambda outputs, targets: (outputs[:, 0] - targets).square().mean() / 2,
        lambda outputs, targets: (outputs[:, 0] - targets).abs().mean(),
        lambda y: (float(y.var(correction=0)) / 2, float((y - y.median()).abs().mean())),
    )


def draw_classified_samples(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw x_ij ~ N(ζ_i/2, 1/4), and label 1 where exp(x_1) + x_2² + 5 sin(x_3 x_4) > 3."""
    zeta = torch.randn(n, 1, generator=generator)
    x = (zeta + torch.randn(n, 500, generator=generator)) / 2
    labels = x[:, 0].exp() + x[:, 1].square() + 5 * (x[:, 2] * x[:, 3]).sin() - 3 > 0
    return x.clamp(-1, 1), labels.long()


def draw_linear_samples(n: int, beta: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw x_1 = z_1 and x_j = z_j + 0.2 (z_{j+1} + z_{j−1}) from normal z, and y ~ N(xᵀβ, 1), in thousands and
    clipped.
    """
    z = torch.randn(n, 1001, generator=generator)
    x = z[:, :-1].clone()
    x[:, 1:] += 0.2 * (z[:, 2:] + z[:, :-2])
    y = x[:, : len(beta)] @ beta + torch.randn(n, generator=generator)
    return x.clamp(-1, 1), (y / 1000).clamp(-LARGEST_TARGET, LARGEST_TARGET)


def guess_of_classes(labels: Tensor) -> tuple[float, float]:
    """Return the cross-entropy of guessing the frequencies of two classes, and the error rate of guessing the larger
    one.
    """
    rarer = float(labels.double().mean())
    rarer = min(rarer, 1 - rarer)
    return -sum(p * math.log(p) for p in (rarer, 1 - rarer) if p > 0), rarer


def train_network(
    experiment: Experiment, inputs: Tensor, targets: Tensor, c: float | None, epochs: int, plan: L1InfPlan
) -> nn.Sequential:
    """Train a network whose hidden neurons have incoming weights, with the bias, of ℓ1-norm at most c."""
    torch.manual_seed(plan.seed)
    model = make_perceptron(experiment.widths)
    hidden = [layer for layer in model if isinstance(layer, nn.Linear)][:-1]
    small = min(1.0, c) if c is not None else 1.0
    optimizer = torch.optim.Adam(
        [
            {"params": [parameter for layer in hidden for parameter in layer.parameters()], "lr": 0.001 * small},
            {"params": list(model[-1].parameters()), "lr": 0.001 * small ** -len(hidden)},
        ],
        eps=1e-12,  # gradients of hidden layers shrink with c
    )

    def after_step() -> None:
        if c is not None:
            scale_back(hidden, c)

    after_step()
    fit(model, optimizer, experiment.loss, Batches(inputs, targets, epochs, plan.batch, plan.seed), after_step)
    return model


@torch.no_grad()
def scale_back(layers: list[nn.Linear], c: float) -> None:
    """Shrink, where they are, the incoming weights and biases of those neurons whose ℓ1-norm is above c."""
    for layer in layers:
        factor = (INSIDE * c / (layer.weight.abs().sum(1) + layer.bias.abs())).clamp(max=1)
        layer.weight.mul_(factor[:, None])
        layer.bias.mul_(factor)


def _measure_rows(
    experiment: Experiment, plan: L1InfPlan, n: int, epochs: int, cs: tuple[float | None, ...]
) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(plan.seed)
    (inputs, targets), test = experiment.draw(n, generator), experiment.draw(plan.test, generator)
    found = []
    for c in cs:
        model = train_network(experiment, inputs, targets, c, epochs, plan)
        outputs = {"train": compute_outputs(model, inputs, 1000), "test": compute_outputs(model, test[0], 1000)}
        wanted = {"train": targets, "test": test[1]}
        net_constants = l1inf_constants(trace(model.eval(), inputs[:1]))
        found.append(
            {
                "n": n,
                "c": c,
                "c of the network": net_constants.c,
                "output norms": list(net_constants.o),
                "largest output": max(float(values.abs().max()) for values in outputs.values()),
                "loss": {name: float(experiment.loss(outputs[name], wanted[name])) for name in outputs},
                "Lipschitz loss": {
                    name: float(experiment.lipschitz_loss(outputs[name], wanted[name])) for name in outputs
                },
                **_measure_accuracies(outputs, wanted),
                **_state_bounds(compute_bounds(net_constants, c, n, plan.delta), n, experiment.guess(targets)),
            }
        )
    return found


def compute_bounds(network: L1InfConstants, c: float | None, n: int, delta: float) -> list[Bound]:
    """Return Lemma 2, Theorem 1, and the lemma and the theorem on generalization, for the class of a network.

    Args:
        network: its constants.
        c: the class that it was trained in; None takes the smallest that it lies in, which is not fixed beforehand.
        n: the number of samples.
        delta: δ, how likely each of the bounds may fail.
    """
    k, inputs, largest = network.k, network.inputs, max(network.o)
    c = network.c if c is None else c
    o, delta_of_o = bound_output_norm(largest, delta)
    layers = max(1.0, c**k)
    first = [l1inf_output(k, c, network.o), l1inf_rademacher(k, c, largest, inputs, n)]
    if len(network.o) == 1:
        most = LARGEST_TARGET + o * layers  # no absolute error exceeds it
        return [
            *first,
            l1inf_lipschitz_loss(
                L1InfConstants(k, c, (o,), inputs), n, delta_of_o, lipschitz_loss=1.0, largest_loss=most
            ),
            l1inf_regression(L1InfConstants(k, c, (largest,), inputs), n, delta, LARGEST_TARGET),
        ]
    outputs = (o,) * len(network.o)
    return [
        *first,
        # The margin-loss with γ = 1: a margin changes by at most √2 times the Euclidean distance of the logits.
        l1inf_lipschitz_vector_loss(
            L1InfConstants(k, c, outputs, inputs), n, delta_of_o, math.sqrt(2), largest_loss=1.0
        ),
        l1inf_classification(L1InfConstants(k, c, network.o, inputs), n, delta),
    ]


def _state_bounds(found: list[Bound], n: int, guess: tuple[float, float]) -> dict[str, Any]:
    """Return the bounds by their places in the paper, and how many samples the last of them would need to be of use.

    "Informative" is one below the largest loss that is possible; one of use is below the loss of the best constant
    guess. All but Lemma 2 fall like 1/√n.
    """
    return {
        "bounds": {
            bound.source.split(", ")[1]: {"value": bound.value, "informative": bound.informative} for bound in found
        },
        "guess": {"loss": guess[0], "Lipschitz loss": guess[1]},
        "log10 samples for a bound below a guess": math.log10(n) + 2 * (found[-1].log10 - math.log10(guess[0])),
    }


def bound_output_norm(norm: float, delta: float) -> tuple[float, float]:
    """Return a bound of the output layer's norm that does not depend on the samples, and the δ that is left for it.

    The lemmas need o beforehand. All powers 2^j, j ≥ 0, are taken at once, each with δ/((j+1)(j+2)); these sum up to δ.
    """
    j = max(0, math.ceil(math.log2(norm))) if norm > 0 else 0
    return 2.0**j, delta / ((j + 1) * (j + 2))


def _measure_accuracies(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> dict[str, Any]:
    if targets["train"].is_floating_point():
        return {}
    return {
        "accuracy": {name: float((outputs[name].argmax(1) == targets[name]).double().mean()) for name in outputs},
        "majority": float(targets["test"].double().mean().sub(0.5).abs().add(0.5)),
    }
