"""How long path quantities take, as ratios to the passes they cannot do without.

    python benchmarks/paths.py [--store] [resnet18 resnet50 resnet152]

Two floors, per network: the arithmetic of one float64 forward pass (one backward pass more for the costs), and reading
the weights once. So `path_norm` is measured against a float64 forward pass of the model itself at batch 1, `path_costs`
against forward + backward, all on one thread, in CPU seconds, the best of several rounds in which they take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import best_cpu_seconds, store

import tamis
from tamis.training.models import MODELS, example_input

GOAL = 1.5


def measure(name: str, rounds: int) -> dict[str, float]:
    """CPU seconds of every task for one network."""
    torch.manual_seed(0)
    model, x = MODELS[name]().eval(), example_input(name, 1)
    net = tamis.trace(model, x)
    other = net.with_params({n: v * (v.abs() > v.abs().median()) for n, v in net.params.items() if v.dim() > 1})
    double, x_double = MODELS[name]().double().eval(), x.double()

    def forward() -> None:
        with torch.no_grad():
            double(x_double)

    def forward_and_backward() -> None:
        double.zero_grad()
        double(x_double).sum().backward()

    # Tasks that are compared take turns; others do not stand between them, since they leave memory in another state.
    groups: list[dict[str, Callable[[], Any]]] = [
        {
            "forward": forward,
            "path_norm": lambda: tamis.path_norm(net, log=True),
            "path_norm q=2": lambda: tamis.path_norm(net, q=2, log=True),
        },
        {"forward+backward": forward_and_backward, "path_costs": lambda: tamis.path_costs(net)},
        {"path_metric, pruned": lambda: tamis.path_metric(net, other, log=True)},
        {"rescale": lambda: tamis.rescale(net)},
        {"normalize": lambda: tamis.normalize(net)},
        {"trace": lambda: tamis.trace(model, x)},
    ]
    seconds: dict[str, float] = {}
    for tasks in groups:
        seconds |= best_cpu_seconds(tasks, rounds)
    return seconds


def report(name: str, seconds: dict[str, float]) -> None:
    """A table of seconds and ratios."""
    print(f"\n{name}")
    against = {"path_norm": "forward", "path_norm q=2": "forward", "path_costs": "forward+backward"}
    for task, value in seconds.items():
        base = against.get(task, "forward")
        ratio = "" if task in ("forward", "forward+backward") else f"{value / seconds[base]:6.2f} × {base}"
        verdict = ""
        if task in ("path_norm", "path_costs"):
            verdict = f"   goal ≤ {GOAL}: {'met' if value <= GOAL * seconds[base] else 'MISSED'}"
        print(f"  {task:22s} {value:8.3f} s   {ratio}{verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet18", "resnet50", "resnet152"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", action="store_true", help="write docs/results/paths.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {}
    for name in arguments.models:
        figures[name] = measure(name, arguments.rounds)
        report(name, figures[name])
    if arguments.store:
        print(f"\nstored in {store('paths', figures)}")


if __name__ == "__main__":
    main()
