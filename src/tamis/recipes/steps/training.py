"""All steps that train share the settings of `tamis.training.train`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from tamis.errors import InvalidInput
from tamis.recipes.steps.base import Step, key
from tamis.settings import Training


class TrainingStep(Step):
    """A training step takes the settings of `tamis.training.Settings`."""

    trains: ClassVar[bool] = True

    epochs: int = key(Training, "epochs")
    batch: int = key(Training, "batch")
    optimizer: Literal["sgd", "adamw"] = key(Training, "optimizer")
    learning_rate: float = key(Training, "learning_rate")
    momentum: float = key(Training, "momentum")
    weight_decay: float = key(Training, "weight_decay")
    schedule: Literal["cosine", "multistep"] = key(Training, "schedule")
    milestones: list[int] = key(Training, "milestones")
    warmup_epochs: int = key(Training, "warmup_epochs")
    augment: bool = key(Training, "augment")
    seed: int = key(Training, "seed")
    amp: bool = key(Training, "amp")

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        # Now, as the recipe is read, and as a ValueError, for which pydantic notes the place in the file.
        try:
            self.settings()
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        return self

    def settings(self) -> Training:
        """Return the settings as the training loop takes them."""
        values = {name: getattr(self, name) for name in TrainingStep.model_fields if name != "step"}
        return Training(**{**values, "milestones": tuple(self.milestones)})
