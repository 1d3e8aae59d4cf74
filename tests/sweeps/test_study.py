"""The study behind a sweep: nothing is done twice, nothing is lost, and a dead worker's trial is done again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import tamis.sweeps.workers
from tamis.errors import InvalidInput
from tamis.sweeps.database import hide_password, make_database_url
from tamis.sweeps.space import Space, encode_point
from tamis.sweeps.spec import read_sweep
from tamis.sweeps.study import MOST_DEATHS, POINT, RETRY, Study
from tamis.sweeps.workers import Workers

QUESTION = {"recipe": [1]}


def space(levels: str = "{choices: [2, 3, 4, 5]}") -> Space:
    Path("s.yaml").write_text(f"{{data: digits, trials: 9, recipe: {{steps: [{{step: quantize, levels: {levels}}}]}}}}")
    return read_sweep("s.yaml").space


class Opened:
    """Opens the study of a test, as several workers may, and closes it in the end."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def __call__(
        self, workers: Workers, question: dict[str, Any] = QUESTION, objectives: tuple[str, ...] = ("bytes",)
    ) -> Study:
        study = Study(f"sqlite:///{Path('s.db').resolve()}", "s", objectives, question, 0, workers)
        return self.stack.enter_context(closing(study))


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as stack:
        yield Opened(stack)


def test_what_a_dead_worker_was_at_is_done_again_and_nothing_else(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tamis.sweeps.workers, "GRACE", -1.0)  # whoever has no lock here counts as dead at once
    mine, other = Workers(Path("here")), Workers(Path("elsewhere"))
    one, two, all_of_it = opened(mine), opened(other), space()
    with mine.enlist():
        kept = one.next(all_of_it, 4)
        lost = two.next(all_of_it, 4)
        assert kept is not None and lost is not None and kept[1] != lost[1]
        one.recover()
        (again,) = [trial for trial in one.trials() if RETRY in trial.user_attrs]
        assert again.user_attrs[POINT] == encode_point(lost[1])
        assert one.trials()[kept[0].number].state.name == "RUNNING"  # it holds its lock
        job = one.next(all_of_it, 4)
        assert job is not None and job[1] == lost[1]
        one.tell(job[0], {"bytes": 7})
        two.tell(lost[0], {"bytes": 9})  # it was not dead but slow: too late
        assert one.take_census().finished[encode_point(lost[1])].values == [7.0]
        one.recover()
        assert len(one.trials()) == 3
        assert two.next(all_of_it, 2) is None  # the other is at the rest
        one.tell(kept[0], {"bytes": 8})
    assert len(one.take_census().finished) == 2


def test_a_candidate_that_kills_its_workers_fails(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tamis.sweeps.workers, "GRACE", -1.0)
    one, only = opened(Workers(Path("here"))), space("3")
    for _ in range(MOST_DEATHS):
        assert one.take_census().finished == {}
        assert one.next(only, 1) is not None
        one.recover()
    (failed,) = one.take_census().finished.values()
    assert failed.values is None and one.next(only, 1) is None


def test_points_are_tried_once_and_as_many_as_are_wanted(opened: Opened) -> None:
    one, all_of_it = opened(Workers(Path("here"))), space("{low: 2, high: 6}")
    tried = []
    while len(one.take_census().finished) < 4:
        job = one.next(all_of_it, 4)
        if job is not None:
            tried.append(encode_point(job[1]))
            one.tell(job[0], {"bytes": len(tried)})
    assert len(tried) == len(set(tried)) == 4 and one.next(all_of_it, 4) is None


def test_another_sweep_is_refused(opened: Opened) -> None:
    workers = Workers(Path("here"))
    opened(workers)
    with pytest.raises(InvalidInput, match=r"'s' in sqlite:.*s\.db is another sweep, with another recipe: give this"):
        opened(workers, {"recipe": [2]})
    with pytest.raises(InvalidInput, match=r"'s' in sqlite:.*s\.db is another sweep"):
        opened(workers, QUESTION, ("bytes", "accuracy"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere", "--storage is the address of a database, as postgresql://me@host/name"),
        ("nosql://x", "--storage: 'nosql://x' cannot be used"),
        ("sqlite:////no/such/folder/x.db", "cannot be opened: .*unable to open database file"),
        ("postgresql://me:secret@localhost:1/x", r"postgresql\+psycopg://me:\*\*\*@localhost:1/x cannot be opened"),
    ],
)
def test_databases_that_are_none(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as raised:
        Study(make_database_url(url, Path()), "s", ["bytes"], QUESTION, 0, Workers(Path("here")))
    assert "secret" not in str(raised.value)


def test_addresses() -> None:
    assert make_database_url(None, Path("out")) == f"sqlite:///{Path('out/sweep.db').resolve()}"
    assert hide_password("postgresql://me:a@b@host/x") == "postgresql://me:***@host/x"
    assert hide_password("postgresql:///x?host=/tmp") == "postgresql:///x?host=/tmp"
