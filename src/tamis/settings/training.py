"""The settings of a training say how long it is, with which optimizer and schedule, and from which seed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tamis.settings.arguments import (
    as_plain_bool,
    as_plain_float,
    as_plain_int,
    as_plain_ints,
    check_batch,
    is_float,
    is_int,
    require,
)
from tamis.settings.field import documents, setting

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("cosine", "multistep")


@dataclass(frozen=True)
class Training:
    """The settings of a training say how long it is, with which optimizer and schedule, and from which seed.

    Args:
        <settings>

    Example:
        >>> thesis = Training(epochs=90, schedule="multistep", milestones=(30, 60, 80))  # ResNets on ImageNet
        >>> thesis.batch, thesis.learning_rate
        (256, 0.1)
    """

    epochs: int = setting(
        "How often training goes through the data, from the first epoch to the last.", typed=int, metavar="N"
    )
    batch: int = setting("How many examples a step takes, over all processes together.", 256, typed=int, metavar="N")
    optimizer: Literal["sgd", "adamw"] = setting("The optimizer.", "sgd", choices=OPTIMIZERS)
    learning_rate: float = setting(
        "The largest learning rate, from which the schedule goes down.", 0.1, typed=float, metavar="RATE"
    )
    momentum: float = setting("The momentum of SGD; with AdamW, its β₁.", 0.9, typed=float, metavar="M")
    weight_decay: float = setting(
        "The weight decay of all parameters; with AdamW it is decoupled from the gradient.",
        1e-4,
        typed=float,
        metavar="DECAY",
    )
    schedule: Literal["cosine", "multistep"] = setting(
        "How the learning rate goes down: cosine, to 0; or multistep, to a tenth of it after each of `milestones`.",
        "cosine",
        choices=SCHEDULES,
    )
    milestones: tuple[int, ...] = setting(
        "The epochs after which multistep lets the learning rate fall to a tenth.", (), metavar="EPOCH,EPOCH"
    )
    warmup_epochs: int = setting(
        "Over how many epochs the learning rate first goes up linearly from 0.", 0, typed=int, metavar="N"
    )
    augment: bool = setting("Crop and flip the training images at random.", False, typed=bool)
    seed: int = setting(
        "The seed of the order of the data, of augmentation and of dropout; and of the first weights, where a command "
        "makes the model.",
        0,
        typed=int,
        metavar="N",
    )
    amp: bool = setting(
        "Compute in bfloat16 where it is safe, on CUDA; without effect on a CPU. Weights stay as they are.",
        False,
        typed=bool,
    )

    def __post_init__(self) -> None:
        # First: the checks below tell an int from a float, and numpy's are neither.
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
        # Each condition has a sentence of its own, and the next is reached only if those before it hold.
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


documents(Training)(Training)
