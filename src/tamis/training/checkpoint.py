"""The directory of a training holds a checkpoint to resume from, and the weights of chosen epochs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from tamis.artifact import Masks, load_archive, replace_file, try_lock
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.training.distributed import Team

CHECKPOINT = "checkpoint.pt"
DATA_CONTENT = "the content of the data"  # in an origin; a checkpoint without it is from before origins had it


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint is a training after some epochs, in plain values that `torch.load(weights_only=True)` reads.

    `origin` says what was trained and how, by name: only a training of the same origin may go on from here.
    """

    epoch: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    history: list[dict[str, Any]]
    origin: dict[str, Any]
    masks: dict[str, Tensor]

    @property
    def finished(self) -> bool:
        """Return whether this was the last epoch of its training."""
        # The number of epochs is a setting, and settings are part of the origin.
        return bool(self.epoch == self.origin.get("epochs"))

    def write(self, directory: Path) -> None:
        """Replace the directory's checkpoint by this one, in one step."""
        with replace_file(directory / CHECKPOINT) as part, part.open("wb") as file:
            # As a plain mapping: `weights_only` loading makes no objects of classes like this one.
            torch.save({field.name: getattr(self, field.name) for field in fields(self)}, file)

    def check_origin(self, path: Path, origin: Mapping[str, Any], masks: Mapping[str, Tensor]) -> None:
        """Raise InvalidInput where a training would continue with something other than what was begun."""
        # Before all else: an older origin lacks several entries, and each of them would be reported as a difference.
        if DATA_CONTENT not in self.origin:
            raise InvalidInput(
                f"{path} comes from an older tamis, which did not note what is in the data and the model, so whether "
                "they are the same cannot be known. Train in another directory to begin anew"
            )
        differences = [
            f"{name} was {self.origin.get(name)}, now it is {origin.get(name)}"
            # Names of both sides, since what one of them lacks is a difference, too.
            for name in dict.fromkeys([*self.origin, *origin])
            if self.origin.get(name) != origin.get(name)
        ]
        differences += [
            f"the mask of '{name}' was {_describe_mask(self.masks.get(name))}, "
            f"now it is another: {_describe_mask(masks.get(name))}"
            for name in dict.fromkeys([*self.masks, *masks])
            if not _are_equal(self.masks.get(name), masks.get(name))
        ]
        if differences:
            raise InvalidInput(
                f"{path} comes from another training: {_join_few(differences)}. "
                "Train with the same arguments to go on, or in another directory to begin anew"
            )


class RunDirectory:
    """A run directory is where a training writes and resumes; without a path, nothing is written."""

    def __init__(
        self,
        directory: str | Path | None,
        epochs_to_keep: Sequence[int],
        origin: dict[str, Any],
        masks: Masks | None,
        team: Team,
    ) -> None:
        self.directory = None if directory is None else Path(directory)
        self.epochs_to_keep, self.origin, self.team = epochs_to_keep, origin, team
        # On the CPU, where those of a checkpoint are read to, and with which they are compared.
        self.masks = {name: mask.cpu() for name, mask in (masks or {}).items()}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the directory, creating it if needed, so that no other training works in it.

        The first process holds it for its team. Where training is finished nothing is left to write, and anybody may
        read.

        Raises:
            InvalidInput: another training is at work there; in every process of the team.
        """
        if self.directory is None:
            yield
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.directory, os.O_RDONLY)  # the directory itself: a file to hold would be left in it
        try:
            # One process locks for all: a lock belongs to one open file, and its own team would be shut out by it.
            free = not self.team.leads or try_lock(handle) or _is_finished(self.directory)
            # Every process must learn of it: those that went on alone would wait for the first one forever.
            if not all(self.team.extremes(int(free))):
                raise InvalidInput(
                    f"another training is at work in '{self.directory}': wait for it, or train in another directory"
                )
            yield
        finally:
            # This gives the lock back, however training ended.
            os.close(handle)

    def resume(self, model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
        """Bring both to where training was interrupted, and return the records of the epochs so far.

        The directory must be locked.
        """
        if self.directory is None:
            return []
        # Under the lock, so that no other training replaces the file between reading it and going on from it.
        checkpoint = read_checkpoint(self.directory)
        if checkpoint is not None:
            checkpoint.check_origin(self.directory / CHECKPOINT, self.origin, self.masks)
            self._check_saved_epochs(self.directory, checkpoint.epoch)
        if self.team.leads:  # the one that writes, and has not begun to; only now is it known to be its directory
            _remove_unfinished(self.directory)
        if checkpoint is None:
            return []
        model.load_state_dict(checkpoint.model)
        optimizer.load_state_dict(checkpoint.optimizer)
        return checkpoint.history

    def _check_saved_epochs(self, directory: Path, reached: int) -> None:
        missed = {epoch for epoch in self.epochs_to_keep if epoch <= reached} - {*list_saved_epochs(directory)}
        # What passed unwritten cannot be had again without training anew.
        if missed:
            raise InvalidInput(
                f"the weights of epoch {min(missed)} were not kept in {directory}, which is at epoch "
                f"{reached} already; train in another directory to keep them"
            )

    def write(self, epoch: int, model: nn.Module, optimizer: Optimizer, history: list[dict[str, Any]]) -> None:
        """Write the state after an epoch, and wait until the whole team may read it."""
        self.save_weights(epoch, model)  # first: who goes on from the checkpoint may rely on it
        # One process writes: all of them have the same weights, and two writers would undo each other's work.
        if self.directory is not None and self.team.leads:
            state = dict(model.state_dict())
            Checkpoint(epoch, state, optimizer.state_dict(), history, self.origin, self.masks).write(self.directory)
        self.team.wait()  # nobody may return and read what the first process has yet to write

    def save_weights(self, epoch: int, model: nn.Module) -> None:
        """Write the weights after an epoch, if they are to be kept."""
        if self.directory is not None and self.team.leads and epoch in self.epochs_to_keep:
            save_epoch_weights(model, self.directory, epoch)


def read_checkpoint(directory: str | Path) -> Checkpoint | None:
    """Read the checkpoint in a directory, with tensors on the CPU; return None where there is none yet."""
    path = Path(directory) / CHECKPOINT
    if not path.exists():
        return None
    try:
        return Checkpoint(**load_archive(path))
    except OSError:  # a disk that fails says nothing about the file, and deleting it would be the wrong advice
        raise
    except Exception as error:  # torch, pickle and zipfile each have their own, and a changed byte can meet any of them
        raise CorruptArtifact(
            f"{path} is damaged or not a checkpoint of tamis ({_explain(error)}); delete it to begin anew"
        ) from error


def save_epoch_weights(model: nn.Module, directory: Path, epoch: int) -> None:
    """Write a model's state_dict where `load_epoch_weights` reads it."""
    state = {name: _copy_apart(value) for name, value in model.state_dict().items()}
    with replace_file(_weights_path(directory, epoch)) as part:
        part.write_bytes(safetensors.torch.save(state))


