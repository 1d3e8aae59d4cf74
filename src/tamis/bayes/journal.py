"""A journal is a file of all rounds of an online learner, from which a killed run continues as if never interrupted.

The file grows at its end only. A round is on the disk before it is learnt; whatever a kill leaves half-written at the
end is dropped when the file is opened again.

    "TAMISRN2"  frame  which learner (JSON)                the head
    frame  inputs and labels (safetensors)                 once for each round

A frame is the length of what follows it, the checksum (CRC-32) of that, and the checksum of these two, four bytes each,
little-endian. By its own checksum a length is known to be what was written: where the file ends before it is reached,
the end is torn, and where a frame is none, the file is damaged.

Beside it, `<path>.snapshot` holds a state of the learner, from which only the rounds after it need be learnt again;
without one of this very learner and these very rounds, all are.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from itertools import accumulate
from pathlib import Path
from types import TracebackType

import torch
from safetensors.torch import load as decode_tensors
from safetensors.torch import save as encode_tensors
from torch import Tensor

from tamis.artifact import load_archive, replace_file, try_lock
from tamis.bayes.online import OnlineLearner
from tamis.bounds import check_count
from tamis.errors import CorruptArtifact, InvalidInput

MAGIC = b"TAMISRN2"
FIRST_VERSION = b"TAMISRND"  # whose lengths have no checksum
FRAME = struct.Struct("<III")


class RoundJournal:
    """A `RoundJournal` writes the rounds of a learner to disk.

    Opening it brings the learner to where the run was: `rounds` says how many it has learnt, so that the stream goes on
    with the next. A round counts from the moment it is on the disk, also where the kill came before it was learnt.

    Args:
        learner: fresh, made with the arguments and the seed of the run; it is given the rounds of the file.
        path: of the file, which is made where there is none; one without a round is begun anew.
        snapshot_every: how many rounds lie between snapshots, each of which holds all rounds so far; None for none.

    Example:
        >>> from tamis.bayes import Dense, Prior
        >>> stream = [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(3)]
        >>> learner = OnlineLearner(Dense((4,), 3, layers=[1], filters=[5]), Prior(0.1), lam=0.5, particles=20, seed=0)
        >>> with RoundJournal(learner, "run.rounds") as journal:
        ...     for x, y in stream[journal.rounds :]:
        ...         probabilities = learner.predict(x)
        ...         journal.update(x, y)
        >>> learner.rounds
        3
    """

    def __init__(self, learner: OnlineLearner, path: str | Path, *, snapshot_every: int | None = 100) -> None:
        if snapshot_every is not None:
            check_count("snapshot_every", snapshot_every)
        if learner.rounds:
            raise InvalidInput(f"a journal begins with a fresh learner, and this one is after {learner.rounds} rounds")
        self.learner, self.path, self.snapshot_every = learner, Path(path), snapshot_every
        # Opened, then locked, then read: without the lock, what is read may be another run's round, half-written.
        self._file, self._end, self._torn = _open(self.path), 0, False
        try:
            if not try_lock(self._file):
                raise InvalidInput(f"{self.path} is being written by another run: wait for it, or name another file")
            self._begin()
        except BaseException:
            self._file.close()
            raise

    def _begin(self) -> None:
        """Bring the learner to where the file ends, and cut off what is torn."""
        content, learner = self._file.read(), self.learner
        # The head names the learner and its generator: rounds replayed with another seed would be another run.
        head = _frame_body(_identify(learner))
        kept, bodies = _read(content, self.path)
        # Another head, and rounds after it: that run may be somebody's, and is never overwritten. Without rounds there
        # is nothing to lose.
        if not content.startswith(MAGIC + head):
            if bodies:
                raise InvalidInput(f"{self.path} is the journal of another learner, or of one with another seed")
            kept = 0
        self._chain = _chain_checksums(head, bodies)
        # Before anything is cut: a file whose rounds this learner cannot learn stays as it is.
        self._replay(bodies)
        self._cut(kept)
        if not kept:
            self._append(MAGIC + head)
            _sync_folder(self.path.parent)

    @property
    def rounds(self) -> int:
        """Return the number of rounds that the learner has learnt."""
        return self.learner.rounds

    @property
    def snapshot(self) -> Path:
        """Return the path of the snapshot."""
        return self.path.with_name(self.path.name + ".snapshot")

    def update(self, x: Tensor, y: Tensor) -> None:
        """Write a round down, then learn it; if either fails, both are left as they were.

        Args:
            x, y: as `OnlineLearner.update` takes them.
        """
        self._check_usable()
        self.learner.check_round(x, y)
        body, before = _encode_round(x, y), self._end
        try:
            # Written first: a kill between the two leaves a round on disk that the next run learns. The other way
            # round, the learner would have learnt a round that no file knows.
            self._append(_frame_body(body))
            self.learner.update(x, y)
        # Also for KeyboardInterrupt: a round on disk that was not learnt would be learnt by the next run alone, and
        # this one would go on without it.
        except BaseException:
            self._cut(before)
            raise
        # Each entry is a checksum of the head and all rounds so far, and so of the exact history that a snapshot must
        # match.
        self._chain.append(zlib.crc32(body, self._chain[-1]))
        if self.snapshot_every is not None and self.rounds % self.snapshot_every == 0:
            self._take_snapshot()

    def _check_usable(self) -> None:
        """Raise InvalidInput where a round cannot be learnt, or not be written after those of the file."""
        if self._file.closed:
            raise InvalidInput(f"the journal {self.path} is closed")
        again = f"open {self.path} again with a fresh learner, which is given the rounds of the file"
        if self._torn:
            raise InvalidInput(f"a round could neither be written to {self.path} nor be taken back: {again}")
        written = len(self._chain) - 1
        if self.rounds != written:
            raise InvalidInput(
                f"the learner has learnt {self.rounds} rounds, and {self.path} holds {written}, since not all went "
                f"through the journal's update: {again}"
            )

    def close(self) -> None:
        """Close the file; the learner stays as it is."""
        self._file.close()

    def __enter__(self) -> RoundJournal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, content: bytes) -> None:
        self._file.seek(self._end)
        left = memoryview(content)
        # Without a buffer, one call may write only a part, as when the disk fills up.
        while left:
            left = left[self._file.write(left) :]
        end = self._end + len(content)
        self._file.truncate(end)  # whatever was there, a record is the last thing in the file
        os.fsync(self._file.fileno())
        self._end = end

    def _cut(self, end: int) -> None:
        self._torn = True  # until it is done: nothing may be written after what else is left there
        self._file.truncate(end)
        os.fsync(self._file.fileno())
        self._end, self._torn = end, False

    def _take_snapshot(self) -> None:
        with replace_file(self.snapshot) as part:
            torch.save({"chain": self._chain[-1], "state": self.learner.state_dict()}, part)

    def _replay(self, bodies: list[bytes]) -> None:
        self._load_snapshot(len(bodies))
        for body in bodies[self.rounds :]:
            tensors = decode_tensors(body)
            self.learner.update(tensors["x"], tensors["y"])

    def _load_snapshot(self, written: int) -> None:
        """Load the snapshot's state, if there is a snapshot of this very learner and these very rounds."""
        try:
            stored = load_archive(self.snapshot)
            chain, state = stored["chain"], stored["state"]
            rounds = len(state["drawn"])
            # A snapshot may be ahead of a journal that was cut, or be of another journal that had the same name before.
            if rounds <= written and chain == self._chain[rounds]:
                self.learner.load_state_dict(state)
        except Exception:  # none, no whole one, or of an older version: the rounds themselves are all that is needed
            return


