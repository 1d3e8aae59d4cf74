"""What goes from step to step of a recipe, and what a step may use."""

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
    """A network on its way.

    Attributes:
        small: as it is now; whatever a step makes can be saved as one `.tamis` file.
        reference: what weights are fitted to: the network before it was pruned or quantized, as last trained.
        module: the architecture of `small`, for the steps that train; None where the model came as a program.
    """

    small: Compressed
    reference: Network
    module: nn.Module | None

    def trainable(self) -> nn.Module:
        """A copy of the module with the weights of now."""
        if self.module is None:
            raise InvalidInput("a program cannot be trained: give the model as a module")
        return self.small.apply_to(self.module)

    def trained(self, module: nn.Module, step: Mapping[str, Any]) -> State:
        """With the weights of a module of the same architecture, which are what later steps refer to."""
        network = self.small.network.with_weights_of(module)
        return self.renewed(Compressed(network, self.small.masks, [*self.small.recipe, step]))

    def renewed(self, small: Compressed) -> State:
        """With another network, which is what later steps refer to."""
        return replace(self, small=small, reference=small.network)


@dataclass(frozen=True)
class Context:
    """What a step has beside the network.

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
