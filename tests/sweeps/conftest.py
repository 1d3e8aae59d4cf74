"""A small network and little data, so that a candidate takes a tenth of a second."""

from __future__ import annotations

import pytest
import torch
from small_runs import in_an_empty_directory  # noqa: F401 (a fixture)
from torch import nn

from tamis.training.models import mlp


@pytest.fixture(scope="session")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((64, 16, 10))