def count_rounds(path: str | Path) -> int:
    """Count the rounds that a journal holds; 0 where there is no file.

    Example:
        >>> count_rounds("no-such-run.rounds")
        0
    """
    path = Path(path)
    return len(_read(path.read_bytes(), path)[1]) if path.exists() else 0


def _identify(learner: OnlineLearner) -> bytes:
    """Return what identifies a learner: its arguments, and its generator's state before the first round."""
    state = learner.state_dict()
    seed = hashlib.sha256(bytes(state["generator"].tolist())).hexdigest()
    return f'{{"learner": {state["identity"]}, "generator": "{seed}"}}'.encode()


def _encode_round(x: Tensor, y: Tensor) -> bytes:
    return encode_tensors({"x": x.detach().cpu().contiguous(), "y": y.detach().cpu().contiguous()})


def _frame_body(body: bytes) -> bytes:
    return _pack_frame(len(body), zlib.crc32(body)) + body


def _pack_frame(length: int, checksum: int) -> bytes:
    return FRAME.pack(length, checksum, zlib.crc32(struct.pack("<II", length, checksum)))


def _chain_checksums(head: bytes, bodies: list[bytes]) -> list[int]:
    """Compute the checksum of the head, and of the head with all rounds up to each one."""
    return list(accumulate(bodies, lambda now, body: zlib.crc32(body, now), initial=zlib.crc32(head)))


