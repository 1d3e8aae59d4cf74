"""The journal: cut at any byte, a run goes on as if nothing had happened."""

import errno
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from bayes.test_online import learner, ring, same, stream

from tamis.bayes.journal import FIRST_VERSION, FRAME, MAGIC, RoundJournal, _read, count_rounds
from tamis.bayes.networks import Dense
from tamis.bayes.online import OnlineLearner
from tamis.bayes.posterior import Sampling
from tamis.bayes.prior import Prior
from tamis.errors import CorruptArtifact, InvalidInput

ROUNDS = stream((3,), 5)


def small(seed: int = 0) -> OnlineLearner:
    sampling = Sampling(threshold=0.95, sweeps=1)
    return OnlineLearner(Dense((3,), 2, [1, 2], [2]), Prior(0.3, 3.0), 2.0, 8, seed, sampling=sampling)


def written(path: Path, count: int, snapshot_every: int | None = None, seed: int = 0) -> OnlineLearner:
    """A learner that has gone on to so many rounds."""
    told = small(seed)
    with RoundJournal(told, path, snapshot_every=snapshot_every) as journal:
        for x, y in ROUNDS[journal.rounds : count]:
            journal.update(x, y)
    return told


@cache
def files_of(count: int, snapshot_every: int | None = None) -> dict[str, bytes]:
    """What a learner that has gone on to so many rounds leaves behind, by the names of the files."""
    with TemporaryDirectory() as folder:
        written(Path(folder) / "run.rounds", count, snapshot_every)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def left_behind(path: Path, count: int, snapshot_every: int | None = None) -> None:
    """The files of such a learner, beside `path`."""
    for name, content in files_of(count, snapshot_every).items():
        path.with_name(name).write_bytes(content)


@pytest.fixture(scope="module")
def whole() -> OnlineLearner:
    told = small()
    for x, y in ROUNDS:
        told.update(x, y)
    assert told.posterior.resampled > 0
    return told


def ends(content: bytes) -> list[int]:
    """Where the head and each record end."""
    found, place = [], len(MAGIC)
    while place < len(content):
        place += FRAME.size + FRAME.unpack_from(content, place)[0]
        found.append(place)
    return found


def test_a_journal_changes_nothing(tmp_path: Path, whole: OnlineLearner) -> None:
    assert same(written(tmp_path / "run.rounds", 5).state_dict(), whole.state_dict())
    assert not (tmp_path / "run.rounds.snapshot").exists()


@pytest.mark.parametrize("snapshot_every", [None, 2])
def test_a_run_that_is_killed_goes_on(tmp_path: Path, whole: OnlineLearner, snapshot_every: int | None) -> None:
    path = tmp_path / "run.rounds"
    left_behind(path, 3, snapshot_every)
    told = small()
    with RoundJournal(told, path, snapshot_every=snapshot_every) as journal:
        assert journal.rounds == 3 and path.with_name("run.rounds.snapshot").exists() == (snapshot_every is not None)
        for x, y in ROUNDS[journal.rounds :]:
            journal.update(x, y)
    assert same(told.state_dict(), whole.state_dict())


def test_cut_at_every_byte_all_whole_records_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.rounds"
    left_behind(path, 3)
    content = path.read_bytes()
    stops = ends(content)
    assert len(stops) == 4 and stops[-1] == len(content)
    for cut in range(len(content) + 1):
        for tail in (b"", b"\0" * 40):  # blocks of which only the length was written
            kept, bodies = _read(content[:cut] + (tail if cut in stops else b""), path)
            assert kept == max([0, *(stop for stop in stops if stop <= cut)])
            assert len(bodies) == max(0, sum(stop <= cut for stop in stops) - 1)


def test_cut_at_any_byte_a_run_goes_on(tmp_path: Path, whole: OnlineLearner) -> None:
    path = tmp_path / "run.rounds"
    left_behind(path, 4)
    content = path.read_bytes()
    head, first, *_, last = ends(content)
    cuts = {0, 1, 7, 8, 12, *(stop + shift for stop in (head, last) for shift in (-1, 0, 9)), first}
    for cut in sorted(cuts):
        path.write_bytes(content[:cut])
        told = written(path, 5)
        assert same(told.state_dict(), whole.state_dict())
        assert path.read_bytes()[: len(content)] == content


