"""CIFAR-10: VGG-16 with two wide convolutions in front, whose filters are kept within ‖v‖₁ ≤ c.

Batch-norm follows every convolution, so that the size of a filter makes no difference to what the network computes. c
acts through the steps, which are of one size for all layers: gradients of a filter that is c times smaller are 1/c
times larger, so that steps grow like 1/c² in parts of it, and the projection has the more to cut off. If steps were
scaled by c², all c would train alike, and nearly no weight would be zero. After the last step, a projection onto a ball
of 0.95 c clears what is left of the last small steps.

Reference: yang2021l1inf.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from tamis.l1inf import L1Inf
from tamis.l1inf.projection import project_
from tamis.progress import reporting
from tamis.training import Data, load_data
from tamis.training.augmentation import crop_and_flip

STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))  # widths of VGG-16's convolutions, in parts of the first
WIDE = ("conv1", "conv2")
LAST_RADIUS = 0.95  # of the last projection, in parts of c
Job = tuple[int, float | None]  # the kernel of the wide convolutions, and c
Store = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class CifarPlan:
    """What is trained, as long as there is time.

    Attributes:
        largest: the kernel of the experiment on c.
        cs: its values.
        kernels, kernel_cs: of the experiment on kernels, each with each; the largest one's are among `cs`.
        width: channels of the first stage.
        seconds: a training that would begin later is left out.
    """

    largest: int = 21
    cs: tuple[float | None, ...] = (None, 30.0, 10.0, 3.0, 1.0, 0.3)
    kernels: tuple[int, ...] = (3, 7, 11, 15)
    kernel_cs: tuple[float | None, ...] = (None, 3.0, 0.3)
    width: int = 64
    epochs: int = 6
    batch: int = 512
    learning_rate: float = 0.1
    weight_decay: float = 5e-4
    train: str = "cifar10:train"
    test: str = "cifar10:test"
    measured: int = 10_000  # training images that the training loss is of
    seconds: float = 270.0

    @property
    def jobs(self) -> list[Job]:
        """What both experiments share comes first, so that a run that is broken off has it."""
        wide: list[Job] = [(self.largest, c) for c in self.cs]
        shared = [(kernel, c) for kernel, c in wide if c in self.kernel_cs]
        others: list[Job] = [(kernel, c) for kernel in self.kernels for c in self.kernel_cs]
        return shared + others + [job for job in wide if job not in shared]


FULL = CifarPlan()
SHORT = CifarPlan(
    largest=9,
    cs=(None, 3.0, 0.3),
    kernels=(3,),
    width=8,
    epochs=2,
    batch=100,
    train="cifar10:train[:2000]",
    test="cifar10:test[:1000]",
    measured=1000,
)


class WideVGG16(nn.Module):
    """VGG-16 for 32×32 images with batch-norm and one linear layer, and other kernels in its first two convolutions."""

    def __init__(self, kernel: int, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel, padding="same", bias=False)
        self.conv2 = nn.Conv2d(width, width, kernel, padding="same", bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        layers: list[nn.Module] = [nn.MaxPool2d(2)]
        channels = width
        for stage in STAGES[1:]:
            for before, after in pairwise((channels, *(part * width for part in stage))):
                layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            channels = stage[-1] * width
            layers.append(nn.MaxPool2d(2))
        self.rest = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        values = self.norm1(self.conv1(images)).relu()
        return self.rest(self.norm2(self.conv2(values)).relu())


def run_cifar(plan: CifarPlan, device: str, keep: Store = lambda figures: None) -> dict[str, Any]:
    """Return a row for each kernel and c: losses and accuracies in training and test, zeros, and non-zeros per channel.

    Args:
        plan: what to train.
        device: cpu or cuda; on a GPU, in bfloat16 where that is safe.
        keep: called with all figures by then after every training.
    """
    began = time.perf_counter()
    torch.backends.cudnn.benchmark = True
    data, test = load_data(plan.train).to(device), load_data(plan.test).to(device)
    figures: dict[str, Any] = {"plan": asdict(plan), "rows": [], "left out": []}
    with reporting(True, "cifar", len(plan.jobs)) as report:
        for number, (kernel, c) in enumerate(plan.jobs, 1):
            start = time.perf_counter()
            if start - began > plan.seconds:
                figures["left out"].append({"kernel": kernel, "c": c})
                continue
            model = train_network(plan, kernel, c, data)
            figures["rows"].append(
                {
                    "kernel": kernel,
                    "c": c,
                    **measure_figures(model, data[: plan.measured], test, plan.batch),
                    "seconds": round(time.perf_counter() - start, 1),
                }
            )
            keep(figures)
            report(number, kernel=kernel, c=c or math.inf, accuracy=figures["rows"][-1]["test accuracy"])
    return figures


def train_network(plan: CifarPlan, kernel: int, c: float | None, data: Data) -> WideVGG16:
    """Return a network trained by SGD with momentum, whose step rises and falls over all epochs; batches are full."""
    device = data.inputs.device
    torch.manual_seed(0)
    model = WideVGG16(kernel, plan.width, data.classes).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    wide = [model.conv1.weight, model.conv2.weight]
    rest = [value for name, value in model.named_parameters() if not name.startswith(WIDE)]
    steps = plan.epochs * (len(data) // plan.batch)
    groups = [
        {"params": wide, "weight_decay": 0.0 if c is not None else plan.weight_decay},
        {"params": rest, "weight_decay": plan.weight_decay},
    ]
    inner = SGD(groups, plan.learning_rate, momentum=0.9, nesterov=True)
    schedule = OneCycleLR(inner, plan.learning_rate, total_steps=steps + 1, cycle_momentum=False)
    optimizer: Optimizer = inner
    if c is not None:
        optimizer = L1Inf(inner, model, dict.fromkeys(WIDE, c))
        optimizer.project()
    generator = torch.Generator(device).manual_seed(0)
    for _ in range(plan.epochs):
        order = torch.randperm(len(data), generator=generator, device=device)
        for places in order[: len(data) // plan.batch * plan.batch].split(plan.batch):
            images, labels = data.batch(places)
            images = crop_and_flip(images, generator).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    if c is not None:
        for weight in wide:
            project_(weight, c * LAST_RADIUS)
    return model.eval()


def measure_figures(model: WideVGG16, train: Data, test: Data, batch: int) -> dict[str, float]:
    """Return losses and accuracies, their gap, and zeros of the two wide convolutions.

    A channel is one kernel × kernel slice of a filter: there are outputs × inputs of them.
    """
    found: dict[str, float] = {}
    for name, data in (("train", train), ("test", test)):
        found[f"{name} loss"], found[f"{name} accuracy"] = _evaluate(model, data, batch)
    weights = [model.conv1.weight, model.conv2.weight]
    kept = sum(int((weight != 0).sum()) for weight in weights)
    return {
        **found,
        "gap": found["test loss"] - found["train loss"],
        "zeros": 1 - kept / sum(weight.numel() for weight in weights),
        "non-zeros per channel": kept / sum(weight.shape[0] * weight.shape[1] for weight in weights),
    }


@torch.no_grad()
def _evaluate(model: nn.Module, data: Data, batch: int) -> tuple[float, float]:
    device = data.inputs.device
    losses, right = 0.0, 0
    for places in torch.arange(len(data), device=device).split(batch):
        images, labels = data.batch(places)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            outputs = model(images.contiguous(memory_format=torch.channels_last))
        losses += float(cross_entropy(outputs.float(), labels, reduction="sum"))
        right += int((outputs.argmax(1) == labels).sum())
    return losses / len(data), right / len(data)
