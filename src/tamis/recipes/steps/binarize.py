"""The step binarize replaces the weights and activations of most layers by signs, and trains in two stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tamis.recipes.steps.base import key, needs_all_weights
from tamis.recipes.steps.training import TrainingStep
from tamis.settings import Binarization

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State

PRUNED = "pruned weights would come back: a binary weight is +1 or −1"


class Binarize(TrainingStep):
    """This step runs `tamis.binary.binarize` and `train_binary`; a binary weight takes one bit in the file."""

    not_after: ClassVar[Mapping[str, str]] = needs_all_weights(PRUNED)
    renews: ClassVar[bool] = True

    step: Literal["binarize"]
    scale: Literal["rank_one", "spatial", "full", "channel", "analytic"] = key(Binarization, "scale")
    estimator: Literal["clipped", "approx_sign", "rsign"] = key(Binarization, "estimator")
    keep: list[str] = key(Binarization, "keep")
    activation_epochs: int | None = key(Binarization, "activation_epochs", ge=0)

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.binary import binarize, pack_traced, train_binary
        from tamis.graph import trace

        settings, example = self.settings(), context.data.train.example
        binary = binarize(state.trainable(), tuple(self.keep), example, self.scale, self.estimator)
        # As many epochs as the second stage has, unless it is said; 0 leaves the first stage out.
        first_epochs = settings.epochs if self.activation_epochs is None else self.activation_epochs
        trained = train_binary(
            binary,
            context.data.train,
            settings,
            first=replace(settings, epochs=first_epochs) if first_epochs else None,
            test=context.data.held_out,
            directory=context.directory,
            device=context.device,
            progress=context.progress,
        )
        how: dict[str, Any] = {"scale": self.scale, "estimator": self.estimator, "keep": list(self.keep)}
        step = {"step": self.step, **how, "activation_epochs": first_epochs}
        step |= {"data": context.data.train.name, **settings.in_effect}
        # The graph is that of the untrained layers, which have the same shapes.
        small = pack_traced(trace(binary, example), trained.model, [*state.small.recipe, step])
        # The module is kept for its architecture: weights are read from the step's file.
        return replace(state.with_new_reference(small), module=binary)
