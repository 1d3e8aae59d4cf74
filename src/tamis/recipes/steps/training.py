"""All steps that train share the settings of `tamis.training.train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tamis.errors import InvalidInput
from tamis.recipes.steps.base import Step

if TYPE_CHECKING:
    from tamis.training import Settings


class TrainingStep(Step):
    """A training step takes the settings of `tamis.training.Settings`."""

    trains: ClassVar[bool] = True

    epochs: int = Field(description="How often training goes through the data.")
    batch: int = Field(256, description="Examples per step.")
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = Field(0.1, description="The largest one.")
    momentum: float = Field(0.9, description="Of SGD; β₁ of AdamW.")
    weight_decay: float = 1e-4
    schedule: Literal["cosine", "multistep"] = Field("cosine", description="How the learning rate goes down.")
    milestones: list[int] = Field([], description="For multistep: epochs when it falls to a tenth.")
    warmup_epochs: int = Field(0, description="Over so many epochs the learning rate first goes up from 0.")
    augment: bool = Field(False, description="Crop and flip training images at random.")
    seed: int = Field(0, description="Of the order of the data, augmentation and dropout.")
    amp: bool = Field(False, description="Compute in bfloat16 where it is safe, on CUDA.")

    @model_validator(mode="after")
    def _sound(self) -> Self:
        try:
            self.settings()
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        return self

    def settings(self) -> Settings:
        """Return the settings as the training loop takes them."""
        from tamis.training import Settings

        given = {name: getattr(self, name) for name in TrainingStep.model_fields if name != "step"}
        return Settings(**{**given, "milestones": tuple(self.milestones)})
