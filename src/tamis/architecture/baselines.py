"""A search is compared with two baselines: as many random connections, and iterative magnitude pruning."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from tamis.architecture.architecture import Architecture, count_kept_connections, keep_largest
from tamis.architecture.layers import maskable_weights
from tamis.errors import InvalidInput, join_names
from tamis.graph import Patterns, lasting, trace
from tamis.progress import Listener
from tamis.pruning import Rewinding, TrainingTask, candidates, prune, prune_iteratively
from tamis.training import Data, Settings


def random_architecture(
    model: nn.Module, sparsity: float, seed: int, include: Patterns = None, exclude: Patterns = None
) -> Architecture:
    """Draw connections of a model at random, each as likely as any other (section 3.2, "Rnd").

    Args:
        model: only names and shapes of its weights count.
        sparsity: the fraction of connections that goes, exact to one connection.
        seed: the same one gives the same masks, on any device.
        include, exclude: as `tamis.architecture.TwoTemperature` takes them.

    Example:
        >>> random_architecture(nn.Linear(10, 10), sparsity=0.9, seed=0).sparsity
        0.9

    Reference: colombo2021architecture.
    """
    shapes = {
        name: model.get_parameter(name).shape for name in maskable_weights(model, lasting(include), lasting(exclude))
    }
    generator = torch.Generator().manual_seed(seed)
    # In float64, in which ties hardly happen: among equal scores the first layers would be favoured. On the CPU, so
    # that a seed means the same for every device.
    scores = {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    keep = count_kept_connections(sparsity, sum(score.numel() for score in scores.values()))
    return Architecture(keep_largest(scores, keep))


def magnitude_architecture(
    model: nn.Module,
    data: Data,
    sparsity: float,
    settings: Settings,
    *,
    rounds: int = 5,
    rewind: int = 0,
    directory: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Listener = True,
) -> Architecture:
    """Find the connections that iterative magnitude pruning leaves, at a sparsity exact to one connection ("IMP").

    `rounds` times: train, take the same fraction of the remaining connections, those of all layers with the smallest
    |θ|, and give the others the weights back that they had after `rewind` epochs of the first training. This is
    `tamis.pruning.prune_iteratively`, but for the last round, which takes as many connections as are too many,
    and is not trained again: an architecture has no weights. A sparsity that takes so few that fractions of them would
    be rounded past it is pruned to in one round.

    Args:
        model: any module that `train` takes; training begins with its weights, and it is left as it is.
        data: the training task.
        sparsity: the fraction of connections that goes.
        settings: how weights are trained, in every round.
        rounds: how often to train and to prune.
        rewind: 0 for the beginning, as in the protocol of 2018 that the paper follows.
        directory: where rounds are left, for the same call to go on from; None for a temporary one.
        device: where to train; None for where the model is.
        progress: True, False, or a function of a `Progress`, called after each epoch.

    Raises:
        InvalidInput: among what would be pruned is a weight that is of no linear or convolution layer, which `search`
            does not mask.

    Example:
        >>> from tamis.training import load_data
        >>> model, data = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), load_data("digits[:60]")
        >>> magnitude_architecture(model, data, 0.9, Settings(epochs=1), rounds=2, progress=False).sparsity
        0.9

    Reference: colombo2021architecture.
    """
    # Whatever can be refused is refused before the first round is trained, which may take hours.
    fraction = amount_per_round(sparsity, rounds)
    sizes = {name: model.get_parameter(name).numel() for name in maskable_weights(model)}
    keep = count_kept_connections(sparsity, sum(sizes.values()))
    _check_same_layers(model, data, sizes)
    last_step = keep * fraction / (1 - fraction)  # how many connections the last round takes, but for rounding
    with ExitStack() as stack:
        *_, before = prune_iteratively(
            model,
            TrainingTask(data, settings, device=device),
            Rewinding(
                # Each round before the last one is off by half a connection at most.
                rounds=rounds - 1 if last_step >= rounds / 2 else 0,
                amount=fraction,
                rewind=rewind,
                by="magnitude",
                scope="global",
                halve_final=False,
            ),
            stack.enter_context(TemporaryDirectory()) if directory is None else directory,
            progress=progress,
        )
    # Rounds take fractions of what is left, rounded; this makes up for all of their roundings at once.
    too_many = sum(sizes.values()) - before.compressed.masks.pruned - keep
    final = prune(before.compressed, too_many, by="magnitude", scope="global")
    return Architecture(final.masks, final.seen)


def amount_per_round(sparsity: float, rounds: int) -> float:
    """Compute the fraction p of the remaining weights to prune in each round: (1 − p)^rounds = 1 − s.

    Example:
        >>> amount_per_round(sparsity=0.75, rounds=2)
        0.5

    Reference: colombo2021architecture.
    """
    if not (type(rounds) is int and rounds >= 1):
        raise InvalidInput(f"rounds={rounds!r} must be a whole number ≥ 1")
    if isinstance(sparsity, bool) or not 0.0 <= sparsity < 1.0:
        raise InvalidInput(f"sparsity={sparsity!r} must be a fraction from 0 to less than 1")
    return 1 - (1 - sparsity) ** (1 / rounds)


def _check_same_layers(model: nn.Module, data: Data, maskable: Collection[str]) -> None:
    """Raise InvalidInput where pruning would choose among other weights than those a search masks."""
    # On copies on the CPU, since tracing is about names alone and must not move the caller's model.
    network = trace(deepcopy(model).cpu(), data.example.cpu())
    differences = {*candidates(network).names} ^ {*maskable}
    if differences:
        raise InvalidInput(
            f"magnitude pruning and search would not choose among the same connections of {type(model).__name__}: only "
            f"one of them takes {join_names(sorted(differences))}, which is no linear or convolution layer's or is not "
            "used"
        )
