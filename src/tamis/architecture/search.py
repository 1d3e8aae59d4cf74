"""A search trains weights and masks together until few enough connections are left (algorithm A.1)."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tamis.architecture.architecture import Architecture, count_kept_connections
from tamis.architecture.two_temperature import TwoTemperature
from tamis.artifact import Hold, Masks, read_json_object, replace_file
from tamis.errors import InvalidInput
from tamis.graph import Patterns, SeenSamples, lasting
from tamis.progress import Listener
from tamis.settings import Search, documents
from tamis.training import (
    Data,
    Settings,
    Team,
    check_fits,
    device_of,
    join_team,
    learning_rate_at,
    train,
    training_device,
)

SEARCH_FILE = "search.json"
RESULT_FILE = "found.architecture"
GONE_AFTER = 0.5  # of the epochs: when γ = None has taken the connections that no gradient holds


@documents(Search)
def search(
    model: nn.Module,
    data: Data,
    sparsity: float,
    settings: Settings,
    *,
    t_l: float = 100.0,
    t_s: float | None = None,
    gamma: float | None = None,
    mask_rate: float = 0.1,
    spread: float = 0.1,
    include: Patterns = None,
    exclude: Patterns = None,
    directory: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Listener = True,
) -> Architecture:
    """Find which connections of a model to keep, at a sparsity that is exact to one connection.

    Weights and masks are trained together by `tamis.training.train` on the low-temperature relaxation (13): weights
    as `settings` says, with 2γθ added to their gradient, and the masks by plain steps w ← w − α(∇̃_w L + 2γ(1 + w)).
    As soon as no more connections have w > 0 than the sparsity allows, the masks stand (ERRATA 29), and the search is
    over: the training of weights that algorithm A.1 goes on with changes nothing about an architecture.

    Where that does not happen within `settings.epochs`, a warning says so, and the connections with the largest w make
    up the architecture. The default of `mask_rate` suits a few thousand connections. The more there are, the smaller is
    the gradient of each: for a small convolutional network of 34,000, 1.0 was better at each sparsity that was tried.
    With a larger rate, high sparsities need a larger γ than the default.

    With a `directory`, each epoch ends with a checkpoint there, and what is found is left as found.architecture: the
    same call goes on from there, or returns at once, with the same masks to the last bit as if nothing had happened.

    Args:
        model: any module that `train` takes; training begins with its weights, and it is left as it is.
        data: the training task.
        settings: how weights are trained; `settings.seed` draws the beginning of the masks, too.
        <settings>
        directory: where to leave checkpoints and the result; made if it is not there.
        device: where to train; None for where the model is.
        progress: True, False, or a function of a `Progress`, called after each epoch with the sparsity so far.

    Example:
        >>> from tamis.training import load_data
        >>> model, data = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), load_data("digits[:60]")
        >>> found = search(model, data, sparsity=0.5, settings=Settings(epochs=1), progress=False)
        >>> found.sparsity
        0.5
        >>> found.save("digits.architecture")

    Reference: colombo2021architecture.
    """
    # Patterns may be a generator, which one pass would exhaust.
    include, exclude = lasting(include), lasting(exclude)
    relaxed = TwoTemperature(
        model, t_l=t_l, t_s=t_s, include=include, exclude=exclude, spread=spread, seed=settings.seed
    )
    keep = count_kept_connections(sparsity, relaxed.total)
    _check_positive("mask_rate", mask_rate)
    gamma = _compute_default_gamma(settings, len(data), mask_rate, spread) if gamma is None else gamma
    _check_positive("gamma", gamma)
    check_fits(model, data.to(device_of(model)))  # here, where messages call the model by its own name
    team = join_team(training_device(model, device))
    folder, seen = None if directory is None else Path(directory), SeenSamples.of(data.sample_digests, "search")
    if folder is not None:
        # Beside `settings`, these decide what is found; the sparsity does so by the number of connections alone.
        choices = {"keep": keep, "gamma": float(gamma), "mask_rate": float(mask_rate), "spread": float(spread)}
        _check_same_search(folder, {**_describe_search(relaxed, data, settings), **choices}, team)
        # After the check: the result of another search must not be returned as this one's.
        if (folder / RESULT_FILE).exists():
            return Architecture.load(folder / RESULT_FILE).with_seen(seen)
    # Masks follow the weights' schedule at this ratio, so that `mask_rate` is what their rate begins with.
    search_masks = _SearchMasks(keep, gamma, mask_rate / settings.learning_rate)
    try:
        trained = train(
            relaxed, data, settings, masks=search_masks, directory=directory, device=device, progress=progress
        )
    except _Found as found:
        # Raised in a hook within the optimizer's step: training has no other way to end in the middle of an epoch.
        architecture = found.architecture
    else:
        assert isinstance(trained.model, TwoTemperature)
        architecture = _cut_to_sparsity(trained.model, sparsity, settings.epochs)
    # One process writes, and none returns before: a caller may read the file next, in any of them.
    if folder is not None and team.leads:
        architecture.save(folder / RESULT_FILE)
    team.wait()
    return architecture.with_seen(seen)


class _Found(Exception):
    """This exception ends the training: the masks are found, and no later step would change them."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(f"{architecture!r}")
        self.architecture = architecture


