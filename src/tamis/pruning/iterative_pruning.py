"""Iterative pruning trains, prunes, rewinds and retrains: the lottery-ticket protocol (thesis, appendix E.1)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from tamis.artifact import Compressed, Masks, load
from tamis.errors import InvalidInput
from tamis.graph import Network, trace
from tamis.progress import Listener, Progress, reporting
from tamis.pruning.amount import plain
from tamis.pruning.criterion import Criterion, criterion_name
from tamis.pruning.prune import prune
from tamis.training import Data, Settings, Team, Trained, join_team, load_epoch_weights, train, training_device


@dataclass(frozen=True)
class Round:
    """A round holds the network trained after so many prunings (0: dense), and the `.tamis` file that it lies in."""

    number: int
    sparsity: float
    accuracy: float
    trained: Trained
    compressed: Compressed
    path: Path


def prune_iteratively(
    model: nn.Module,
    data: Data,
    settings: Settings,
    directory: str | Path,
    *,
    rounds: int,
    amount: float = 0.2,
    rewind: int = 5,
    by: Literal["phi", "magnitude", "random"] | Criterion = "magnitude",
    scope: Literal["global", "layer"] = "layer",
    halve_final: bool = True,
    test: Data | None = None,
    device: str | torch.device | None = None,
    progress: Listener = True,
) -> tuple[Round, ...]:
    """Train a model, then, `rounds` times: prune some of the remaining weights, rewind the others, train again.

    The dense network is trained for `settings.epochs`. A round prunes `amount` of the weights that the trained network
    before it has left, gives the others the values that they had after `rewind` epochs of the dense training, and
    trains for the remaining epochs. The defaults are those of the lottery-ticket protocol, the final layer at half the
    rate as in the thesis.

    A round leaves the pruned network in `directory`/round_K as pruned.tamis, its checkpoints beside it, and the trained
    network as network.tamis. The same call goes on where a kill left off: finished rounds are read, a broken one
    continues from its last epoch.

    Args:
        model, data, settings, test, device: as `train` takes them; the model is left as it is.
        directory: where rounds are left; made if it is not there.
        rounds: how often to prune.
        amount: the fraction of the remaining weights that goes in each round.
        rewind: the epoch of the dense training to which weights return.
        by, scope, halve_final: as `tamis.prune` takes them.
        progress: True, False, or a function of a `Progress`, called after each epoch.

    Returns:
        The dense network and one for each round; `accuracy` is on `test`, or on the training data without it.

    Example:
        >>> found = prune_iteratively(resnet20(), data, Settings(epochs=90), "out/lottery", rounds=10)
        >>> [(each.sparsity, each.accuracy) for each in found]

    Reference: gonon2024thesis.
    """
    if not (type(rounds) is int and rounds >= 0):
        raise InvalidInput(f"rounds={rounds!r} must be a whole number ≥ 0")
    if not (type(rewind) is int and 0 <= rewind < settings.epochs):
        raise InvalidInput(f"rewind={rewind!r} must be an epoch from 0 to {settings.epochs - 1}")
    rule: dict[str, Any] = {"by": by, "scope": scope, "halve_final": halve_final}
    network = trace(deepcopy(model).cpu(), data.example.cpu())  # training changes its weights, not its graph
    prune(network, amount, **rule)  # what cannot be pruned so is refused now, not after a training
    folder, team = Path(directory), join_team(training_device(model, device))
    finished: list[Round] = []
    total = settings.epochs + rounds * (settings.epochs - rewind)
    with reporting(progress if team.leads else False, "iterative pruning", total) as report:
        for number in range(rounds + 1):
            place = folder / f"round_{number}"
            small = (
                _pruned(finished[-1].compressed, {"amount": plain(amount), **rule}, place, team) if finished else None
            )
            listener = _listener(report, number, settings.epochs, rewind, small)
            common: dict[str, Any] = {"test": test, "directory": place, "device": device, "progress": listener}
            if small is None:
                trained = train(model, data, settings, keep=(rewind,), **common)
            else:
                rewound = deepcopy(model)
                # Always the dense training's weights, not those of the round before: that is what rewinding means.
                rewound.load_state_dict(load_epoch_weights(folder / "round_0", rewind))
                trained = train(rewound, data, settings, masks=small.masks, first_epoch=rewind, **common)
            step = {"step": "train", "data": data.name, **settings.in_effect, "first_epoch": rewind if small else 0}
            compressed = _with_weights(network, trained.model, small, step)
            accuracy = trained.history[-1].reported_accuracy
            path = place / "network.tamis"
            finished.append(Round(number, compressed.masks.sparsity, accuracy, trained, compressed, path))
            if team.leads:
                finished[-1].compressed.save(finished[-1].path)
            team.wait()
    return tuple(finished)


def _pruned(before: Compressed, rule: dict[str, Any], place: Path, team: Team) -> Compressed:
    """Prune once, and leave the choice in a file before training begins, so that a later run continues with it.

    Chosen again, with another number of threads or on another processor, weights whose scores differ by rounding alone
    could change places, and the training that was begun with the first choice could not go on.
    """
    path = place / "pruned.tamis"
    if team.leads and not path.exists():
        place.mkdir(parents=True, exist_ok=True)
        prune(before, **rule).save(path)
    team.wait()
    small = load(path, before.network)
    *steps, last = small.recipe or ({},)
    found = {name: last.get(name, False) for name in rule}
    if found != {**rule, "by": criterion_name(rule["by"])} or tuple(steps) != before.recipe:
        raise InvalidInput(f"{path} was pruned otherwise: by {found} after {len(steps)} steps; use another directory")
    return small


def _listener(
    report: Callable[..., None], number: int, epochs: int, rewind: int, small: Compressed | None
) -> Callable[[Progress], None]:
    """Return a listener that passes the progress of one training on as that of the whole."""
    # A rewound training counts its epochs from `rewind`, hence the last term.
    start = 0 if number == 0 else epochs + (number - 1) * (epochs - rewind) - rewind
    sparsity = 0.0 if small is None else small.masks.sparsity
    return lambda now: report(start + now.done, round=number, accuracy=now.figures["accuracy"], sparsity=sparsity)


def _with_weights(network: Network, model: nn.Module, small: Compressed | None, step: dict[str, Any]) -> Compressed:
    """Return the network with the weights that training gave it and the masks that it held."""
    masks, recipe = (small.masks, small.recipe) if small else (Masks({}), ())
    return Compressed(network.with_weights_of(deepcopy(model).cpu()), masks, [*recipe, step])
