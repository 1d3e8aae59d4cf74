"""The step search finds which connections to keep, by training masks and weights together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tamis.recipes.quantities import without_percent
from tamis.recipes.steps.base import key, needs_all_weights
from tamis.recipes.steps.training import TrainingStep
from tamis.settings import Search as SearchSettings

if TYPE_CHECKING:
    from tamis.recipes.state import Context, State

PRUNED = "it chooses among all connections, and some are pruned already"


class Search(TrainingStep):
    """This step runs `tamis.architecture.search`; it prunes connections, and a later step must train the rest."""

    not_after: ClassVar[Mapping[str, str]] = needs_all_weights(PRUNED)
    followed_by: ClassVar[tuple[str, str] | None] = (
        "retrain",
        "it finds connections, and the weights are not trained for these alone",
    )

    step: Literal["search"]
    sparsity: Annotated[
        float, Field(ge=0, lt=1), BeforeValidator(without_percent, json_schema_input_type=float | str)
    ] = key(SearchSettings, "sparsity")
    t_l: float | None = key(SearchSettings, "t_l", default=None, gt=0)
    t_s: float | None = key(SearchSettings, "t_s", gt=0)
    gamma: float | None = key(SearchSettings, "gamma", gt=0)
    mask_rate: float | None = key(SearchSettings, "mask_rate", default=None, gt=0)
    spread: float | None = key(SearchSettings, "spread", default=None, gt=0)
    include: list[str] | None = key(SearchSettings, "include")
    exclude: list[str] | None = key(SearchSettings, "exclude")

    def run(self, state: State, context: Context) -> State:
        from dataclasses import replace

        from tamis.architecture import search

        names = ("t_l", "t_s", "gamma", "mask_rate", "spread", "include", "exclude")
        # What is not set has the method's own default, which a lock file need not repeat.
        how = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        architecture = search(
            state.trainable(),
            context.data.train,
            self.sparsity,
            self.settings(),
            **how,
            directory=context.directory,
            device=context.device,
            progress=context.progress,
        )
        aliases = state.small.aliases
        # The search names weights as the module does, and a network names a tied weight once.
        masks = {aliases.get(name, name): mask for name, mask in architecture.masks.items()}
        step = {"step": self.step, "data": context.data.train.name, "sparsity": self.sparsity, **how}
        pruned = state.small.pruned(masks, {**step, **self.settings().in_effect})
        return replace(state, small=pruned.with_seen(architecture.seen))
