"""Path-norms of ResNets and what the bounds make of them: Tables 7.1 and 7.2 of the thesis.

Reference: gonon2024thesis.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from experiments.bounds_training import compute_margins, compute_outputs
from tamis.bounds import Bound, cross_entropy_gap, layer_product, margin_bound, rademacher_covering, rademacher_peeling
from tamis.bounds.rademacher_arguments import sigma_of_box
from tamis.bounds.rademacher_predecessors import rademacher_predecessors
from tamis.bounds.shape import GraphShape, read_shape
from tamis.errors import DataNotFound, InvalidInput
from tamis.graph import Network, fold_batch_norm, trace
from tamis.paths import path_norm
from tamis.pruning import prune
from tamis.training import Data, load_data
from tamis.training.models import MODELS, example_input

EXPONENTS = (1, 2, 4)


@dataclass(frozen=True)
class ImageNetPlan:
    """Which graphs to read, for so many images without entries above `radius` in magnitude."""

    models: tuple[str, ...] = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
    n: int = 1_268_355
    radius: float = 2.64


FULL_IMAGENET = ImageNetPlan()
SHORT_IMAGENET = ImageNetPlan(models=FULL_IMAGENET.models[:3])


@dataclass(frozen=True)
class PathNormPlan:
    """Which networks to prune, and on what to measure them.

    Attributes:
        models: published networks by name.
        amounts: fractions of all weights to set to zero, by magnitude.
        n: how many images they were trained on, for the gap of the cross-entropy.
        train: some of these, for the margins.
        test: other images, to measure the gap itself.
        delta: how likely the margin bound may fail.
    """

    models: tuple[str, ...] = ("resnet20", "resnet32")
    amounts: tuple[float, ...] = (0.0, 0.5, 0.8, 0.9)
    n: int = 50_000
    train: str = "cifar10:train[:5000]"
    test: str = "cifar10:test[:1000]"
    delta: float = 0.05


FULL_PATH_NORMS = PathNormPlan()
SHORT_PATH_NORMS = PathNormPlan(train="cifar10:train[:1000]", test="cifar10:test[:500]")


# -- Table 7.1: the constants ------------------------------------------------------------------------------------------


def run_table_7_1(plan: ImageNetPlan) -> dict[str, Any]:
    """Compute 4BC/√n for each graph, with C of Theorem 4.4.1 and with that of Remark 4.4.1."""
    rows = []
    for name in plan.models:
        shape = read_shape(trace(MODELS[name]().eval(), example_input(name)))
        rows.append({"model": name, "shape": asdict(shape), **compute_constants(shape, plan)})
    return {"plan": asdict(plan), "rows": rows}


def compute_constants(shape: GraphShape, plan: ImageNetPlan) -> dict[str, float]:
    """Compute 4BC/√n, what is multiplied by L‖Φ‖₁, with the C of the theorem ("general") and of the remark
    ("sharpened").
    """
    sigma = sigma_of_box(plan.n, plan.radius)
    terms = rademacher_peeling(shape, path_norm=1.0, sigma=sigma).terms
    return {name: 4 * sigma / plan.n * terms[f"constant_{name}"] for name in ("general", "sharpened")}


# -- Table 7.2: path-norms ---------------------------------------------------------------------------------------------


def run_table_7_2(plan: PathNormPlan, folder: Path) -> dict[str, Any]:
    """Return path-norms, dense and pruned, and what the bounds say of these networks, in decimal logarithms."""
    nets = {name: load_published(name, folder) for name in plan.models}  # a folder without them is noticed first
    train, test = load_data(plan.train), load_data(plan.test)
    rows = [
        {"model": name, "pruned": amount, **compute_figures(_prune(net, amount), plan, train, test)}
        for name, net in nets.items()
        for amount in plan.amounts
    ]
    return {"plan": asdict(plan), "radius": compute_radius(train), "rows": rows}


def load_published(name: str, folder: Path) -> Network:
    """Load a published CIFAR-10 network."""
    path = folder / f"{name}_cifar10.safetensors"
    if not path.exists():
        raise DataNotFound(f"there is no '{path.name}' in '{folder}': name the folder of the networks with --models")
    model = MODELS[name]()
    model.load_state_dict(load_file(path))
    return trace(model.eval(), example_input(name))


def compute_radius(data: Data) -> float:
    """Return the largest entry that any normalised image can have, whatever it shows."""
    if not data.mean:
        raise InvalidInput(f"'{data.name}' needs a mean and a std, which say how large its inputs can be")
    return max(max(mean, 1 - mean) / std for mean, std in zip(data.mean, data.std, strict=True))


def compute_figures(net: Network, plan: PathNormPlan, train: Data, test: Data) -> dict[str, Any]:
    """Return what is known of one network."""
    shape, product = read_shape(net), layer_product(net)
    log_norms = {q: path_norm(net, q, q, log=True) for q in EXPONENTS}
    sigma = sigma_of_box(plan.n, compute_radius(train))
    complexities = {
        "peeling": rademacher_peeling(shape, log_path_norm=log_norms[1], sigma=sigma),
        "covering": rademacher_covering(shape, log_path_norm=log_norms[1], sigma=sigma),
        # Where Π is at most R, ‖Φ‖₁ is as well: what is known of a ball of path-norms holds for one of products.
        "peeling, by Π": rademacher_peeling(shape, log_path_norm=product.log_value, sigma=sigma),
        **rademacher_predecessors(net, sigma),
    }
    logits = {data.name: compute_outputs(fold_batch_norm(net), data.normalised()) for data in (train, test)}
    margins = compute_margins(logits[train.name], train.labels)
    few = rademacher_peeling(shape, log_path_norm=log_norms[1], sigma=sigma_of_box(len(train), compute_radius(train)))
    return {
        "log10 ‖Φ‖_q": {str(q): log_norm / math.log(10) for q, log_norm in log_norms.items()},
        "log10 Π": product.log10,
        "gap": {name: state_bound(cross_entropy_gap(bound, plan.n)) for name, bound in complexities.items()},
        "margin": _state_margin(margin_bound(few, margins, len(train), plan.delta), margins),
        "train": _measure(logits[train.name], train.labels),
        "test": _measure(logits[test.name], test.labels),
    }


def state_bound(bound: Bound) -> dict[str, Any]:
    """Return the decimal logarithm of a bound, whether it says anything, and where it stands."""
    return {"log10": bound.log10, "informative": bound.informative, "source": bound.source}


def _state_margin(bound: Bound, margins: Tensor) -> dict[str, Any]:
    return {
        "value": bound.value,
        "informative": bound.informative,
        "log10 γ": bound.terms["log_gamma"] / math.log(10),
        **{name: bound.terms[name] for name in ("margin_loss", "complexity", "confidence", "grid")},
        "largest margin": float(margins.max()),
    }


def _measure(logits: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "error": float((logits.argmax(1) != labels).double().mean()),
        "cross-entropy": float(cross_entropy(logits.double(), labels)),
    }


def _prune(net: Network, amount: float) -> Network:
    return prune(net, amount, by="magnitude", progress=False).network if amount else net
