"""A prepared model has its graph, its module and its device, and is checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tamis.errors import InvalidInput, TraceError
from tamis.graph import Network, trace
from tamis.recipes.schema import Recipe
from tamis.recipes.splits import Splits
from tamis.training import check_fits


@dataclass(frozen=True)
class PreparedModel:
    """A prepared model is a traced model, ready for a run.

    Attributes:
        net: its graph.
        module: the module, for the steps that train or rebuild; None where the model came as a graph.
        name: what messages, certificates and lock files call it.
        device: where steps train.
    """

    net: Network
    module: nn.Module | None
    name: str
    device: torch.device

    def check(self, recipe: Recipe, data: Splits) -> None:
        """Raise InvalidInput for what would fail later, before anything is written."""
        # Of the budget's starts as well, which may run hours from now.
        for step in recipe.every_step:
            if self.module is None and (step.trains or step.rebuilds):
                raise InvalidInput(
                    f"the step '{step.step}' needs a module, and {self.name} is an exported program without one"
                )
        trains = [step.step for step in recipe.every_step if step.trains]
        if trains and not data.has_labels:
            # The name that the user wrote, not that of the part that was left when some of it was set aside.
            raise InvalidInput(f"'{recipe.data.train}' has no labels, which the step '{trains[0]}' needs to train")
        # Both: test data that the network does not take would end the run after all of its steps.
        for part in (data.train, data.test):
            try:
                self.net.check_inputs((part.example,))
            except InvalidInput as error:
                raise InvalidInput(f"{self.name} does not take '{part.name}': {error}") from error
        # Scores for each class matter only to steps that train; a network without classes can still be pruned.
        if self.module is not None and trains:
            check_fits(self.module, data.train, called=self.name)
        # A NaN among the weights would turn every later comparison into nonsense.
        self.net.check_finite()

    def rebuilt_module(self, recipe: Recipe) -> nn.Module | None:
        """Return the module that a recipe's file is read for, where its layers were rebuilt; None: for the graph."""
        return self.module if any(step.rebuilds for step in recipe.plan) else None


def prepare_model(
    model: Any, data: Splits, example: Any = None, device: str | torch.device | None = None, name: str | None = None
) -> PreparedModel:
    """Trace a model, or take a graph as it is.

    Args:
        model: a module or a `Network`.
        data: what a module is traced with, unless there is an example.
        example: an input to trace a module with.
        device: where steps train; None: where the model is.
        name: what messages call the model; its class by default.
    """
    name = name or type(model).__name__
    net = model if isinstance(model, Network) else _trace(model, example, data, name)
    if not net.params:
        raise InvalidInput(f"{name} has no parameters: there is nothing to make smaller")
    module = None if isinstance(model, Network) else model
    return PreparedModel(net, module, name, _choose_device(net, device))


def _trace(model: Any, example: Any, data: Splits, name: str) -> Network:
    # Said here, where the message can name the function that the user called.
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"compress needs a module or a Network, got {type(model).__name__}")
    if example is not None:
        return trace(model, example)
    try:
        return trace(model, data.train.example)
    except TraceError as error:
        raise InvalidInput(f"{name} does not take inputs as those of '{data.train.name}': {error}") from error


def _choose_device(net: Network, device: str | torch.device | None) -> torch.device:
    if device is None:
        return net.device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidInput(f"device must be cpu, cuda or another one of torch, got {device!r:.60}") from None
