"""The step l1inf trains with every hidden neuron's weights in an ℓ1 ball, which makes most of them zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from tamis.recipes.steps.base import BINARY, QUANTIZED
from tamis.recipes.steps.training import TrainingStep

if TYPE_CHECKING:
    from torch import nn

    from tamis.artifact import Masks
    from tamis.graph import Network
    from tamis.l1inf import L1InfConstraint
    from tamis.recipes.state import Context, State


class L1InfTraining(TrainingStep):
    """This step trains with `tamis.l1inf.L1InfConstraint`, and prunes what the projection has made zero."""

    not_after: ClassVar[Mapping[str, str]] = {
        "quantize": QUANTIZED,
        "binarize": BINARY,
        "kronecker": "it projects rows of weights, and Kronecker-sparse layers have factors instead",
    }
    renews: ClassVar[bool] = True

    step: Literal["l1inf"]
    c: Annotated[float, Field(ge=0)] | dict[str, Annotated[float, Field(ge=0)]] = Field(
        description="The radius of the ball of each hidden neuron's weights and bias; or one by layer."
    )

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.artifact import Compressed, Masks
        from tamis.l1inf import L1InfConstraint
        from tamis.training import train

        constraint, settings = L1InfConstraint(self.c), self.settings()
        trained = train(
            state.trainable(),
            context.data.train,
            settings,
            test=context.data.held_out,
            masks=state.small.masks or None,
            constraint=constraint,
            directory=context.directory,
            device=context.device,
            progress=context.progress,
        )
        step = {"step": "train", "data": context.data.train.name, **settings.in_effect, **constraint.in_effect}
        after = state.with_trained_weights(trained.model, step)
        # What was pruned before stays pruned, though the projection does not know of it.
        masks = after.small.masks & _mask_zeros(constraint, trained.model, after.reference)
        network = after.small.network
        network = network.replace(params=Masks(masks).zeroed(network.params))  # a zero may have been −0.0
        small = Compressed(network, masks, after.small.recipe)
        return replace(after, small=small, reference=small.network)


def _mask_zeros(constraint: L1InfConstraint, model: nn.Module, network: Network) -> Masks:
    """Return masks, by the names of the network, that keep what the projection has not made zero."""
    from tamis.artifact import Masks

    masks = {
        # A network names a tied weight once.
        network.aliases.get(name, name): layer.weight.detach().cpu() != 0
        for layer in constraint.layers(model)
        for name in [f"{layer.name}.weight" if layer.name else "weight"]
    }
    return Masks({name: mask for name, mask in masks.items() if not mask.all()})
