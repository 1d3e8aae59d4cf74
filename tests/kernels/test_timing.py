"""Times of tasks that take turns, by a clock of our own."""

from __future__ import annotations

import pytest

from tamis.errors import InvalidInput
from tamis.kernels import timing
from tamis.kernels.timing import FEWEST, MOST, time_in_turns


class Machine:
    """Tasks that last as long as they are told, one of them twice as long in every other round."""

    def __init__(self, lasting: dict[str, float], noisy: str = "") -> None:
        self.now, self.order = 0.0, ""
        self.tasks = {name: (lambda name=name: self.run(name)) for name in lasting}
        self.lasting, self.noisy = lasting, noisy

    def run(self, name: str) -> None:
        self.order += name
        self.now += self.lasting[name] * (2 if name == self.noisy and self.order.count(name) % 5 == 0 else 1)


@pytest.fixture(autouse=True)
def no_other_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.time, "perf_counter", lambda: Machine.current.now)  # type: ignore[attr-defined]


def timed(machine: Machine, seconds: float) -> dict[str, float]:
    Machine.current = machine  # type: ignore[attr-defined]
    return time_in_turns(machine.tasks, seconds=seconds)


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, FEWEST), (1.3, 4), (1e9, MOST)])
def test_they_take_turns_for_about_as_long_as_asked_for(seconds: float, rounds: int) -> None:
    machine = Machine({"a": 0.1, "b": 0.2})
    assert timed(machine, seconds) == pytest.approx({"a": 0.1, "b": 0.2})
    assert machine.order == "ab" * (rounds + 1)


def test_what_disturbs_some_rounds_does_not_show() -> None:
    assert timed(Machine({"a": 0.1, "b": 0.2}, noisy="a"), 5.0) == pytest.approx({"a": 0.1, "b": 0.2})


def test_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nothing to time"):
        time_in_turns({})
