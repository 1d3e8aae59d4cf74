"""How far the bounds of pruning lie above what it changes, and what scope "global" leaves of a small network.

    python benchmarks/pruning_bound.py [--store] [--models FOLDER]

Two networks, pruned by Φ with scope "global": the MLP that `tamis train tamis.training.models:mlp --data digits
--epochs 10 --batch 64` trains, on its 360 test digits, and the published ResNet-20 on the first 100 test images of
CIFAR-10. Printed are the largest values over the images: of ‖R_θ(x) − R_θ'(x)‖₁, of `path_metric` with x, of
`path_metric` times max(‖x‖_∞, 1), and of the sum of Φ-costs times that (thesis, (3.19)). The first is the truth; a
bound below it would be wrong, and stops the run.

Then the MLP of docs/pruning.md, "Masks": 100 steps of Adam, pruning by one of six choices, 100 more steps with what is
pruned held at zero; one seed, and accuracy on 360 test digits, of which one is 0.3 %.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measure import store
from safetensors.torch import load_file
from torch import Tensor, nn

import tamis
from tamis.bounds import phi_pruning
from tamis.training import Settings, load_data, train
from tamis.training.digits import digits
from tamis.training.models import mlp, resnet20

FOLDER = Path(__file__).parents[1].parent / "shared" / "models"
AMOUNTS = (0.1, 0.4, 0.8)
CHOICES: dict[str, dict[str, Any]] = {
    "Φ, global": {"amount": 0.8, "by": "phi", "scope": "global"},
    "Φ, layer": {"amount": 0.8, "by": "phi", "scope": "layer"},
    "magnitude, global": {"amount": 0.8, "by": "magnitude", "scope": "global"},
    "magnitude, layer": {"amount": 0.8, "by": "magnitude", "scope": "layer"},
    "random, layer": {"amount": 0.8, "by": "random", "scope": "layer", "seed": 0},
    "Φ, global, 60%": {"amount": 0.6, "by": "phi", "scope": "global"},
}
STEPS = 100


def trained_mlp() -> nn.Module:
    """What the command trains."""
    torch.manual_seed(0)
    return train(mlp(), load_data("digits"), Settings(epochs=10, batch=64), progress=False).model.eval()


def published(folder: Path) -> nn.Module:
    """The ResNet-20 of 91.73%."""
    model = resnet20()
    model.load_state_dict(load_file(folder / "resnet20_cifar10.safetensors"))
    return model.eval()


def bounds(model: nn.Module, x: Tensor) -> dict[str, Any]:
    """The change and its bounds, the largest over the inputs, for each amount."""
    net = tamis.trace(model, x[:1])
    with torch.no_grad():
        before = net(x)
    radius = max(float(x.abs().max()), 1.0)
    found: dict[str, Any] = {"images": len(x), "‖R(x)‖₁, mean": float(before.abs().sum(1).mean())}
    for amount in AMOUNTS:
        small = tamis.prune(net, amount, by="phi", scope="global")
        with torch.no_grad():
            change = (before - small.network(x)).abs().sum(1)
        at_x = torch.as_tensor(tamis.path_metric(net, small.network, x))
        row = {
            "change": float(change.max()),
            "path_metric with x": float(at_x.max()),
            "path_metric": float(tamis.path_metric(net, small.network)) * radius,
            "sum of Φ-costs": phi_pruning(net, small.masks, radius).value,
        }
        assert bool((change <= at_x).all()) and list(row.values()) == sorted(row.values()), "a bound is violated"
        found[f"{amount:.0%}"] = row
    return found


def fine_tuned(choice: dict[str, Any]) -> dict[str, Any]:
    """Accuracies before and after pruning and after training on, as in docs/pruning.md."""
    (x, y), (test_x, test_y) = digits("train"), digits("test")
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def fit() -> float:
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return right(model)

    def right(network: Any) -> float:
        with torch.no_grad():
            return (network(test_x).argmax(1) == test_y).double().mean().item()

    dense = fit()
    small = tamis.prune(tamis.trace(model, x[:1]), **choice)
    first = small.masks["linear1.weight"]
    small.masks.hold(model, optimizer)
    return {
        **choice,
        "left in the first layer": int(first.sum()),
        "of": first.numel(),
        "dense": dense,
        "pruned": right(small.network),
        "tuned": fit(),
    }


def report(figures: dict[str, Any]) -> None:
    """Both tables."""
    for name, found in figures["bounds"].items():
        print(f"{name}, {found['images']} images, ‖R(x)‖₁ is {found['‖R(x)‖₁, mean']:.1f} in the mean")
        for amount, row in ((f"{amount:.0%}", found[f"{amount:.0%}"]) for amount in AMOUNTS):
            print(f"  {amount:>4} pruned: " + ", ".join(f"{what} {value:.4g}" for what, value in row.items()))
    for name, row in figures["fine-tuned"].items():
        print(
            f"{name:18} {row['left in the first layer']:5} of {row['of']} left in the first layer, "
            f"{row['dense']:.1%} dense, {row['pruned']:.1%} pruned, {row['tuned']:.1%} tuned"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=FOLDER, help="of resnet20_cifar10.safetensors")
    parser.add_argument("--store", action="store_true", help="write docs/results/pruning_bound.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {
        "bounds": {
            "MLP, digits": bounds(trained_mlp(), load_data("digits:test").normalised()),
            "ResNet-20, CIFAR-10": bounds(published(arguments.models), load_data("cifar10:test[:100]").normalised()),
        },
        "fine-tuned": {name: fine_tuned(choice) for name, choice in CHOICES.items()},
    }
    report(figures)
    if arguments.store:
        print(f"\nstored in {store('pruning_bound', figures)}")


if __name__ == "__main__":
    main()
