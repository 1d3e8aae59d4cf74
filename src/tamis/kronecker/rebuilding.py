"""`tamis.load` rebuilds Kronecker-sparse layers for files whose recipe has the step "kronecker"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from tamis.errors import InvalidInput
from tamis.kronecker.layer import KroneckerLayer
from tamis.kronecker.pattern import as_chain, nonzeros
from tamis.kronecker.replace import replace

# Times the weights of a layer: more than any use of factors has, and a forged file cannot ask for all memory.
MOST_WEIGHTS = 16


def rebuild_kronecker_layers(model: nn.Module, step: Mapping[str, Any], example: tuple[Tensor, ...]) -> nn.Module:
    """Replace layers by products of factors, with the patterns that a step of a recipe chose.

    Args:
        model: the model that the step began with, or one with these factors already; it is left as it is.
        step: what the recipe says of it; its "layers" are the patterns by the names of layers.
        example: inputs of the model, which are not needed here.
    """
    if "layers" not in step:
        return model
    present = {name for name, module in model.named_modules() if isinstance(module, KroneckerLayer)}
    chains = {name: as_chain(chain) for name, chain in dict(step["layers"]).items() if name not in present}
    for name, chain in chains.items():
        if nonzeros(chain) > MOST_WEIGHTS * chain[0].rows * chain[-1].columns:
            raise InvalidInput(f"the factors of '{name}' would have {nonzeros(chain):,} weights, more than it needs")
    return replace(model, chains, begin="scratch", convolutions=True) if chains else model
