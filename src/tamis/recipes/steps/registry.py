"""The registry lists every kind of step that a recipe may have, by name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tamis.recipes.steps.base import Step
from tamis.recipes.steps.binarize import Binarize
from tamis.recipes.steps.kronecker import Kronecker
from tamis.recipes.steps.l1inf import L1InfTraining
from tamis.recipes.steps.normalize import Normalize
from tamis.recipes.steps.prune import Prune
from tamis.recipes.steps.quantize import Quantize
from tamis.recipes.steps.repair import Repair
from tamis.recipes.steps.retrain import Retrain
from tamis.recipes.steps.search import Search

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
