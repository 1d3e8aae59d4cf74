"""XNOR-Nets++ beside XNOR-Net and the real-valued network, on MNIST and CIFAR-10: the four forms of scales.

    python -m experiments xnor                                      minutes on two cores: few images, few epochs
    python -m experiments xnor --full --device cuda --workers 4     with --only mnist or cifar10 for a part of it

A VGG-like network with batch normalization is trained as it is, and as `tamis.binary.binarize` makes it binary but for
its first and last layer: with XNOR-Net's scale mean |W|, with each of the learnt scales of XNOR-Net++, and with sparse
scales of rank one, as section 3.2 of Chee and Loustau has them. Binary ones are trained in two stages, the real one for
as many epochs as both together. Trainings lie in --directory and are not repeated: a run that was broken off goes on,
one that is finished is read. Stored figures are kept row by row.

The text that defines these networks has no experiment, and XNOR-Net++ has one on ImageNet: there is no printed figure
to stand beside ours. Where batch normalization follows a scale, as here, it takes α off again, channel by channel:
there β, γ and Γ are what is learnt, and α matters only where it is zero.

On a GPU training is in bfloat16 where that is safe: signs are exact in it, sums of them beyond 256 are rounded. Tests
are in float32, where they are exact.

Reference: chee2021xnor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.command_line import Parser
from experiments.record import keep
from tamis.binary import binarize, binary_layers, train_binary
from tamis.binary.sparse_scales import count_zero_scales, scale_penalty
from tamis.progress import reporting
from tamis.training import Settings, load_data, train

CLASSES = 10
REAL = "real"
SPARSE = "α ⊗ β ⊗ γ, sparse"
FORMS = {  # row → form of the scale
    "XNOR-Net, mean |W|": "analytic",
    "α": "channel",
    "Γ, each output": "full",
    "α ⊗ β": "spatial",
    "α ⊗ β ⊗ γ": "rank_one",
    SPARSE: "rank_one",
}
ROWS = (REAL, *FORMS)
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What to train, on what.

    Attributes:
        data, test: datasets.
        widths: channels of the stages; each has two convolutions and halves the image.
        first, second: settings of the two stages.
        penalty, tau: of the row with sparse scales.
    """

    data: str
    test: str
    widths: tuple[int, ...]
    first: Settings
    second: Settings
    penalty: float
    tau: float = 0.1


_ADAM = Settings(epochs=1, batch=256, optimizer="adamw", learning_rate=2e-3, weight_decay=0.0, amp=True)
FULL = {
    "mnist": Plan(
        "mnist:train", "mnist:test", (32, 64), replace(_ADAM, epochs=3), replace(_ADAM, epochs=6), penalty=5e-4
    ),
    "cifar10": Plan(
        "cifar10:train",
        "cifar10:test",
        (64, 128, 256),
        replace(_ADAM, epochs=5, augment=True),
        replace(_ADAM, epochs=10, augment=True),
        penalty=2e-4,
    ),
}
SHORT = {
    "mnist": replace(
        FULL["mnist"],
        data="mnist:train[:3000]",
        test="mnist:test[:1000]",
        widths=(8, 16),
        first=replace(_ADAM, epochs=2, batch=64),
        second=replace(_ADAM, epochs=4, batch=64),
        penalty=8e-3,
    ),
    "cifar10": replace(
        FULL["cifar10"],
        data="cifar10:train[:2500]",
        test="cifar10:test[:1000]",
        widths=(8, 16, 32),
        first=replace(_ADAM, epochs=2, batch=64),
        second=replace(_ADAM, epochs=4, batch=64),
        penalty=8e-3,
    ),
}
PARTS = tuple(FULL)


def network(channels: int, size: int, widths: Sequence[int]) -> nn.Sequential:
    """Make stages of twice convolution, batch-norm and ReLU, then max-pooling; a linear layer at the end."""
    layers: list[nn.Module] = []
    for width in widths:
        for inputs in (channels, width):
            layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels, size = width, size // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * size**2, CLASSES))


