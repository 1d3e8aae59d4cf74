"""A small network and little data, so that a candidate takes a tenth of a second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from small_runs import in_an_empty_directory  # noqa: F401 (a fixture)
from torch import nn

import tamis.reports.comparison
from tamis.training.models import mlp


@pytest.fixture(autouse=True, scope="session")
def latencies_take_no_more_time_than_they_must() -> Iterator[None]:
    """Also in what is made once for all tests of a file, before the folder of the first of them is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # how long is not what is tested
        yield


@pytest.fixture(scope="session")
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((64, 16, 10))
