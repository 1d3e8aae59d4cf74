"""A step of a recipe has checked settings, rules of what may not come before it, and a method that runs it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from tamis.settings import default_of, help_of

if TYPE_CHECKING:  # whoever only reads recipes needs no torch
    from tamis.recipes.state import Context, State

QUANTIZED = "weights would leave the levels that they were put on"
BINARY = "binary weights are signs already, and their real values are gone"
FACTORS = "the factors of Kronecker-sparse layers are neither pruned nor quantized"


def needs_all_weights(pruned: str) -> dict[str, str]:
    """Say what may not come before a step that needs every weight, as a float; `pruned` says why it needs them all."""
    none_gone = {"prune": pruned, "l1inf": pruned, "search": pruned}
    return {**none_gone, "quantize": QUANTIZED, "binarize": BINARY, "kronecker": FACTORS}


def key(settings: type, name: str, **constraints: Any) -> Any:
    """Make the field of a step that stands for a setting of a method: its default and its help are the setting's.

    With `default=None`, a recipe that leaves the key out stays without it, and the method's own default applies. Keys
    that were added later are made this way: older lock files and unfinished runs do not have them.
    """
    default = default_of(settings, name)
    default = [*default] if isinstance(default, tuple) else default  # a recipe has lists
    return Field(**{"default": default, "description": help_of(settings, name), **constraints})


class Section(BaseModel):
    """A section is a part of a recipe, which takes known keys of the right types only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Step(Section):
    """A step has fields that a recipe may set; the recipe must set those that have no default.

    Attributes:
        not_after: steps that may not come before this one, each with the reason.
        only_after: steps of which one must come before this one; empty: none need to.
        followed_by: a step that must come later, with the reason; None: none need to.
        trains: whether it trains, and so needs a module and labels.
        renews: whether what it makes is what later steps fit weights to.
    """

    not_after: ClassVar[Mapping[str, str]] = {}
    only_after: ClassVar[tuple[str, ...]] = ()
    followed_by: ClassVar[tuple[str, str] | None] = None
    trains: ClassVar[bool] = False
    renews: ClassVar[bool] = False

    step: str

    @abstractmethod
    def run(self, state: State, context: Context) -> State:
        """Run the step, and return the new state; the state that is passed in is left as it is."""

    @property
    def rebuilds(self) -> bool:
        """Return whether the step rebuilds layers, so that its file is for another architecture."""
        # Here and not above, as it imports torch.
        from tamis.artifact import rebuilds_layers

        return rebuilds_layers([{"step": self.step}])

    def chosen_settings(self) -> dict[str, Any]:
        """Return the settings that are not None."""
        return self.model_dump(exclude={"step"}, exclude_none=True)
