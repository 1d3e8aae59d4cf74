"""The L1,∞ norm concerns the linear and convolutional layers of a module, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from tamis.errors import InvalidInput, join_names
from tamis.graph import Patterns, as_patterns, matches
from tamis.l1inf.projection import as_columns

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Layer:
    """A layer is a linear or convolutional module, with its name in the model."""

    name: str
    module: nn.Module

    @property
    def weight(self) -> Tensor:
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def bias(self) -> Tensor | None:
        bias = self.module.bias
        assert bias is None or isinstance(bias, Tensor)
        return bias

    @property
    def transposed(self) -> bool:
        return isinstance(self.module, TRANSPOSED)

    @property
    def groups(self) -> int:
        return int(getattr(self.module, "groups", 1))

    def column_norms(self) -> Tensor:
        """Compute the ℓ1-norm of each neuron's incoming weights with its bias, in float64."""
        rows = as_columns(self.weight.detach(), self.transposed, self.groups)
        norms = rows.abs().sum(1, dtype=torch.float64)
        return norms if self.bias is None else norms + self.bias.detach().abs().double()


def find_layers(model: nn.Module) -> list[Layer]:
    """List every linear and convolutional module, in the order in which the model registered them."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be an nn.Module, got {type(model).__name__}")
    # Its own names have "module." before them, which the user never wrote.
    if isinstance(model, DistributedDataParallel):
        model = model.module
    modules = model.named_modules()
    layers = [Layer(name, each) for name, each in modules if isinstance(each, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED))]
    for layer in layers:
        for kind in ("weight", "bias"):
            # `layer` stands for "not there": None is what a layer without a bias has, and is fine.
            parameter = layer.module._parameters.get(kind, layer)
            if parameter is layer or isinstance(parameter, UninitializedParameter):
                raise InvalidInput(
                    f"the {kind} of '{layer.name}' is no parameter of its own but computed from others, or not "
                    "initialised yet: it cannot be projected; remove its parametrization, or call the model once"
                )
    return layers


def find_hidden_layers(model: nn.Module, exclude: Patterns = None) -> list[Layer]:
    """List all layers but those excluded by name or pattern; by default, exclude the last as the output layer."""
    layers = find_layers(model)
    if exclude is None:
        # The theorems leave the output layer free (ERRATA 24), and registration order is all that a module says of
        # order.
        hidden = layers[:-1]
    else:
        unwanted = as_patterns(exclude)
        check_known(unwanted, layers, "exclude")
        hidden = [layer for layer in layers if not matches([layer.name], unwanted)]
    if not hidden:
        raise InvalidInput(
            f"{exclude=} leaves no layer to constrain; linear and convolutional ones are: {_join_layer_names(layers)}; "
            "exclude=() constrains all of them, the last one included"
        )
    return hidden


def find_named_layers(model: nn.Module, names: Mapping[str, object]) -> list[Layer]:
    """List the layers of these names; raise InvalidInput for a name that no layer has."""
    layers = {layer.name: layer for layer in find_layers(model)}
    for name in names:
        if name not in layers:
            raise InvalidInput(f"c names '{name}', which is no layer; these are: {_join_layer_names(layers.values())}")
    return [layers[name] for name in names]


def check_known(patterns: Iterable[str], layers: Iterable[Layer], argument: str) -> None:
    """Raise InvalidInput for a pattern that names no layer."""
    layers = list(layers)
    for pattern in patterns:
        if not any(matches([layer.name], (pattern,)) for layer in layers):
            raise InvalidInput(
                f"{argument} names '{pattern}', which matches no layer; these are: {_join_layer_names(layers)}"
            )


def _join_layer_names(layers: Iterable[Layer]) -> str:
    return join_names([layer.name or "the model itself" for layer in layers]) or "none"
