"""`tamis.load` rebuilds binary layers for files whose recipe has the step "binarize"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tamis.binary.conversion import binarize
from tamis.binary.layers import BinaryLayer
from tamis.errors import InvalidInput


def rebuild_binary_layers(model: nn.Module, step: Mapping[str, Any], example: tuple[Tensor, ...]) -> nn.Module:
    """Make the layers of a model binary as a step of a recipe did.

    Args:
        model: the model that the step began with, or one with its binary layers already; it is left as it is.
        step: what the recipe says of it. Without a scale, the layers differ in ways that it does not tell.
        example: inputs of the model, which show how large the outputs of its layers are.
    """
    # There is nothing to make the layers from: the model has to have them already.
    if "scale" not in step:
        return model
    keep = tuple(str(name) for name in step.get("keep", ()))
    try:
        return binarize(model, keep, example, str(step["scale"]), str(step.get("estimator")))
    except InvalidInput:
        if any(isinstance(module, BinaryLayer) for module in model.modules()):
            return model  # nothing is left to binarize: it has these layers already
        raise
