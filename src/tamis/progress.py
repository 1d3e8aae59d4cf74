"""Progress of long calls: a bar for people, a callback for programs, or nothing.

A call that takes long has an argument `progress`: True for a bar on a terminal and a line now and then elsewhere,
False for silence, or a function that is called with a `Progress` each time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FRACTIONS = ("accuracy", "sparsity")  # shown as per cent
SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True)
class Progress:
    """How far a task is: `done` of `total`, with the figures of the moment, by name."""

    task: str
    done: int
    total: int
    figures: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return "   ".join([f"{self.task} {self.done}/{self.total}", *self.described_figures])

    @property
    def described_figures(self) -> list[str]:
        """The figures for people."""
        return [
            f"{name} {value:.1%}" if name in FRACTIONS else f"{name} {value:.4g}"
            for name, value in self.figures.items()
        ]


Listener = bool | Callable[[Progress], Any]


@contextmanager
def reporting(progress: Listener, task: str, total: int) -> Iterator[Callable[..., None]]:
    """Yield a function `report(done, **figures)` that passes progress on to whoever asked for it.

    Example:
        >>> with reporting(print, "training", 2) as report:
        ...     for epoch in range(2):
        ...         report(epoch + 1, loss=0.5 / (epoch + 1))
        training 1/2   loss 0.5
        training 2/2   loss 0.25
    """
    if callable(progress):
        yield lambda done, **figures: progress(Progress(task, done, total, figures))
    elif not progress:
        yield lambda done, **figures: None
    else:
        with _bar(task, total) if sys.stderr.isatty() and _has_rich() else _lines() as show:
            yield lambda done, **figures: show(Progress(task, done, total, figures))


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:  # where only the library is installed
        return False
    return True


@contextmanager
def _bar(task: str, total: int) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"))
    with Bar(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        shown = bar.add_task(task, total=total, figures="")
        yield lambda now: bar.update(shown, completed=now.done, figures="   ".join(now.described_figures))


@contextmanager
def _lines() -> Iterator[Callable[[Progress], None]]:
    last = float("-inf")

    def show(now: Progress) -> None:
        nonlocal last
        if now.done >= now.total or time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(now, file=sys.stderr, flush=True)

    yield show
