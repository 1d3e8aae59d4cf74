"""The registry of rebuilders: which function makes the layers again that a step of a recipe rebuilt.

Binary layers and products of Kronecker-sparse factors have other parameters than the layers they stand for. A file of
such a network says in its recipe how its layers were made; with that, the user's own module becomes the one that the
file is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from tamis.errors import InvalidInput, InvalidParameters

Step = Mapping[str, Any]
Example = tuple[Tensor, ...]
# (model, step of the recipe, example inputs) → a copy of the model with the step's layers, whose weights do not matter;
# or the model itself, where it has them already or the step does not say how they were made. What a file says may be
# forged: a rebuilder raises InvalidInput for it, and allocates no more than the layers of the model justify.
Rebuilder = Callable[[nn.Module, Step, Example], nn.Module]

# A step's name → its rebuilder, as "package:function". Resolved on first use: the packages of layers come after this
# one in the import order, and whoever reads a file without such layers needs none of them.
REBUILDERS: dict[str, str] = {
    "binarize": "tamis.binary:rebuild_binary_layers",
    "kronecker": "tamis.kronecker:rebuild_kronecker_layers",
}


def rebuilds_layers(recipe: Iterable[Step]) -> bool:
    """Return whether a step of a recipe rebuilds layers."""
    return any(step.get("step") in REBUILDERS for step in recipe)


def rebuild_layers(model: nn.Module, recipe: Iterable[Step], example: Example, called: str) -> nn.Module:
    """Rebuild the layers of a module as the steps of a recipe did.

    Args:
        model: the module that the recipe began with; it is left as it is, and its weights do not matter.
        recipe: the steps.
        example: inputs of the module.
        called: what messages call that which has the recipe.

    Returns:
        A copy with other layers, whose weights do not matter; the model itself where nothing is to be rebuilt.

    Raises:
        InvalidParameters: the recipe does not fit the model.

    Example:
        >>> step = {"step": "kronecker", "layers": {"0": [[1, 2, 2, 2], [2, 2, 2, 1]]}}
        >>> rebuild_layers(nn.Sequential(nn.Linear(4, 4)), [step], (torch.zeros(1, 4),), "small.tamis")[0].in_features
        4
    """
    kind = type(model).__name__
    try:
        for step in recipe:
            if step.get("step") in REBUILDERS:
                model = _find_rebuilder(step["step"])(model, step, example)
    except (InvalidInput, TypeError, ValueError) as error:  # a file may say anything
        raise InvalidParameters(
            f"{called} was made for another model than {kind}: its layers cannot be rebuilt as its recipe says: {error}"
        ) from error
    return model


def _find_rebuilder(step: str) -> Rebuilder:
    package, _, name = REBUILDERS[step].partition(":")
    rebuilder: Rebuilder = getattr(import_module(package), name)
    return rebuilder