def _read(content: bytes, path: Path) -> tuple[int, list[bytes]]:
    """Return how many bytes are whole, and the rounds in them; leave out the torn end of a file.

    A record that is damaged and has anything after it was not torn by a kill: CorruptArtifact.
    """
    if not content.startswith(MAGIC):
        _check_beginning(content, path)
        return 0, []  # not even the first bytes were written
    place = len(MAGIC)
    bodies: list[bytes] = []
    while place + FRAME.size <= len(content):
        length, checksum, _ = FRAME.unpack_from(content, place)
        # Whether the frame's own checksum holds, by writing the frame again. Without it, a damaged length would look
        # like a record that reaches past the end, and rounds after it would be cut off as torn.
        framed = content.startswith(_pack_frame(length, checksum), place)
        end = place + FRAME.size + length
        body = content[place + FRAME.size : end]
        if not framed or len(body) < length or zlib.crc32(body) != checksum:
            torn = end >= len(content) if framed else not any(content[place:])  # zeros: only the size was written
            if not torn:
                raise _make_damage_error(path, place, len(bodies))
            break
        bodies.append(body)
        place = end
    # The first body is the head; a file without a whole head holds no rounds and is begun anew.
    return (place, bodies[1:]) if bodies else (0, [])


def _check_beginning(content: bytes, path: Path) -> None:
    """Raise CorruptArtifact for a file that is no journal, or one of an older version."""
    if content.startswith(FIRST_VERSION):
        raise CorruptArtifact(f"{path} is a journal of version 1, and not 2: begin the run anew, in another file")
    if any(content) and not MAGIC.startswith(content):
        raise CorruptArtifact(f"{path} is not a journal of rounds: it begins with {content[:8]!r}")


def _make_damage_error(path: Path, place: int, records: int) -> CorruptArtifact:
    """Return the error for a record that differs from what was written."""
    if not records:
        return CorruptArtifact(f"{path} is damaged at byte {place}, where it says which learner it is of")
    whole = f"its first {place} bytes are a journal of the {records - 1} rounds before"
    return CorruptArtifact(f"{path} is damaged at byte {place}, in the record of round {records}: {whole}")


def _open(path: Path) -> io.FileIO:
    """Open a file to read and write, creating it if needed and never truncating it.

    It has no buffer, which would hold what a full disk did not take, and write it later.
    """
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
    return io.FileIO(os.open(path, flags, 0o666), "r+")


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file durable, where the system can synchronise folders."""
    if os.name != "posix":
        return
    # fsync of a file makes its bytes durable, but not its name: a power cut could leave rounds without a file.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
