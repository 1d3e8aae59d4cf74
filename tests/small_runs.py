"""A fixture of the tests that compress small networks: an empty folder to do it in."""

from __future__ import annotations

from pathlib import Path

import pytest

import tamis.reports.comparison


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # the page's latencies are not what is tested
