"""Fixtures of the tests that compress small networks: an empty folder, and each network traced once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from traces import TraceMemory

import tamis.reports.comparison


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # the page's latencies are not what is tested


@pytest.fixture(scope="session")
def memory() -> TraceMemory:
    return TraceMemory()


@pytest.fixture(scope="module", autouse=True)
def traces(memory: TraceMemory) -> Iterator[TraceMemory]:
    """Most of a small run is spent on tracing its network, which is the same one in nearly all of them."""
    with memory.in_use():
        yield memory
