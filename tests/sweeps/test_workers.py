"""Locks that end with their process, and pulses."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tamis.artifact.file_lock
import tamis.sweeps.workers
from tamis.sweeps.workers import Heartbeats, Workers, hold_lock, is_held, send_heartbeats

# From the file of the lock alone, which needs none of the rest of tamis, and so not torch.
HOLD = """
import runpy, sys, time
try_lock = runpy.run_path(sys.argv[1])["try_lock"]
with open(sys.argv[2], "a") as file:
    try_lock(file, wait=True)
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, tamis.artifact.file_lock.__file__, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    assert is_held(path)
    process.kill()
    process.communicate()
    assert not is_held(path)


def test_who_lives(tmp_path: Path) -> None:
    mine, other = Workers(tmp_path), Workers(tmp_path)
    with mine.enlist():
        assert mine.is_alive(mine.own) and other.is_alive(mine.own)
        assert mine.is_alive(other.own) is None  # it never came
        assert mine.is_alive("elsewhere~1~ab") is None
    assert other.is_alive(mine.own) is None  # it left, with nothing undone
    with pytest.raises(KeyboardInterrupt), mine.enlist():
        raise KeyboardInterrupt
    assert other.is_alive(mine.own) is False


def test_where_there_are_no_locks_only_heartbeats_can_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tamis.sweeps.workers, "try_lock", lambda file, wait=False: True)
    mine, other = Workers(tmp_path), Workers(tmp_path)
    with mine.enlist(), other.enlist():
        assert mine.is_alive(mine.own) and mine.is_alive(other.own) is None


def test_who_waits_gets_the_lock_when_it_is_given_back(tmp_path: Path) -> None:
    order: list[str] = []

    def wait() -> None:
        with hold_lock(tmp_path / "lock"):
            order.append("second")

    with hold_lock(tmp_path / "lock"):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.05)  # it would have had the time, were there no lock
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(tamis.sweeps.workers.time, "monotonic", lambda: now)
    pulses = Heartbeats()
    assert not pulses.is_silent(1, None)
    now = 29.0
    assert not pulses.is_silent(1, None) and not pulses.is_silent(2, 7)
    now = 31.0
    assert pulses.is_silent(1, None) and not pulses.is_silent(1, 1)  # a beat after all
    now = 60.0
    assert pulses.is_silent(2, 7) and not pulses.is_silent(1, 1)


def test_a_pulse_beats_until_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tamis.sweeps.workers, "INTERVAL", 0.001)
    seen: list[int] = []
    heard = threading.Event()

    def beat(count: int) -> None:
        seen.append(count)
        if count == 2:
            raise RuntimeError("the database is away")
        if count == 4:
            heard.set()
            raise StopIteration

    with send_heartbeats(beat):
        assert heard.wait(60)
    assert seen == [1, 2, 3, 4]
