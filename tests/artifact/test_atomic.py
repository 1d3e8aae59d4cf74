"""Files appear whole or not at all: after errors, after a kill at any moment, and with two processes at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tamis.artifact.atomic import replacing


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    for content in (b"first", b"second, and longer"):
        with replacing(path) as part:
            assert part.parent == tmp_path and part != path
            assert not path.exists() or path.read_bytes() == b"first"
            part.write_bytes(content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replacing(str(path)) as part:
        part.write_bytes(b"half of the ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), replacing(tmp_path):
        pytest.fail("a directory was opened for writing")
    with pytest.raises(FileNotFoundError, match="no such directory"), replacing(tmp_path / "absent" / "x"):
        pytest.fail("a file was opened in a directory that is not there")
    assert list(tmp_path.iterdir()) == []


# A process that imports torch once, and forks the writers: `writer` saves one content after the other for ever.
PREPARE = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from tamis.artifact.format import read, write

torch.set_num_threads(1)
path = Path(sys.argv[1])
one, two = (torch.full((300, 300), value) for value in (0.1, 0.2))
masks = {"w": torch.ones(300, 300, dtype=torch.bool)}
expected = {"w": ((300, 300), torch.float32)}

def writer(contents):
    pid = os.fork()
    if pid == 0:
        while True:
            for value in contents:
                write(path, {"w": value}, masks, {})
    return pid

def stop(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

def which():
    value = read(path, expected).tensors["w"]
    return 1 if torch.equal(value, one) else 2 if torch.equal(value, two) else 0

draw = random.Random(0)
write(path, {"w": one}, masks, {})
seen = []
"""

KILLED = """
for _ in range(120):
    pid = writer([two, one])
    time.sleep(draw.uniform(0, 0.04))
    stop(pid)
    seen.append(which())
print(*seen)
"""

AT_ONCE = """
pids = [writer([one]), writer([two])]
try:
    end = time.monotonic() + 60
    while len(seen) < 300 or (len(set(seen)) < 2 and time.monotonic() < end):
        seen.append(which())
finally:
    for pid in pids:
        stop(pid)
print(*seen)
"""


def leftovers(tmp_path: Path) -> list[str]:
    return [entry.name for entry in tmp_path.iterdir() if entry.name != "x.tamis"]


def seen(tmp_path: Path, script: str) -> list[str]:
    """Which of the two contents the file had, each time it was read; a kill leaves parts of files behind, at most."""
    command = [sys.executable, "-c", PREPARE + script, str(tmp_path / "x.tamis")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert all(re.fullmatch(r"\.x\.tamis\.\d+\.[0-9a-f]{8}\.part", name) for name in leftovers(tmp_path))
    return run.stdout.split()


def test_a_writer_killed_at_any_moment_leaves_one_of_its_files(tmp_path: Path) -> None:
    found = seen(tmp_path, KILLED)
    assert len(found) == 120 and set(found) == {"1", "2"}
    assert leftovers(tmp_path)  # some kills did interrupt a writer


def test_of_two_writers_at_once_one_is_read(tmp_path: Path) -> None:
    found = seen(tmp_path, AT_ONCE)
    assert len(found) >= 300 and set(found) == {"1", "2"}
