"""The step retrain trains the weights that are left, and holds pruned weights at zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tamis.recipes.steps.base import BINARY, QUANTIZED
from tamis.recipes.steps.training import TrainingStep

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State


class Retrain(TrainingStep):
    """This step runs `tamis.training.train` on the training data; pruned weights stay pruned."""

    not_after: ClassVar[Mapping[str, str]] = {"quantize": QUANTIZED, "binarize": BINARY}
    renews: ClassVar[bool] = True

    step: Literal["retrain"]
    fresh: bool = Field(False, description="Begin with newly drawn weights, as for an architecture that was found.")

    def run(self, state: State, context: Context) -> State:
        from tamis.architecture import reinitialise
        from tamis.training import train

        settings, module = self.settings(), state.trainable()
        trained = train(
            reinitialise(module, settings.seed) if self.fresh else module,
            context.data.train,
            settings,
            test=context.data.held_out,
            masks=state.small.masks or None,
            directory=context.directory,
            device=context.device,
            progress=context.progress,
        )
        step = {"step": "train", "data": context.data.train.name, **settings.in_effect}
        return state.with_trained_weights(trained.model, step | ({"fresh": True} if self.fresh else {}))
