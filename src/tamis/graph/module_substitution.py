"""Substitution replaces modules in a copy of a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def substitute_modules(model: nn.Module, made: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Replace modules by others, under each of their names, in the model itself.

    Example:
        >>> substitute_modules(nn.Sequential(relu := nn.ReLU()), {relu: nn.Identity()})
        Sequential(
          (0): Identity()
        )
    """
    if model in made:
        return made[model]
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):  # named_children() gives a shared one under one name only
            if child is not None and child in made:
                setattr(module, name, made[child])
    return model
