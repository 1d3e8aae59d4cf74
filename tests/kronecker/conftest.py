"""What tests of several files need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tamis.kronecker import tuned_table


@pytest.fixture
def nothing_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine where no pattern was ever tuned."""
    monkeypatch.setenv("TAMIS_CACHE", str(tmp_path))
    tuned_table.read_table.cache_clear()
    yield
    tuned_table.read_table.cache_clear()


@pytest.fixture
def compiling_anew() -> Iterator[None]:
    """Torch counts how often it compiles one `forward`, whichever test it is for, and gives up at some time."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()
