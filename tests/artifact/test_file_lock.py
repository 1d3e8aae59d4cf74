"""Locks of open files: one holder at a time, and none where there are no locks."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tamis.artifact.file_lock import try_lock


def test_one_at_a_time(tmp_path: Path) -> None:
    with (tmp_path / "held").open("a") as first, (tmp_path / "held").open("a") as second:
        assert try_lock(first) and not try_lock(second)
        first.close()
        assert try_lock(second)


def test_where_there_are_no_locks_everybody_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    with (tmp_path / "held").open("a") as file:
        assert try_lock(file)