@dataclass(frozen=True)
class Job:
    """The training of one row."""

    row: str
    plan: Plan
    directory: Path
    device: str

    def run(self) -> Row:
        """Train, or go on, or read what is finished; the figures of the row."""
        began, plan = time.perf_counter(), self.plan
        data, test = load_data(plan.data), load_data(plan.test)
        torch.manual_seed(plan.second.seed)
        model = network(data.inputs.shape[1], data.inputs.shape[2], plan.widths)
        place = self.directory / ("sparse" if self.row == SPARSE else FORMS.get(self.row, REAL))
        if self.row == REAL:
            whole = replace(plan.second, epochs=plan.first.epochs + plan.second.epochs)
            real = train(model, data, whole, test=test, directory=place, device=self.device, progress=False)
            return {
                "row": self.row,
                "accuracy": real.history[-1].test_accuracy,
                "seconds": _measure_seconds_since(began),
            }
        binary = train_binary(
            binarize(model, example=data.example, scale=FORMS[self.row]),
            data,
            plan.second,
            first=plan.first,
            test=test,
            penalty=plan.penalty if self.row == SPARSE else 0.0,
            tau=plan.tau,
            directory=place,
            device=self.device,
            progress=False,
        )
        zeros, scales = count_zero_scales(binary.model)
        signs = sum(layer.weight.numel() for layer in binary_layers(binary.model).values())
        return {
            "row": self.row,
            "accuracy": binary.history[-1].test_accuracy,
            "accuracy with real weights": binary.activations[-1].test_accuracy,
            "scales": scales,
            "zero scales": zeros,
            "signs": signs,
            "penalty of scales": scale_penalty(binary.model, plan.tau).item() - signs * math.log(2),
            "seconds": _measure_seconds_since(began),
        }


def measure_rows(part: str, full: bool, directory: Path, device: str, workers: int) -> Iterator[Row]:
    """Yield the figures of each row of a part, as they are known."""
    plan = (FULL if full else SHORT)[part]
    jobs = [Job(row, plan, directory / part, device) for row in ROWS]
    with ExitStack() as stack:
        report = stack.enter_context(reporting(True, part, len(jobs)))
        if workers == 1:
            results: Iterator[Row] = map(Job.run, jobs)
        else:
            pool = ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,))
            stack.enter_context(pool)
            results = (future.result() for future in as_completed([pool.submit(job.run) for job in jobs]))
        for done, row in enumerate(results, start=1):
            report(done, accuracy=row["accuracy"])
            yield row


def sort_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows as the table has them."""
    return sorted(rows, key=lambda row: ROWS.index(row["row"]))


def show(part: str, figures: Mapping[str, Any]) -> None:
    """Print the table of a part."""
    plan = figures["plan"]
    stages = f"{plan['first']['epochs']} + {plan['second']['epochs']} epochs"
    print(f"\n{part}: test accuracy, %; widths {', '.join(map(str, plan['widths']))}; {stages} on {plan['data']}")
    print(f"{'scale':22}{'accuracy':>10}{'stage 1':>10}{'scales':>10}{'zero':>8}{'penalty, nats':>16}")
    for row in figures["rows"]:
        cells = f"{row['row']:22}{100 * row['accuracy']:10.1f}"
        if row["row"] != REAL:
            cells += f"{100 * row['accuracy with real weights']:10.1f}{row['scales']:10}{row['zero scales']:8}"
            cells += f"{row['penalty of scales']:16.0f}"
        print(cells)


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser(
        "xnor", __doc__, "all of the data, wider networks: for a GPU", PARTS, only="one part instead of both"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--workers", type=int, default=1, help="trainings at a time")
    parser.add_argument("--directory", type=Path, default=Path("out/xnor"), help="of the trainings")
    arguments = parser.parse_args(options)
    if arguments.workers < 1:
        parser.error("--workers must be at least 1")
    mode = "full" if arguments.full else "short"
    found = {}
    for part in [arguments.only] if arguments.only else PARTS:
        plan = asdict((FULL if arguments.full else SHORT)[part])
        rows: list[Row] = []
        directory = arguments.directory / mode
        for row in measure_rows(part, arguments.full, directory, arguments.device, arguments.workers):
            rows = sort_rows([*rows, row])
            found[part] = {"plan": plan, "rows": rows}
            if arguments.results:
                name = "xnor.json" if arguments.full else "xnor_short.json"
                keep(arguments.results / name, part, found[part], PARTS)
    if not arguments.full:
        print("\nThis is the short mode: small networks, few images and epochs.")
    for part, figures in found.items():
        show(part, figures)


def _measure_seconds_since(began: float) -> float:
    return round(time.perf_counter() - began, 1)