def test_snapshots_that_are_no_use_are_not_used(tmp_path: Path, whole: OnlineLearner) -> None:
    """Torn, of other rounds, or ahead of the journal."""
    path = tmp_path / "run.rounds"
    left_behind(path, 4, 2)
    snapshot = path.with_name("run.rounds.snapshot")
    good, rounds = snapshot.read_bytes(), path.read_bytes()
    for content in (b"", b"torn", good[: len(good) // 2]):
        snapshot.write_bytes(content)
        assert same(written(path, 5).state_dict(), whole.state_dict())
        path.write_bytes(rounds)
    snapshot.write_bytes(good)
    path.write_bytes(rounds[: ends(rounds)[2]])  # two rounds, and the snapshot is of four
    assert same(written(path, 5).state_dict(), whole.state_dict())
    path.unlink()
    other = small()
    with RoundJournal(other, path) as journal:
        for x, y in ROUNDS[::-1]:
            journal.update(x, y)
    again = small()
    RoundJournal(again, path).close()
    assert same(again.state_dict(), other.state_dict())


def test_a_snapshot_of_another_seed_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "run.rounds"
    left_behind(path, 4, 2)
    path.unlink()
    whole = written(path, 4, None, seed=1)  # the same rounds, beside the snapshot of the run before
    again = small(seed=1)
    RoundJournal(again, path).close()
    assert same(again.state_dict(), whole.state_dict())


def changed_snapshot(path: Path, **changes: Any) -> None:
    stored = torch.load(path, weights_only=True)
    state = {**stored["state"], **changes}
    kept = {name: value for name, value in state.items() if value is not None}
    torch.save({**stored, "state": kept}, path)


@pytest.mark.parametrize(
    "changes",
    [{"curvature": None}, {"identity": "{}"}, {"latent": torch.zeros(3)}, {"expected": []}],
    ids=["an entry less", "another learner", "another shape", "fewer rounds"],
)
def test_a_snapshot_of_another_version_is_not_used(
    tmp_path: Path, changes: dict[str, Any], whole: OnlineLearner
) -> None:
    path = tmp_path / "run.rounds"
    left_behind(path, 4, 2)
    changed_snapshot(path.with_name("run.rounds.snapshot"), **changes)
    assert same(written(path, 5).state_dict(), whole.state_dict())


def test_a_snapshot_saves_the_learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.rounds"
    left_behind(path, 5, 2)
    learnt = []
    learn = OnlineLearner._learn
    monkeypatch.setattr(OnlineLearner, "_learn", lambda *of: learnt.append(1) or learn(*of))
    written(path, 5, 2)
    assert len(learnt) == 1


def test_what_is_refused_is_not_written(tmp_path: Path) -> None:
    path, told = tmp_path / "run.rounds", small()
    with RoundJournal(told, path) as journal:
        journal.update(*ROUNDS[0])
        before, content = told.state_dict(), path.read_bytes()
        for x, y in [(torch.full((2, 3), math.nan), torch.tensor([0, 1])), (torch.zeros(1, 3), torch.tensor([2]))]:
            with pytest.raises(InvalidInput):
                journal.update(x, y)
        with pytest.raises(InvalidInput, match="tensor"):
            journal.update([[0.0] * 3], torch.tensor([0]))  # type: ignore[arg-type]
        assert path.read_bytes() == content and same(before, told.state_dict())
    with pytest.raises(InvalidInput, match="closed"):
        journal.update(*ROUNDS[1])


def test_a_round_that_is_interrupted_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: OnlineLearner
) -> None:
    path, told = tmp_path / "run.rounds", small()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with RoundJournal(told, path) as journal:
        journal.update(*ROUNDS[0])
        content = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(OnlineLearner, "_learn", interrupted)
            with pytest.raises(KeyboardInterrupt):
                journal.update(*ROUNDS[1])
        assert path.read_bytes() == content and journal.rounds == 1
        for x, y in ROUNDS[1:]:
            journal.update(x, y)
    assert same(told.state_dict(), whole.state_dict())


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """A disk that takes no more than so many bytes of a file."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 5, 40])
def test_a_full_disk_changes_nothing_and_a_run_goes_on(tmp_path: Path, room: int, whole: OnlineLearner) -> None:
    path, told = tmp_path / "run.rounds", small()
    with RoundJournal(told, path) as journal:
        journal.update(*ROUNDS[0])
        content, before = path.read_bytes(), told.state_dict()
        x, y = torch.randn(50, 3), torch.zeros(50, dtype=torch.int64)  # longer than the round that comes instead
        with files_up_to(len(content) + room), pytest.raises(OSError, match="too large"):
            journal.update(x, y)
        assert path.read_bytes() == content and same(before, told.state_dict())
        for x, y in ROUNDS[1:3]:
            journal.update(x, y)
    assert same(written(path, 5).state_dict(), whole.state_dict())


class Failing:
    """A file that takes a few bytes at a time, that fails after so many of them, and that cannot be cut either."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, content: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "full")
        taken = content[: min(7, self.room)]
        self.room -= len(taken)
        return int(self.file.write(taken))

    def truncate(self, size: int) -> int:
        if not self.room:
            raise OSError(errno.EIO, "broken")
        return int(self.file.truncate(size))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def test_a_file_that_cannot_even_be_cut_takes_no_more_rounds(tmp_path: Path, whole: OnlineLearner) -> None:
    path, told = tmp_path / "run.rounds", small()
    with RoundJournal(told, path) as journal:
        journal.update(*ROUNDS[0])
        content = path.read_bytes()
        journal._file = Failing(journal._file, 30)  # type: ignore[assignment]
        with pytest.raises(OSError, match="broken"):
            journal.update(*ROUNDS[1])
        left = path.read_bytes()
        assert len(left) == len(content) + 30 and told.rounds == 1
        with pytest.raises(InvalidInput, match=r"run\.rounds nor be taken back: open .* with a fresh learner"):
            journal.update(*ROUNDS[1])
        assert path.read_bytes() == left
    assert same(written(path, 5).state_dict(), whole.state_dict())


def test_a_file_that_takes_a_few_bytes_at_a_time(tmp_path: Path, whole: OnlineLearner) -> None:
    path, told = tmp_path / "run.rounds", small()
    with RoundJournal(told, path) as journal:
        journal._file = Failing(journal._file, 1 << 20)  # type: ignore[assignment]
        for x, y in ROUNDS:
            journal.update(x, y)
    assert same(told.state_dict(), whole.state_dict()) and same(written(path, 5).state_dict(), whole.state_dict())


def test_rounds_that_the_journal_did_not_see_are_noticed(tmp_path: Path, whole: OnlineLearner) -> None:
    path, told = tmp_path / "run.rounds", small()
    with RoundJournal(told, path) as journal:
        journal.update(*ROUNDS[0])
        told.update(*ROUNDS[1])
        content = path.read_bytes()
        with pytest.raises(InvalidInput, match=r"learnt 2 rounds, and .*run\.rounds holds 1.* with a fresh learner"):
            journal.update(*ROUNDS[2])
        assert path.read_bytes() == content and told.rounds == 2
    assert same(written(path, 5).state_dict(), whole.state_dict())


@pytest.mark.skipif(os.name != "posix", reason="there are no such locks here")
def test_two_runs_do_not_write_one_journal(tmp_path: Path, whole: OnlineLearner) -> None:
    path, told = tmp_path / "run.rounds", small()
    with RoundJournal(told, path) as journal:
        journal.update(*ROUNDS[0])
        content = path.read_bytes()
        with pytest.raises(InvalidInput, match=r"run\.rounds is being written by another run"):
            RoundJournal(small(), path)
        assert path.read_bytes() == content
        for x, y in ROUNDS[1:3]:
            journal.update(x, y)
    assert same(written(path, 5).state_dict(), whole.state_dict())


def test_other_files_and_other_learners(tmp_path: Path) -> None:
    path = tmp_path / "run.rounds"
    told = written(path, 3)
    content = path.read_bytes()
    with pytest.raises(InvalidInput, match="another learner"):
        RoundJournal(small(seed=1), path)
    with pytest.raises(InvalidInput, match="another learner"):
        RoundJournal(learner(), path)
    with pytest.raises(InvalidInput, match="fresh"):
        RoundJournal(told, path)
    with pytest.raises(InvalidInput, match="snapshot_every"):
        RoundJournal(small(), path, snapshot_every=0)
    path.write_bytes(FIRST_VERSION + content[len(MAGIC) :])
    with pytest.raises(CorruptArtifact, match="version 1, and not 2: begin the run anew"):
        RoundJournal(small(), path)
    path.write_bytes(b"something else")
    with pytest.raises(CorruptArtifact, match="not a journal"):
        RoundJournal(small(), path)
    assert path.read_bytes() == b"something else"


def test_any_bit_that_is_damaged_before_the_last_round_is_told_of_and_nothing_is_cut(tmp_path: Path) -> None:
    """Of the length, of either checksum and of the content: none passes for the torn end of a file."""
    path = tmp_path / "run.rounds"
    left_behind(path, 3)
    content = path.read_bytes()
    starts = [len(MAGIC), *ends(content)]
    for record, start in enumerate(starts[:-2]):
        where = f"round {record}" if record else "which learner"
        for place in [*range(start, start + FRAME.size), start + FRAME.size + 8, starts[record + 1] - 1]:
            for bit in (0, 7):
                damaged = bytearray(content)
                damaged[place] ^= 1 << bit
                with pytest.raises(CorruptArtifact, match=rf"run\.rounds is damaged at byte {start}, .*{where}"):
                    _read(bytes(damaged), path)
    damaged = bytearray(content)
    damaged[starts[2] + 2] ^= 0x80  # the length of the second of three rounds, which then points past the end
    path.write_bytes(damaged)
    told = small()
    with pytest.raises(CorruptArtifact, match=rf"round 2: its first {starts[2]} bytes are a journal of the 1 rounds"):
        RoundJournal(told, path)
    assert path.read_bytes() == damaged and told.rounds == 0
    path.write_bytes(damaged[: starts[2]])
    RoundJournal(told, path).close()
    assert told.rounds == 1


def test_a_journal_without_a_round_is_free(tmp_path: Path) -> None:
    path = tmp_path / "run.rounds"
    assert count_rounds(path) == 0
    RoundJournal(small(seed=1), path).close()
    assert count_rounds(path) == 0 and path.stat().st_size > 0
    told = written(path, 2)
    assert count_rounds(path) == 2
    again = small()
    RoundJournal(again, path).close()
    assert same(again.state_dict(), told.state_dict())


def test_a_journal_of_another_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.rounds"
    with RoundJournal(learner(ring(torch.eye(6))), path) as journal:
        journal.update(torch.tensor([0]), torch.tensor([1]))
    with pytest.raises(InvalidInput, match="another learner"):
        RoundJournal(learner(ring(2 * torch.eye(6))), path)
