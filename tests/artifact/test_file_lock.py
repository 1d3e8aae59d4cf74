"""Locks of open files: one holder at a time, and none where there are no locks."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tamis.artifact.file_lock import sole_holder


def test_one_at_a_time(tmp_path: Path) -> None:
    with (tmp_path / "held").open("a") as first, (tmp_path / "held").open("a") as second:
        assert sole_holder(first) and not sole_holder(second)
        first.close()
        assert sole_holder(second)


def test_where_there_are_no_locks_everybody_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    with (tmp_path / "held").open("a") as file:
        assert sole_holder(file)