def load_epoch_weights(directory: str | Path, epoch: int) -> dict[str, Tensor]:
    """Load the weights of an epoch that `train` was told to keep, as a state_dict on the CPU.

    Args:
        directory: that of `train`.
        epoch: how many epochs had been trained; 0 for the weights that training began with.

    Example:
        >>> from tamis.training import Settings, load_data, train
        >>> model, data = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), load_data("digits[:60]")
        >>> dense = train(model, data, Settings(epochs=2), directory="runs/dense", keep=(1,), progress=False)
        >>> model.load_state_dict(load_epoch_weights("runs/dense", 1))  # rewound
        <All keys matched successfully>
    """
    path = _weights_path(Path(directory), epoch)
    if not path.is_file():
        others = ", ".join(map(str, list_saved_epochs(directory))) or "none"
        raise InvalidInput(
            f"there are no weights of epoch {epoch} in {directory} (kept there: {others}); "
            f"train with keep=({epoch},) to have them"
        )
    try:
        return safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise CorruptArtifact(f"{path} is damaged or no safetensors file ({error})") from error


def list_saved_epochs(directory: str | Path) -> list[int]:
    """List the epochs whose weights `load_epoch_weights` can load, in order."""
    # Other files may lie in the directory, too, and are no epochs.
    matches = [re.fullmatch(r"epoch_(\d+)\.safetensors", path.name) for path in Path(directory).glob("*")]
    return sorted(int(match[1]) for match in matches if match)


def _is_finished(directory: Path) -> bool:
    checkpoint = read_checkpoint(directory)
    return checkpoint is not None and checkpoint.finished


def _remove_unfinished(directory: Path) -> None:
    """Delete the part files that `replace_file` leaves behind when it is killed."""
    # Only names that this module writes under: a file of anybody else's is not ours to delete.
    for pattern in (f".{CHECKPOINT}.*.part", ".epoch_*.safetensors.*.part"):
        for part in directory.glob(pattern):
            part.unlink(missing_ok=True)


def _explain(error: Exception) -> str:
    """Return the reason in one plain line.

    torch prints it in colours, and adds advice on how to load the file all the same, which is left out.
    """
    # torch raises an error of its own, with advice, while it handles the one that says what happened.
    cause = error.__context__ or error
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(cause)).strip().splitlines()
    return lines[0].rstrip() if lines else type(cause).__name__


def _weights_path(directory: Path, epoch: int) -> Path:
    return directory / f"epoch_{epoch}.safetensors"


def _copy_apart(value: Tensor) -> Tensor:
    """Copy a tensor so that it shares memory with no other, as safetensors asks, even where parameters are tied."""
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _are_equal(mask: Tensor | None, other: Tensor | None) -> bool:
    return mask is not None and other is not None and torch.equal(mask.cpu(), other.cpu())


def _describe_mask(mask: Tensor | None) -> str:
    return "none" if mask is None else f"one with {int((~mask).sum())} of {mask.numel()} pruned"


def _join_few(differences: list[str], most: int = 4) -> str:
    more = len(differences) - most
    return "; ".join(differences[:most]) + (f"; and {more} more" if more > 0 else "")
