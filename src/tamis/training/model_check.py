"""A model is checked by running one example before anything is trained or written."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from tamis.errors import InvalidInput
from tamis.training.data import Data


def check_fits(model: nn.Module, data: Data, called: str = "") -> None:
    """Raise InvalidInput for labels that are no class, inputs that a model does not take, or too few scores.

    Args:
        model: on the device where the data is; a copy of it runs, in eval mode.
        data: what it should be trained or tested on.
        called: what messages call the model; its class if left out.

    Example:
        >>> from tamis.training import load_data
        >>> check_fits(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), load_data("digits"))
    """
    # Before the model runs: on a GPU, a label that is no class ends in an assertion that names nothing.
    least, most = (int(label) for label in data.labels.aminmax())
    if least < 0 or most >= data.classes:
        expected = f"labels from 0 to {data.classes - 1}, one for each of its classes"
        raise InvalidInput(f"'{data.name}' must have {expected}; they go from {least} to {most}")
    called = called or type(model).__name__
    try:
        scores = _run_copy(model, data.example, training=False)
    except Exception as error:  # whatever the user's own module trips over
        shape, reason = tuple(data.example.shape), f"{type(error).__name__}: {error}"
        raise InvalidInput(f"{called} does not take '{data.name}', of shape {shape}: {reason}") from error
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else ()
    if len(shape) != 2 or shape[1] < data.classes:
        got = f"shape {shape}" if isinstance(scores, Tensor) else type(scores).__name__
        expected = f"(1, {data.classes}), a score for each class of '{data.name}'"
        raise InvalidInput(f"{called} must turn one input into scores of shape {expected}; got {got}")


def check_smallest_step(model: nn.Module, data: Data, batch: int, processes: int) -> None:
    """Raise InvalidInput for batches that leave a process one example, where the model cannot train on one.

    Batch-norm cannot, where it sees one value per channel. The last batch is the smallest, and a process' part of n
    examples is at least ⌊n / processes⌋.
    """
    # The last batch is a whole one where batches divide the data.
    last = (len(data) - 1) % batch + 1
    if last // processes > 1:
        return
    try:
        # Tried, and not looked up by type: not every model has batch-norm, and some that have it see several values of
        # one example.
        _run_copy(model, data.example, training=True)
    except Exception as error:  # as above
        shared = f", for {processes} processes together" if processes > 1 else ""
        raise InvalidInput(
            f"{type(model).__name__} cannot train on a single example ({error}), but batch={batch} leaves {last} of "
            f"the {len(data)} examples of '{data.name}' for the last step{shared}; choose another batch"
        ) from error


def _run_copy(model: nn.Module, example: Tensor, *, training: bool) -> object:
    """Run a copy of a model, since running may change buffers and attributes, and restore the random state."""
    with torch.no_grad(), torch.random.fork_rng(devices=[example.device] if example.is_cuda else []):
        return copy.deepcopy(model).train(training)(example)
