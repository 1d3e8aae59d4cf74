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
from tamis.pruning.amount import as_plain_amount
from tamis.pruning.criterion import Criterion, name_criterion
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


@dataclass(frozen=True)
class Rewinding:
    """The protocol of iterative pruning says how often to prune, how much, and what weights return to.

    The defaults are those of the lottery-ticket protocol, the final layer at half the rate as in the thesis.

    Attributes:
        rounds: how often to prune.
        amount: the fraction of the remaining weights that goes in each round.
        rewind: the epoch of the dense training to which weights return.
        by, scope, halve_final: as `tamis.prune` takes them.
    """

    rounds: int
    amount: float = 0.2
    rewind: int = 5
    by: Literal["phi", "magnitude", "random"] | Criterion = "magnitude"
    scope: Literal["global", "layer"] = "layer"
    halve_final: bool = True

    def check(self, epochs: int) -> None:
        """Raise InvalidInput for what no training of so many epochs can follow."""
        if not (type(self.rounds) is int and self.rounds >= 0):
            raise InvalidInput(f"rounds={self.rounds!r} must be a whole number ≥ 0")
        if not (type(self.rewind) is int and 0 <= self.rewind < epochs):
            raise InvalidInput(f"rewind={self.rewind!r} must be an epoch from 0 to {epochs - 1}")

    @property
    def rule(self) -> dict[str, Any]:
        """Return the keywords of `prune` in every round."""
        return {"amount": self.amount, "by": self.by, "scope": self.scope, "halve_final": self.halve_final}


@dataclass(frozen=True)
class TrainingTask:
    """A training task is what a model is trained on, how, and where: `train` takes each of these."""

    data: Data
    settings: Settings
    test: Data | None = None
    device: str | torch.device | None = None


def prune_iteratively(
    model: nn.Module,
    task: TrainingTask,
    rewinding: Rewinding,
    directory: str | Path,
    *,
    progress: Listener = True,
) -> tuple[Round, ...]:
    """Train a model, then, several times: prune some of the remaining weights, rewind the others, train again.

    The dense network is trained for all epochs. A round prunes a fraction of the weights that the trained network
    before it has left, gives the others the values that they had after some epochs of the dense training, and trains
    for the remaining epochs.

    A round leaves the pruned network in `directory`/round_K as pruned.tamis, its checkpoints beside it, and the trained
    network as network.tamis. The same call goes on where a kill left off: finished rounds are read, a broken one
    continues from its last epoch.

    Args:
        model: the network; it is left as it is.
        task: the data, and the settings of every training.
        rewinding: how often to prune, how much, and what weights return to.
        directory: where rounds are left; made if it is not there.
        progress: True, False, or a function of a `Progress`, called after each epoch.

    Returns:
        The dense network and one for each round; `accuracy` is on the task's test data, or on the training data
        without it.

    Example:
        >>> from tamis.training import Settings, load_data
        >>> from tamis.training.models import mlp
        >>> task = TrainingTask(load_data("digits:train[:60]"), Settings(epochs=2, batch=30))
        >>> rounds = prune_iteratively(mlp(), task, Rewinding(rounds=1, rewind=1), "lottery", progress=False)
        >>> [round(each.sparsity, 2) for each in rounds]
        [0.0, 0.19]

    Reference: gonon2024thesis.
    """
    data, settings = task.data, task.settings
    rewinding.check(settings.epochs)
    network = trace(deepcopy(model).cpu(), data.example.cpu())  # training changes its weights, not its graph
    prune(network, **rewinding.rule)  # what cannot be pruned so is refused now, not after a training
    folder, team = Path(directory), join_team(training_device(model, task.device))
    finished: list[Round] = []
    # A rewound training begins at `rewind`, so that each round takes that many epochs less than the dense one.
    total = settings.epochs + rewinding.rounds * (settings.epochs - rewinding.rewind)
    with reporting(progress if team.leads else False, "iterative pruning", total) as report:
        for number in range(rewinding.rounds + 1):
            place = folder / f"round_{number}"
            small = _prune_once(finished[-1].compressed, rewinding, place, team) if finished else None
            listener = _listen(report, number, settings.epochs, rewinding.rewind, small)
            common: dict[str, Any] = {
                "test": task.test,
                "directory": place,
                "device": task.device,
                "progress": listener,
            }
            if small is None:
                trained = train(model, data, settings, keep=(rewinding.rewind,), **common)
            else:
                rewound = deepcopy(model)
                # Always the dense training's weights, not those of the round before: that is what rewinding means.
                rewound.load_state_dict(load_epoch_weights(folder / "round_0", rewinding.rewind))
                trained = train(rewound, data, settings, masks=small.masks, first_epoch=rewinding.rewind, **common)
            first_epoch = rewinding.rewind if small else 0
            step = {"step": "train", "data": data.name, **settings.in_effect, "first_epoch": first_epoch}
            compressed = _with_weights(network, trained.model, small, step)
            accuracy = trained.history[-1].reported_accuracy
            path = place / "network.tamis"
            finished.append(Round(number, compressed.masks.sparsity, accuracy, trained, compressed, path))
            if team.leads:
                finished[-1].compressed.save(finished[-1].path)
            # The others must not read the file of this round before the first has written it.
            team.wait()
    return tuple(finished)


def _prune_once(before: Compressed, rewinding: Rewinding, place: Path, team: Team) -> Compressed:
    """Prune once, and leave the choice in a file before training begins, so that a later run continues with it.

    Chosen again, with another number of threads or on another processor, weights whose scores differ by rounding alone
    could change places, and the training that was begun with the first choice could not go on.
    """
    path, rule = place / "pruned.tamis", rewinding.rule
    if team.leads and not path.exists():
        place.mkdir(parents=True, exist_ok=True)
        prune(before, **rule).save(path)
    team.wait()
    small = load(path, before.network)
    *steps, last = small.recipe or ({},)
    wanted = {**rule, "amount": as_plain_amount(rewinding.amount), "by": name_criterion(rewinding.by)}
    found = {name: last.get(name, False) for name in wanted}  # a recipe leaves out what is off
    if found != wanted or tuple(steps) != before.recipe:
        raise InvalidInput(f"{path} was pruned otherwise: by {found} after {len(steps)} steps; use another directory")
    return small


def _listen(
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
