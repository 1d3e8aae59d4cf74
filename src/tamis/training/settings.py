"""The settings of a training say how to train, with the schedule of its learning rate."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tamis.training.arguments import (
    as_plain_bool,
    as_plain_float,
    as_plain_int,
    as_plain_ints,
    check_batch,
    is_float,
    is_int,
    require,
)

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("cosine", "multistep")
MILESTONE_FACTOR = 0.1


@dataclass(frozen=True)
class Settings:
    """The settings of a training say how long it is, with which optimizer and schedule, and from which seed.

    Args:
        epochs: how often training goes through the data, from the first epoch to the last.
        batch: examples per step, over all processes together.
        optimizer: "sgd" or "adamw".
        learning_rate: the largest one, from which the schedule goes down.
        momentum: of SGD; AdamW's β₁.
        weight_decay: of all parameters; decoupled from the gradient with AdamW.
        schedule: "cosine" down to 0, or "multistep": a tenth of it after each of `milestones`. See `learning_rate_at`.
        milestones: epochs, for "multistep".
        warmup_epochs: over so many epochs the learning rate first goes up linearly from 0.
        augment: crop and flip the training images at random (`tamis.training.augmentation`).
        seed: of the order of the data, of augmentation and of dropout. Initial weights are the model's own.
        amp: compute in bfloat16 where it is safe (torch.autocast) on CUDA; without effect on a CPU. Weights stay as
            they are, and there is no loss to scale: bfloat16 has the range of float32.

    Example:
        >>> Settings(epochs=90, schedule="multistep", milestones=(30, 60, 80))  # ResNets on ImageNet, in the thesis
    """

    epochs: int
    batch: int = 256
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: Literal["cosine", "multistep"] = "cosine"
    milestones: tuple[int, ...] = ()
    warmup_epochs: int = 0
    augment: bool = False
    seed: int = 0
    amp: bool = False

    def __post_init__(self) -> None:
        self._convert_to_plain_values()
        require("epochs", self.epochs, "a whole number ≥ 1", is_int(self.epochs, least=1))
        check_batch(self.batch)
        require("optimizer", self.optimizer, " or ".join(OPTIMIZERS), self.optimizer in OPTIMIZERS)
        right = is_float(self.learning_rate) and 0 < self.learning_rate < math.inf
        require("learning_rate", self.learning_rate, "a number > 0", right)
        require("momentum", self.momentum, "in [0, 1)", is_float(self.momentum) and 0 <= self.momentum < 1)
        right = is_float(self.weight_decay) and 0 <= self.weight_decay < math.inf
        require("weight_decay", self.weight_decay, "a number ≥ 0", right)
        require("schedule", self.schedule, " or ".join(SCHEDULES), self.schedule in SCHEDULES)
        wanted = "a sequence of epochs, such as (30, 60)"
        require("milestones", self.milestones, wanted, isinstance(self.milestones, tuple))
        inside = all(is_int(milestone, least=1) and milestone < self.epochs for milestone in self.milestones)
        rising = inside and list(self.milestones) == sorted(set(self.milestones))
        wanted = f"different epochs in rising order, from 1 to {self.epochs - 1}"
        require("milestones", self.milestones, wanted, rising)
        wanted = "given with schedule='multistep', and only then"
        require("milestones", self.milestones, wanted, bool(self.milestones) == (self.schedule == "multistep"))
        wanted = f"a whole number from 0 to {self.epochs - 1}"
        right = is_int(self.warmup_epochs, least=0) and self.warmup_epochs < self.epochs
        require("warmup_epochs", self.warmup_epochs, wanted, right)
        require("seed", self.seed, "a whole number ≥ 0", is_int(self.seed, least=0))
        require("augment", self.augment, "True or False", isinstance(self.augment, bool))
        require("amp", self.amp, "True or False", isinstance(self.amp, bool))

    def _convert_to_plain_values(self) -> None:
        """Replace numbers of numpy and torch by Python's own, because a checkpoint with others cannot be read back."""
        for names, plain in (
            (("epochs", "batch", "warmup_epochs", "seed"), as_plain_int),
            (("learning_rate", "momentum", "weight_decay"), as_plain_float),
            (("optimizer", "schedule"), lambda value: str(value) if isinstance(value, str) else value),
            (("milestones",), as_plain_ints),
            (("augment", "amp"), as_plain_bool),
        ):
            for name in names:
                object.__setattr__(self, name, plain(getattr(self, name)))  # the class is frozen for everyone else

    @property
    def in_effect(self) -> dict[str, Any]:
        """Return the settings for a recipe, as a file gives them back, without those that are off."""
        plain = {**asdict(self), "milestones": list(self.milestones)}
        return {name: value for name, value in plain.items() if value is not False and value != []}


def learning_rate_at(settings: Settings, epoch: float) -> float:
    """Compute the learning rate η · r(t) after t epochs, fractions included, with w warmup epochs out of T.

    - r(t) = t / w for t < w, and from then on
    - cosine: r(t) = ½ (1 + cos(π (t − w) / (T − w)));
    - multistep: r(t) = 10^{−m}, with m the number of milestones ≤ t.

    It depends on nothing but the epoch, so that training can resume at any.

    Reference: I. Loshchilov and F. Hutter, "SGDR: Stochastic gradient descent with warm restarts", ICLR 2017 (cosine).
    """
    require("epoch", epoch, f"from 0 to {settings.epochs}", 0 <= epoch <= settings.epochs)
    warmup = settings.warmup_epochs
    if epoch < warmup:
        return settings.learning_rate * epoch / warmup
    if settings.schedule == "cosine":
        gone = (epoch - warmup) / (settings.epochs - warmup)
        return settings.learning_rate * (1 + math.cos(math.pi * gone)) / 2
    passed = sum(milestone <= epoch for milestone in settings.milestones)
    return settings.learning_rate * MILESTONE_FACTOR**passed
