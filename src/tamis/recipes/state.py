"""A state goes from step to step of a recipe; a context holds what a step may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tamis.artifact import Compressed
from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.progress import Listener
from tamis.recipes.splits import Splits

DELTA = 0.05  # the probability that any claim of a certificate may be wrong


@dataclass(frozen=True)
class State:
    """A state is a network between two steps, with what later steps need to know of it.

    Attributes:
        small: as it is now; whatever a step makes can be saved as one `.tamis` file.
        reference: what weights are fitted to: the network before it was pruned or quantized, as last trained.
        module: the architecture of `small`, for the steps that train; None where the model came as a program.
    """

    small: Compressed
    reference: Network
    module: nn.Module | None

    def trainable(self) -> nn.Module:
        """Return a copy of the module with the current weights."""
        if self.module is None:
            raise InvalidInput("a program cannot be trained: give the model as a module")
        # The module's own weights may be those of the beginning: the state's are what the last step made.
        return self.small.apply_to(self.module)

    def with_trained_weights(self, module: nn.Module, step: Mapping[str, Any]) -> State:
        """Return the state with the weights of a trained module of the same architecture, as the new reference."""
        # The graph stays: training changes numbers and no shapes.
        network = self.small.network.with_weights_of(module)
        return self.with_new_reference(Compressed(network, self.small.masks, [*self.small.recipe, step]))

    def with_new_reference(self, small: Compressed) -> State:
        """Return the state with another network, which becomes the reference of later steps."""
        return replace(self, small=small, reference=small.network)


@dataclass(frozen=True)
class Context:
    """A context holds what a step may use beside the network.

    Attributes:
        original: the network as the user gave it, whose answers the small one's are compared with.
        data: the parts of the data.
        directory: for what the step leaves on its way, to go on from after a kill.
        notes: a file for what should be known of the step when the run is over; most write none.
        device: where to train.
        progress: as every long call takes it.
    """

    original: Network
    data: Splits
    directory: Path
    notes: Path
    device: torch.device
    progress: Listener

    @classmethod
    def of_run(cls, original: Network, data: Splits, folder: Path, device: torch.device, progress: Listener) -> Context:
        """Make the context of a run, which `run_plan` gives each step a directory and a file for notes in."""
        return cls(original, data, folder, folder / "notes.json", device, progress)
