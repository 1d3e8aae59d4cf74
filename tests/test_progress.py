"""How long work reports: to a function, to nobody, in lines, or as a bar."""

from __future__ import annotations

import io
import sys

import pytest

from tamis import progress
from tamis.progress import Progress, reporting


class Terminal(io.StringIO):
    """What is written to it is kept, and it claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test moves."""
    seconds = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def test_a_function_gets_every_event(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Progress] = []
    with reporting(events.append, "training", 3) as report:
        for epoch in range(3):
            report(epoch + 1, loss=0.5 / (epoch + 1), accuracy=0.25)
    assert events == [Progress("training", n, 3, {"loss": 0.5 / n, "accuracy": 0.25}) for n in (1, 2, 3)]
    assert str(events[1]) == "training 2/3   loss 0.25   accuracy 25.0%"
    assert capsys.readouterr() == ("", "")


def test_an_error_of_the_function_reaches_the_caller() -> None:
    def stop(_: Progress) -> None:
        raise KeyboardInterrupt("enough")

    with pytest.raises(KeyboardInterrupt, match="enough"), reporting(stop, "training", 3) as report:
        report(1)


def test_false_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(False, "training", 2) as report:
        report(1, loss=1.0)
        report(2)
    assert capsys.readouterr() == ("", "")


def test_off_a_terminal_there_are_lines_now_and_then(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    """The first, one after a while, and the last however soon it comes; on stderr."""
    with reporting(True, "training", 5) as report:
        for done, seconds in ((1, 0.0), (2, 1.0), (3, 5.5), (4, 0.1), (5, 0.1)):
            now[0] += seconds
            report(done, accuracy=done / 10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [f"training {n}/5   accuracy {n * 10}.0%" for n in (1, 3, 5)]


def test_no_report_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(True, "training", 5):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_terminal_without_rich_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "rich" or name.startswith("rich.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with reporting(True, "pruning", 1) as report:
        report(1, sparsity=0.8)
    assert terminal.getvalue() == "pruning 1/1   sparsity 80.0%\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal)
    with reporting(True, "training", 4) as report:
        for done in (1, 2, 3, 4):
            report(done, loss=0.125)
    shown = terminal.getvalue()
    assert "training" in shown and "4/4" in shown and "loss 0.125" in shown
    assert capsys.readouterr().out == ""


def test_figures_for_people() -> None:
    figures = {"loss": 123456.789, "accuracy": 0.98765, "sparsity": 1.0, "lr": 1e-5}
    described = Progress("task", 0, 1, figures).described_figures
    assert described == ["loss 1.235e+05", "accuracy 98.8%", "sparsity 100.0%", "lr 1e-05"]
    assert str(Progress("task", 0, 10)) == "task 0/10"
