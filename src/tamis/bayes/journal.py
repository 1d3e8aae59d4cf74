"""A file of all rounds of an online learner, so that a run that is killed goes on as if nothing had happened.

The file grows at its end only. A round is on the disk before it is learnt; whatever a kill leaves half-written at the
end is dropped when the file is opened again.

    "TAMISRND"  length  checksum  which learner (JSON)            the head
    length  checksum  inputs and labels (safetensors)             once for each round

Length and checksum (CRC-32) are four bytes each, little-endian. Beside it, `<path>.snapshot` holds a state of the
learner, from which only the rounds after it need be learnt again; without it, all are.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from tamis.artifact.atomic import replacing
from tamis.artifact.sole import sole_holder
from tamis.bayes.online import OnlineLearner
from tamis.bounds.arguments import check_count
from tamis.errors import CorruptArtifact, InvalidInput

MAGIC = b"TAMISRND"
FRAME = struct.Struct("<II")


class Journal:
    """The rounds of a learner, on disk.

    Opening it brings the learner to where the run was: `rounds` says how many it has learnt, so that the stream goes on
    with the next. A round counts from the moment it is on the disk, also where the kill came before it was learnt.

    Args:
        learner: fresh, made with the arguments and the seed of the run; it is given the rounds of the file.
        path: of the file, which is made where there is none.
        snapshot_every: how many rounds lie between snapshots, each of which holds all rounds so far; None for none.

    Example:
        >>> learner = OnlineLearner(space, Prior(0.1), lam=0.5, seed=0)
        >>> with Journal(learner, "run.rounds") as journal:
        ...     for x, y in stream[journal.rounds:]:
        ...         learner.predict(x)
        ...         journal.update(x, y)
    """

    def __init__(self, learner: OnlineLearner, path: str | Path, *, snapshot_every: int | None = 100) -> None:
        if snapshot_every is not None:
            check_count("snapshot_every", snapshot_every)
        if learner.rounds:
            raise InvalidInput(f"a journal begins with a fresh learner, and this one is after {learner.rounds} rounds")
        self.learner, self.path, self.snapshot_every = learner, Path(path), snapshot_every
        self._file = _opened(self.path)
        try:
            if not sole_holder(self._file):
                raise InvalidInput(f"{self.path} is being written by another run: wait for it, or name another file")
            self._begin()
        except BaseException:
            self._file.close()
            raise

    def _begin(self) -> None:
        """Bring the learner to where the file ends, and cut off what is torn."""
        content, learner = self._file.read(), self.learner
        head = _framed(_which(learner))
        kept, bodies = _read(content, self.path)
        if kept and content[: len(MAGIC) + len(head)] != MAGIC + head:
            raise InvalidInput(f"{self.path} is the journal of another learner, or of one with another seed")
        self._chain = [0, *_chain(bodies)]
        self._replay(bodies)
        self._end = kept
        self._file.truncate(kept)
        if not kept:
            self._append(MAGIC + head)
            _sync_folder(self.path.parent)

    @property
    def rounds(self) -> int:
        """How many the learner has learnt."""
        return self.learner.rounds

    @property
    def snapshot(self) -> Path:
        """Where snapshots lie."""
        return self.path.with_name(self.path.name + ".snapshot")

    def update(self, x: Tensor, y: Tensor) -> None:
        """Write a round down, then learn it; where either fails, both are as they were.

        Args:
            x, y: as `OnlineLearner.update` takes them.
        """
        if self._file.closed:
            raise InvalidInput(f"the journal {self.path} is closed")
        self.learner.checked(x, y)
        body, before = _body(x, y), self._end
        try:
            self._append(_framed(body))
            self.learner.update(x, y)
        except BaseException:
            self._cut(before)
            raise
        self._chain.append(zlib.crc32(body, self._chain[-1]))
        if self.snapshot_every is not None and self.rounds % self.snapshot_every == 0:
            self._take_snapshot()

    def close(self) -> None:
        """Close the file; the learner stays as it is."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, content: bytes) -> None:
        self._file.seek(self._end)
        self._file.write(content)
        self._flush()
        self._end += len(content)

    def _cut(self, end: int) -> None:
        self._file.truncate(end)
        self._flush()
        self._end = end

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _take_snapshot(self) -> None:
        with replacing(self.snapshot) as part:
            torch.save({"chain": self._chain[-1], "state": self.learner.state_dict()}, part)

    def _replay(self, bodies: list[bytes]) -> None:
        self._load_snapshot(len(bodies))
        for body in bodies[self.rounds :]:
            tensors = tensors_of(body)
            self.learner.update(tensors["x"], tensors["y"])

    def _load_snapshot(self, written: int) -> None:
        """Take the state of the snapshot, where there is one of these very rounds."""
        try:
            stored: Any = torch.load(self.snapshot, weights_only=True, map_location="cpu")
            chain, state = stored["chain"], stored["state"]
            rounds = len(state["drawn"])
        except Exception:  # none, or no whole one: the rounds themselves are all that is needed
            return
        if rounds <= written and chain == self._chain[rounds]:
            self.learner.load_state_dict(state)


def _which(learner: OnlineLearner) -> bytes:
    """What tells a learner from others: its arguments, and the state of its generator before the first round."""
    state = learner.state_dict()
    seed = hashlib.sha256(bytes(state["generator"].tolist())).hexdigest()
    return f'{{"learner": {state["identity"]}, "generator": "{seed}"}}'.encode()


def _body(x: Tensor, y: Tensor) -> bytes:
    return bytes_of({"x": x.detach().cpu().contiguous(), "y": y.detach().cpu().contiguous()})


def _framed(body: bytes) -> bytes:
    return FRAME.pack(len(body), zlib.crc32(body)) + body


def _chain(bodies: list[bytes]) -> list[int]:
    """A checksum of all rounds up to each."""
    found, now = [], 0
    for body in bodies:
        now = zlib.crc32(body, now)
        found.append(now)
    return found


def _read(content: bytes, path: Path) -> tuple[int, list[bytes]]:
    """How many bytes are whole, and the rounds in them; the torn end of a file is left out.

    A record that is damaged and has others after it was not torn by a kill: CorruptArtifact.
    """
    if not content.startswith(MAGIC):
        if MAGIC.startswith(content[: len(MAGIC)]) or not any(content):
            return 0, []  # not even the first bytes were written
        raise CorruptArtifact(f"{path} is not a journal of rounds: it begins with {content[:8]!r}")
    place = len(MAGIC)
    bodies: list[bytes] = []
    while place + FRAME.size <= len(content):
        length, checksum = FRAME.unpack_from(content, place)
        end = place + FRAME.size + length
        body = content[place + FRAME.size : end]
        if not length or end > len(content) or zlib.crc32(body) != checksum:
            if end < len(content) and any(content[place:]):
                raise CorruptArtifact(f"{path} is damaged at byte {place}, in the record of round {len(bodies)}")
            break
        bodies.append(body)
        place = end
    return (place, bodies[1:]) if bodies else (0, [])


def _opened(path: Path) -> BinaryIO:
    """A file to read and write: the one that is there, else a new one, without a moment at which it is emptied."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o666), "r+b")


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file durable, where the system lets folders be synchronised."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
