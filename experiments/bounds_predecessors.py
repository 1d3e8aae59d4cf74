"""The bounds of Table 4.1 of the thesis side by side, on networks that all of them cover.

Fully connected ReLU networks without biases and with one output tell even digits from odd ones. Compared is
R/(n‖Φ‖₁): a bound of the Rademacher complexity, per sample and unit of path-norm, where 1 is trivial on [−1, 1]^d.

Reference: gonon2024thesis.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from experiments.bounds_training import Batches, compute_outputs, fit, make_perceptron
from tamis.bounds import Bound, exp_rounded_up, layer_product, rademacher_covering, rademacher_peeling
from tamis.bounds.rademacher_arguments import sigma_of_box
from tamis.bounds.rademacher_predecessors import rademacher_predecessors
from tamis.bounds.shape import read_shape
from tamis.graph import Network, trace
from tamis.paths import path_norm
from tamis.training import load_data


@dataclass(frozen=True)
class PredecessorPlan:
    """Networks of these depths, a linear one among them, and how they are trained."""

    depths: tuple[int, ...] = (1, 2, 4, 8)
    width: int = 32
    epochs: int = 20
    batch: int = 50
    learning_rate: float = 0.003
    data: str = "digits:train"
    seed: int = 0


FULL = PredecessorPlan()
SHORT = PredecessorPlan(epochs=5)


def run_table_4_1(plan: PredecessorPlan) -> dict[str, Any]:
    """Return every bound for each depth."""
    return {"plan": asdict(plan), "rows": [_measure_row(plan, depth) for depth in plan.depths]}


def bound_complexities(net: Network, n: int, radius: float) -> dict[str, Bound]:
    """Return bounds of the Rademacher complexity of the network's path-norm ball, those of the thesis first."""
    shape, log_norm, sigma = read_shape(net), path_norm(net, log=True), sigma_of_box(n, radius)
    return {
        "peeling": rademacher_peeling(shape, log_path_norm=log_norm, sigma=sigma),
        "covering": rademacher_covering(shape, log_path_norm=log_norm, sigma=sigma),
        **rademacher_predecessors(net, sigma),
    }


def _measure_row(plan: PredecessorPlan, depth: int) -> dict[str, Any]:
    data = load_data(plan.data)
    inputs, odd = data.normalised().flatten(1), (data.labels % 2).float()
    torch.manual_seed(plan.seed)
    model = make_perceptron([inputs.shape[1], *[plan.width] * (depth - 1), 1], bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=plan.learning_rate)
    fit(
        model,
        optimizer,
        lambda outputs, y: binary_cross_entropy_with_logits(outputs[:, 0], y),
        Batches(inputs, odd, plan.epochs, plan.batch, plan.seed),
    )
    net = trace(model.eval(), inputs[:1])
    log_norm = path_norm(net, log=True)
    bounds = bound_complexities(net, len(inputs), radius=1.0)  # digits are on the scale 0..1
    return {
        "depth": depth,
        "n": len(inputs),
        "error": float(((compute_outputs(net, inputs)[:, 0] > 0) != (odd > 0)).double().mean()),
        "log10 ‖Φ‖₁": log_norm / math.log(10),
        "log10 Π": layer_product(net).log10,
        "R/(n‖Φ‖₁)": {
            name: exp_rounded_up(bound.log_value - log_norm - math.log(len(inputs))) for name, bound in bounds.items()
        },
        "informative": [name for name, bound in bounds.items() if bound.informative],
    }
