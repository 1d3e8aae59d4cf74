"""The origin of a training says what it trains, so that only the same training continues a checkpoint."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from torch import nn

from tamis.training.checkpoint import DATA_CONTENT
from tamis.training.constraint import Constraint
from tamis.training.data import Data
from tamis.training.settings import Settings


def describe_origin(
    model: nn.Module,
    data: Data,
    test: Data | None,
    settings: Settings,
    first_epoch: int,
    constraint: Constraint | None,
) -> dict[str, Any]:
    """Return what must be the same for training to continue, keyed by the words that an error message uses for each."""
    return {
        **asdict(settings),
        "first_epoch": first_epoch,
        "the data": f"{data.name} ({len(data)} examples)",
        "the test data": None if test is None else f"{test.name} ({len(test)} examples)",
        # A name says little: a file may be rewritten, and tensors have none.
        DATA_CONTENT: f"sha256 {data.digest()}",
        "the content of the test data": None if test is None else f"sha256 {test.digest()}",
        **_describe_computation(model),
        **({} if constraint is None else constraint.in_effect),
    }


def _describe_computation(model: nn.Module) -> dict[str, Any]:
    """Describe what a model computes, apart from its weights, as far as its modules print it."""
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    modules = model.named_modules(remove_duplicate=False)  # an activation may stand in several places
    return {
        # Shapes and not weights: training that goes on takes those from its checkpoint.
        **{f"the shape of '{name}'": tuple(value.shape) for name, value in model.state_dict().items()},
        **{f"the module '{name}'" if name else "the model": _describe_module(module) for name, module in modules},
        "the part without requires_grad": ", ".join(frozen) or None,
    }


def _describe_module(module: nn.Module) -> str:
    """Return a module's class and settings as torch prints them, without addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", f"{type(module).__name__}({module.extra_repr()})")
