"""The steps of recipes, one in each file."""

from tamis.recipes.steps.base import Section as Section

__all__ = [
    "Section",
]
