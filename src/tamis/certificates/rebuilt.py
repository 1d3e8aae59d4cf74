"""`rebuilt_for`: the architecture of a file whose recipe rebuilt layers, made of the user's own module.

Rooms that rebuild layers are imported for files that have such layers: who verifies another one needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tamis.artifact import Compressed, File, load, recipe_of
from tamis.errors import InvalidInput, InvalidParameters
from tamis.graph import Network

Step = Mapping[str, Any]
Example = tuple[Tensor, ...]
MOST_WEIGHTS = 16  # times those of a layer that a file may ask us to make of its factors


def rebuilt_for(file: str | Path | File, model: nn.Module) -> nn.Module:
    """The module that a `.tamis` file is for: the user's own, with the layers rebuilt that its recipe rebuilt.

    Binary layers and products of Kronecker-sparse factors have other parameters than the layers that they stand for.
    `tamis.load(file, rebuilt_for(file, model))` reads such a file.

    Args:
        file: a `.tamis` file.
        model: the module that the file's network was made of; it is left as it is, and its weights do not matter.

    Returns:
        A copy with other layers, whose weights do not matter; or `model` itself, if none were rebuilt, or if it has
        layers of that kind already.

    Raises:
        InvalidParameters: the recipe does not fit the model.
        CorruptArtifact: the file is damaged, or not a `.tamis` file.

    Example:
        >>> binary = tamis.rebuilt_for("binary.tamis", digits_cnn())
        >>> module = tamis.load("binary.tamis", binary).apply_to(binary)
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"rebuilt_for needs the module that '{file}' was made of, got {type(model).__name__}")
    recipe, example = recipe_of(file, model)
    try:
        for step in recipe:
            if step.get("step") in WAYS:
                model = WAYS[step["step"]](model, step, example)
    except (InvalidInput, TypeError, ValueError) as error:  # a file may say anything
        raise InvalidParameters(
            f"'{file}' was made for another model than {type(model).__name__}: its layers cannot be rebuilt as the "
            f"file says: {error}"
        ) from error
    return model


def load_rebuilding(file: str | Path | File, model: nn.Module) -> tuple[Compressed, nn.Module]:
    """What a file holds, and the module that it is for: the user's own, or else the one that `rebuilt_for` makes."""
    file = File.read(file)
    try:
        return load(file, model), model
    except InvalidParameters:
        if (made := rebuilt_for(file, model)) is model:
            raise
        return load(file, made), made


def load_beside(
    original: Network | nn.Module, net: Network, file: File, rebuilt: Network | nn.Module | None
) -> Compressed:
    """The network of a file that is compared with the original.

    Args:
        original: as the user gave it.
        net: the same, traced.
        file: the `.tamis` file.
        rebuilt: as `certify` takes it.
    """
    try:
        return load(file, net)
    except InvalidParameters:
        given = original if rebuilt is None else rebuilt
        if given is net:
            raise
        return load(file, given) if isinstance(given, Network) else load_rebuilding(file, given)[0]


def _binarized(model: nn.Module, step: Step, example: Example) -> nn.Module:
    from tamis.binary import BinaryLayer, binarize

    if "scale" not in step or _has(model, BinaryLayer):
        return model
    keep = tuple(str(name) for name in step.get("keep", ()))
    return binarize(model, keep, example, str(step["scale"]), str(step.get("estimator")))


def _factored(model: nn.Module, step: Step, example: Example) -> nn.Module:
    from tamis.kronecker import KroneckerLayer, as_chain, nonzeros, replace

    if "layers" not in step or _has(model, KroneckerLayer):
        return model
    chains = {name: as_chain(chain) for name, chain in dict(step["layers"]).items()}
    for name, chain in chains.items():
        if nonzeros(chain) > MOST_WEIGHTS * chain[0].rows * chain[-1].columns:
            raise InvalidInput(f"the factors of '{name}' would have {nonzeros(chain):,} weights, more than it needs")
    return replace(model, chains, begin="scratch", convolutions=True)


def _has(model: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in model.modules())


WAYS: dict[str, Callable[[nn.Module, Step, Example], nn.Module]] = {
    "binarize": _binarized,
    "kronecker": _factored,
}
