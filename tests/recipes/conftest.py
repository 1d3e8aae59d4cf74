"""Small networks and little data, so that a whole run takes a second."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_runs import in_an_empty_directory  # noqa: F401 (a fixture)
from torch import nn

from tamis.training.models import mlp

DATA, TEST = "digits:train[:200]", "digits:test[:100]"


@pytest.fixture(scope="session")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((64, 16, 16, 10))


@pytest.fixture
def quick() -> dict[str, Any]:
    """What every call of `compress` has beside the model, the recipe and the folder."""
    return {"data": DATA, "test": TEST, "progress": False}
