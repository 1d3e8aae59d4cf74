"""A transfer trains an architecture on another task, starting from fresh weights (algorithm A.2)."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path

import torch
from torch import nn

from tamis.architecture.architecture import Architecture
from tamis.errors import InvalidInput
from tamis.graph import remember
from tamis.progress import Listener
from tamis.training import Data, Settings, Trained, device_of, train


def transfer(
    model: nn.Module,
    architecture: Architecture,
    data: Data,
    settings: Settings,
    *,
    test: Data | None = None,
    directory: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Listener = True,
) -> Trained:
    """Give a copy of a model fresh weights, and train those that an architecture keeps; the others stay 0.

        θ ← θ − β m ∘ ∇_θ L(m, θ),      m fixed, θ₀ random.

    Printed: θ₀ ~ N(0, ε_θ). Here each module draws its own usual beginning (`reset_parameters`), whose scale suits its
    shape, from `settings.seed`.

    Args:
        model: any module with the layers of the architecture; its weights are of no account, and it is left as it is.
        architecture: what `search` found, or any other.
        data, settings, test, directory, device, progress: as `tamis.training.train` takes them.

    Returns:
        The trained copy and its history; `history[-1].test_accuracy` is the accuracy that algorithm A.2 puts out.

    Raises:
        InvalidParameters: the architecture is of another network; the message names the first layer that differs.

    Example:
        >>> from tamis.architecture import random_architecture
        >>> from tamis.training import load_data
        >>> model, few = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), load_data("digits:train[:60]")
        >>> found = random_architecture(model, sparsity=0.9, seed=0)  # or one from `search`
        >>> trained = transfer(model, found, few, Settings(epochs=1), test=load_data("digits:test"), progress=False)
        >>> 0.0 <= trained.history[-1].test_accuracy <= 1.0
        True

    Reference: colombo2021architecture.
    """
    architecture.check_fits(model)
    fresh = reinitialise(model, settings.seed)
    trained = train(
        fresh,
        data,
        settings,
        test=test,
        masks=architecture.masks,
        directory=directory,
        device=device,
        progress=progress,
    )
    # The architecture has seen its own samples, and so has whatever is trained with it.
    remember(trained.model, architecture.seen)
    return trained


def reinitialise(model: nn.Module, seed: int) -> nn.Module:
    """Copy a model, let every module redraw its parameters, and restore the caller's random state.

    They are drawn on the CPU, so that the seed means the same on any device; and not from the seed itself: a model that
    the caller has made after `torch.manual_seed` of the same number would begin with the weights of the search.
    """
    fresh = copy.deepcopy(model).cpu()
    # Of the CPU alone, where everything is drawn: other devices keep their state anyway.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes(hashlib.sha256(f"transfer {seed}".encode()).digest()[:7]))
        for place, module in fresh.named_modules():
            # `nn.MultiheadAttention` spells it with an underscore.
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if reset is not None:
                reset()
            elif module._parameters:
                raise InvalidInput(
                    f"'{place or type(module).__name__}' ({type(module).__name__}) has the parameters "
                    f"{', '.join(module._parameters)} and no reset_parameters() to begin them anew with: give it one"
                )
    return fresh.to(device_of(model))
