"""Every kind of step that a recipe may have, by name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tamis.recipe.steps.base import Step
from tamis.recipe.steps.binarize import Binarize
from tamis.recipe.steps.kronecker import Kronecker
from tamis.recipe.steps.l1inf import L1InfTraining
from tamis.recipe.steps.normalize import Normalize
from tamis.recipe.steps.prune import Prune
from tamis.recipe.steps.quantize import Quantize
from tamis.recipe.steps.repair import Repair
from tamis.recipe.steps.retrain import Retrain
from tamis.recipe.steps.search import Search

STEPS: dict[str, type[Step]] = {
    "normalize": Normalize,
    "prune": Prune,
    "retrain": Retrain,
    "l1inf": L1InfTraining,
    "search": Search,
    "quantize": Quantize,
    "repair": Repair,
    "binarize": Binarize,
    "kronecker": Kronecker,
}
AnyStep = Annotated[
    Normalize | Prune | Retrain | L1InfTraining | Search | Quantize | Repair | Binarize | Kronecker,
    Field(discriminator="step"),
]
