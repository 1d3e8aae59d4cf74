"""Files appear whole or not at all: after errors, after a kill at any moment, and with two processes at once."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from tamis.artifact.atomic_file import replace_file


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    for content in (b"first", b"second, and longer"):
        with replace_file(path) as part:
            assert part.parent == Path(os.path.realpath(tmp_path)) and part != path
            assert not path.exists() or path.read_bytes() == b"first"
            part.write_bytes(content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replace_file(str(path)) as part:
        part.write_bytes(b"half of the ne")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), replace_file(tmp_path):
        pytest.fail("a directory was opened for writing")
    with pytest.raises(FileNotFoundError, match="no such directory"), replace_file(tmp_path / "absent" / "x"):
        pytest.fail("a file was opened in a directory that is not there")
    assert list(tmp_path.iterdir()) == []


class Full(io.RawIOBase):
    """A file on a disk that is full."""

    def writable(self) -> bool:
        return True

    def write(self, content: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # without a name, as the write of any file does it


def by_safetensors() -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    "write", [lambda: Full().write(b"x"), lambda: torch.save(torch.zeros(9), Full()), by_safetensors]
)
def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, write: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=r"No space left on device: '.*x\.bin'$"), replace_file(tmp_path / "x.bin"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_other_errors_are_passed_on(tmp_path: Path) -> None:
    for error in (ValueError("wrong"), FileNotFoundError(errno.ENOENT, "no such file", "elsewhere")):
        with pytest.raises(type(error)) as raised, replace_file(tmp_path / "x.bin"):
            raise error
        assert raised.value is error


def replace(path: Path, content: bytes) -> Path:
    with replace_file(path) as part:
        part.write_bytes(content)
    return part


def test_of_a_link_the_file_it_leads_to_is_replaced(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (tmp_path / "link").symlink_to(Path("there") / "x.bin")
    (tmp_path / "link to link").symlink_to("link")
    for name, content in (("link", b"through a link to nothing yet"), ("link to link", b"through two")):
        part = replace(tmp_path / name, content)
        assert part.parent == Path(os.path.realpath(there))
        assert (there / "x.bin").read_bytes() == (tmp_path / name).read_bytes() == content
    assert (tmp_path / "link").is_symlink() and (tmp_path / "link to link").is_symlink()
    assert [entry.name for entry in there.iterdir()] == ["x.bin"]


def identity(path: Path) -> tuple[int, ...]:
    """Of what stands there; not when it was last looked at, for to follow a link is to look at it."""
    found = path.lstat()
    return found.st_dev, found.st_ino, found.st_mode, found.st_mtime_ns


def test_what_is_no_regular_file_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to a pipe").symlink_to("pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "pipe", tmp_path / "to a pipe", tmp_path / "loop", Path("/dev/null")):
        before = identity(path)
        with pytest.raises(OSError, match=re.escape(str(path))), replace_file(path):
            pytest.fail(f"{path} was to be replaced")
        assert identity(path) == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"pipe", "to a pipe", "loop"}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755, 0o444, 0o200])
def test_a_replaced_file_passes_its_permissions_on(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    path.chmod(mode)
    with replace_file(path) as part:
        part.write_bytes(b"new")
        assert part.stat().st_mode & 0o077 & ~mode == 0, "the content was open to others than the old one"
    assert path.stat().st_mode & 0o777 == mode
    path.chmod(0o600)
    assert path.read_bytes() == b"new"


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    replace(tmp_path / "x.bin", b"new")
    assert (tmp_path / "x.bin").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("name", ["x" * 200 + ".tamis", "x" * 255, "é" * 127, "\U0001f600" * 63 + "abc"])
def test_a_long_name_is_shortened_in_that_of_the_part(tmp_path: Path, name: str) -> None:
    part = replace(tmp_path / name, b"new")
    assert (tmp_path / name).read_bytes() == b"new"
    shown = re.fullmatch(r"\.(.+)\.\d+\.[0-9a-f]{8}\.part", part.name)
    assert shown is not None and name.startswith(shown[1])
    assert len(os.fsencode(part.name)) <= 255
    assert shown[1] == name or len(os.fsencode(part.name)) > 255 - 4, "it was shortened more than it had to be"


# A process that imports torch once, for both tests, and forks the writers: `writer` saves one content after the other
# for ever. The file is small, so that most of a write is not the coding of numbers, and kills fall on its other steps.
SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from tamis.artifact.format import read, write

torch.set_num_threads(1)
one, two = (torch.full((60, 60), value) for value in (0.1, 0.2))
masks = {"w": torch.ones(60, 60, dtype=torch.bool)}
expected = {"w": ((60, 60), torch.float32)}

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
path, seen = Path(sys.argv[1]) / "killed" / "x.tamis", []
write(path, {"w": one}, masks, {})
start = time.monotonic()
for value in (two, one) * 3:
    write(path, {"w": value}, masks, {})
twice = (time.monotonic() - start) / 3  # what both contents take, however busy the machine is
end = time.monotonic() + 60
while len(seen) < 60 or (len(set(seen)) < 2 and time.monotonic() < end):
    pid = writer([two, one])
    time.sleep(draw.uniform(0, 2 * twice))
    stop(pid)
    seen.append(which())
print(*seen)

path, seen = Path(sys.argv[1]) / "at once" / "x.tamis", []
write(path, {"w": one}, masks, {})
pids = [writer([one]), writer([two])]
try:
    end = time.monotonic() + 60
    while len(seen) < 100 or (len(set(seen)) < 2 and time.monotonic() < end):
        seen.append(which())
finally:
    for pid in pids:
        stop(pid)
print(*seen)
"""


def leftovers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name != "x.tamis"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[str]]:
    """For the folder of each test, which of the two contents its file had, each time it was read."""
    root = tmp_path_factory.mktemp("written")
    folders = [root / name for name in ("killed", "at once")]
    for folder in folders:
        folder.mkdir()
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(root)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return dict(zip(folders, map(str.split, run.stdout.splitlines()), strict=True))


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_one_of_its_files(written: dict[Path, list[str]]) -> None:
    folder, found = next(iter(written.items()))
    assert len(found) >= 60 and set(found) == {"1", "2"}
    parts = leftovers(folder)  # a kill leaves parts of files behind, at most
    assert parts and all(re.fullmatch(r"\.x\.tamis\.\d+\.[0-9a-f]{8}\.part", name) for name in parts)


@pytest.mark.slow
def test_of_two_writers_at_once_one_is_read(written: dict[Path, list[str]]) -> None:
    folder, found = list(written.items())[1]
    assert len(found) >= 100 and set(found) == {"1", "2"}
    assert all(re.fullmatch(r"\.x\.tamis\.\d+\.[0-9a-f]{8}\.part", name) for name in leftovers(folder))
