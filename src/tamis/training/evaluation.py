"""The accuracy of a classifier is measured on data in eval mode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tamis.settings import check_batch
from tamis.training.data import Data
from tamis.training.distributed import device_of

EVALUATION_BATCH = 1000


def evaluate(
    model: nn.Module, data: Data, batch: int = EVALUATION_BATCH, device: str | torch.device | None = None
) -> float:
    """Measure top-1 accuracy in eval mode, as a fraction, and restore the modes of the model.

    Args:
        model: any module that takes `data`'s inputs and returns a score for each class.
        data: what to measure on.
        batch: how many examples to run at once.
        device: where to run, on a copy if the model is elsewhere; None for where the model is.

    Example:
        >>> from tamis.training import load_data
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        >>> 0.0 <= evaluate(model, load_data("digits:test")) <= 1.0
        True
    """
    check_batch(batch)
    where = device_of(model) if device is None else torch.device(device)
    if where != device_of(model):
        model = copy.deepcopy(model).to(where)
    data = data.to(where)
    with eval_mode(model):
        return int(count_correct(model, data, torch.arange(len(data), device=where), batch)) / len(data)


@torch.inference_mode()
def count_correct(model: nn.Module, data: Data, indices: Tensor, batch: int) -> Tensor:
    """Count the samples at these indices that a model classifies correctly, `batch` at a time."""
    # The count stays on the device: reading it after each batch would make a GPU wait.
    right = torch.zeros((), dtype=torch.int64, device=indices.device)
    # An empty tensor splits into one empty batch, which few models take.
    for chosen in indices.split(batch) if len(indices) else ():
        inputs, labels = data.batch(chosen)
        right += (model(inputs).argmax(1) == labels).sum()
    return right


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode, and restore the mode of each of its modules afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