class _SearchMasks(Masks):
    """These masks are still being searched for: where training would hold zeros, it takes a step of the masks.

    Args:
        keep: how many connections to end with.
        gamma: γ.
        ratio: of the rate of masks to the learning rate of weights.
    """

    def __init__(self, keep: int, gamma: float, ratio: float) -> None:
        super().__init__({})
        self.keep, self.gamma, self.ratio = keep, gamma, ratio
        self._relaxed: TwoTemperature | None = None

    @property
    def sparsity(self) -> float:
        """Return the sparsity of the masks as they are now."""
        return 0.0 if self._relaxed is None else self._relaxed.sparsity

    def hold(self, model: nn.Module, optimizer: Optimizer) -> Hold:
        """Move the masks before each step of the optimizer, which moves the weights."""
        assert isinstance(model, TwoTemperature)
        self._relaxed = model
        return _Steps(self, model, optimizer)


class _Steps(Hold):
    """These are the steps of the masks beside those of an optimizer; `release()` ends them."""

    def __init__(self, masks: _SearchMasks, relaxed: TwoTemperature, optimizer: Optimizer) -> None:
        self.masks, self.relaxed, self.optimizer = masks, relaxed, optimizer
        # Before the optimizer's step: (17) takes both gradients at the same point, and the penalty of θ must be in its
        # gradient.
        self._hooks = [optimizer.register_step_pre_hook(lambda *_: self._step())]

    def _step(self) -> None:
        rate = self.masks.ratio * self.optimizer.param_groups[0]["lr"]
        if self.relaxed.update(rate, self.masks.gamma, self.masks.keep):
            raise _Found(self.relaxed.architecture())
        # Masks take plain steps (17). Left to the optimizer, they would get its momentum and weight decay as well.
        for w in self.relaxed.logits.values():
            w.grad = None  # the optimizer passes over it
        self.relaxed.add_weight_penalty(self.masks.gamma)


def _compute_default_gamma(settings: Settings, examples: int, mask_rate: float, spread: float) -> float:
    """Compute the γ with which the penalty alone takes w from three times its spread to 0 in half of the epochs.

    Steps w ← w − 2αγ(1 + w) give log(1 + w) ← log(1 + w) − 2αγ, so that γ = log(1 + 3ε_w) / (2 Σα).
    """
    # Rounded up, for the last batch of an epoch, which may be smaller.
    steps = -(-examples // settings.batch)
    until = range(max(1, math.ceil(GONE_AFTER * settings.epochs * steps)))
    # Divided by the weights' own rate, since only the shape of their schedule is wanted.
    rates = (mask_rate * learning_rate_at(settings, step / steps) / settings.learning_rate for step in until)
    return math.log1p(3 * spread) / (2 * sum(rates))


def _cut_to_sparsity(relaxed: TwoTemperature, sparsity: float, epochs: int) -> Architecture:
    warnings.warn(
        f"after {epochs} epochs the masks are at a sparsity of {relaxed.sparsity:.4f}, short of {sparsity}: the "
        "connections with the largest w are kept; a larger gamma or more epochs would reach it",
        stacklevel=3,  # past `search`, at whoever called it
    )
    return relaxed.architecture(sparsity)


def _describe_search(relaxed: TwoTemperature, data: Data, settings: Settings) -> dict[str, Any]:
    """Describe what is searched, on what and how, keyed by the words that an error message uses for each."""
    shapes = {f"the shape of '{name}'": list(w.shape) for name, w in relaxed.logits.items()}
    temperatures = {"t_l": relaxed.t_l, "t_s": relaxed.t_s}
    plain = {**asdict(settings), "milestones": list(settings.milestones)}
    return {**plain, "the data": f"{data.name} ({len(data)} examples)", **shapes, **temperatures}


def _check_same_search(folder: Path, question: dict[str, Any], team: Team) -> None:
    """Raise InvalidInput where a directory holds another search; otherwise record this one there."""
    path = folder / SEARCH_FILE
    if path.exists():
        earlier = _read_search(path)
        # The keys of both: an option may be missing in what an older version wrote.
        for name in dict.fromkeys([*earlier, *question]):
            if earlier.get(name) != question.get(name):
                raise InvalidInput(
                    f"{folder} holds another search: {name} was {earlier.get(name)}, now it is {question.get(name)}. "
                    "Search with the same arguments to go on, or in another directory to begin anew"
                )
    elif team.leads:
        folder.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as part:
            part.write_text(json.dumps(question, indent=1) + "\n")
    team.wait()


def _read_search(path: Path) -> dict[str, Any]:
    return read_json_object(path, "search in another directory")


def _check_positive(name: str, value: float) -> None:
    if isinstance(value, bool) or not 0 < value < math.inf:
        raise InvalidInput(f"{name}={value!r} must be a number > 0")
