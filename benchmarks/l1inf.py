"""How long the projection onto the ℓ1 ball takes, beside the sorting of the text, and what it adds to a training step.

    python benchmarks/l1inf.py [--store] [--rounds 5] [--batch 16] [--device cuda]

Floors: a projection reads its columns and writes as many numbers. For 1024 columns of 4096 float32 that is 34 MB, for
512 of 25 088 103 MB: 3 and 10 ms at 10 GB/s, or 8 and 24 µs at the 4.3 TB/s of an H200. The peer is Algorithm 2 of
the text, batched in torch.

A step of VGG-16 (138 M weights) is forward, backward and SGD with momentum on random images of 224 × 224; the
projection of its 15 hidden layers, in place, comes on top. It does not depend on the batch, and the rest does.

Seconds are wall-clock on two threads, or until a GPU has finished, the best of rounds in which peers take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import best_seconds, store
from torch import Tensor, nn

from tamis.l1inf import L1Inf, project, statistics
from tamis.l1inf.projection import project_
from tamis.training.models import vgg16

THREADS = 2
SHAPES = ((1024, 4096), (512, 25088))
RADII = (0.1, 10.0)  # of columns of standard deviation 0.02: a few entries are left, or a good part


def by_sorting(columns: Tensor, c: float) -> Tensor:
    """Algorithm 2 of the text."""
    sizes = columns.abs().sort(1, descending=True).values
    thresholds = (sizes.cumsum(1) - c) / torch.arange(1, columns.shape[1] + 1, device=columns.device)
    last = (sizes > thresholds).sum(1, keepdim=True) - 1
    return columns.sign() * (columns.abs() - thresholds.gather(1, last).clamp(min=0)).clamp(min=0)


def finished(task: Callable[[], Any]) -> Callable[[], None]:
    """The task, until a GPU is done with it."""

    def whole() -> None:
        task()
        wait()

    return whole


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_projection(rounds: int, device: str) -> dict[str, dict[str, float]]:
    """Seconds by shape and radius."""
    figures = {}
    for shape in SHAPES:
        columns = 0.02 * torch.randn(shape, device=device)
        for c in RADII:
            worst = float((project(columns, c) - by_sorting(columns, c)).abs().max())
            assert worst < 1e-5, f"sorting finds another projection, by {worst}"
            copies = [columns.clone() for _ in range(rounds)]
            seconds = best_seconds(
                {
                    "sorting (torch)": finished(lambda columns=columns, c=c: by_sorting(columns, c)),  # type: ignore[misc]
                    "tamis": finished(lambda columns=columns, c=c: project(columns, c)),  # type: ignore[misc]
                    "tamis, in place": finished(lambda copies=copies, c=c: project_(copies.pop(), c)),  # type: ignore[misc]
                },
                rounds,
            )
            zeros = float((project(columns, c) == 0).float().mean())
            figures[f"{shape[0]} columns of {shape[1]}, c = {c:g}"] = {**seconds, "sparsity": zeros}
    return figures


def measure_step(rounds: int, batch: int, c: float, device: str) -> dict[str, float]:
    """Seconds of a step of VGG-16, and of the projection after it."""
    model = vgg16().to(device)
    optimizer = L1Inf(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model, c)
    optimizer.project()
    images, labels = torch.randn(batch, 3, 224, 224, device=device), torch.randint(1000, (batch,), device=device)
    best = {"step": float("inf"), "projection": float("inf")}
    for _ in range(rounds):
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.optimizer.step()
        wait()
        stepped = time.perf_counter()
        optimizer.project()
        wait()
        done = time.perf_counter()
        best = {"step": min(best["step"], stepped - start), "projection": min(best["projection"], done - stepped)}
    assert statistics(model).c <= c * (1 + 1e-6)
    return {**best, "batch": batch, "c": c, "sparsity": statistics(model).sparsity}


def report(figures: dict[str, Any]) -> None:
    """Tables with the goals."""
    for name, row in figures["projection"].items():
        print(f"{name} (then {row['sparsity']:.1%} zeros)")
        for peer in ("sorting (torch)", "tamis", "tamis, in place"):
            print(f"  {peer:20s} {1000 * row[peer]:9.3f} ms")
        ratio = row["sorting (torch)"] / row["tamis"]
        print(f"  {ratio:.1f} × faster   goal ≥ 5: {'met' if ratio >= 5 else 'MISSED'}")
    step = figures["step of VGG-16"]
    share = step["projection"] / step["step"]
    print(f"VGG-16, batch {step['batch']}: step {step['step']:.3f} s, projection {step['projection']:.4f} s")
    print(f"  {share:.2%} on top   goal ≤ 5%: {'met' if share <= 0.05 else 'MISSED'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--store", action="store_true", help="write docs/results/l1inf_speed.json, or l1inf_speed_cuda.json"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    figures = {
        "projection": measure_projection(arguments.rounds, arguments.device),
        "step of VGG-16": measure_step(max(2, arguments.rounds - 2), arguments.batch, 1.0, arguments.device),
    }
    report(figures)
    if arguments.store:
        name = "l1inf_speed" if arguments.device == "cpu" else f"l1inf_speed_{arguments.device}"
        print(f"\nstored in {store(name, figures)}")


if __name__ == "__main__":
    main()
