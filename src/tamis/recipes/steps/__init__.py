"""Each file of this package holds one step of recipes."""

from tamis.recipes.steps.base import Section as Section

__all__ = [
    "Section",
]
