"""Connections can be masked in the weights of a module's linear and convolution layers."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import UninitializedParameter

from tamis.errors import InvalidInput, join_names
from tamis.graph import Patterns, as_patterns, matches


def maskable_weights(model: nn.Module, include: Patterns = None, exclude: Patterns = None) -> dict[str, list[str]]:
    """List all names of each weight that the patterns choose, keyed by its first name; a tied weight has several.

    Args:
        model: any module.
        include, exclude: names or patterns ("features", "*.conv1.*") of weights or of the modules that they are in.
    """
    # Tensors are keys by identity: a weight that several modules share is one entry, with all of its names.
    names: dict[Tensor, list[str]] = {}
    for place, module in model.named_modules(remove_duplicate=False):
        # One that is parametrized already has no weight of its own to train.
        if isinstance(module, nn.Linear | _ConvNd) and "weight" in module._parameters:
            name = f"{place}.weight" if place else "weight"
            if isinstance(module.weight, UninitializedParameter):
                raise InvalidInput(f"'{name}' has no shape yet: run {type(model).__name__} on an example first")
            names.setdefault(module.weight, []).append(name)
    all_names = {each[0]: each for each in names.values()}
    if not all_names:
        raise InvalidInput(f"{type(model).__name__} has no linear or convolution layer whose connections can be masked")
    # A pattern that matches nothing is most likely a slip of the pen, and silently masking everything would hide it.
    include_patterns, exclude_patterns = as_patterns(include), as_patterns(exclude)
    for pattern in (*include_patterns, *exclude_patterns):
        if not any(matches(each, (pattern,)) for each in all_names.values()):
            raise InvalidInput(f"'{pattern}' matches no weight that can be masked; these can: {join_names(all_names)}")
    chosen = {
        name: each
        for name, each in all_names.items()
        if (include is None or matches(each, include_patterns)) and not matches(each, exclude_patterns)
    }
    if not chosen:
        raise InvalidInput(
            f"nothing is left to be masked: {include=} and {exclude=} leave none of {join_names(all_names)}"
        )
    return chosen
