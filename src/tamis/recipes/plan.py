"""Steps one after the other: each that is finished lies in a file, and is read from there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from tamis.artifact import load
from tamis.errors import CorruptArtifact, TamisError
from tamis.graph import Network
from tamis.progress import Listener, Progress
from tamis.recipes.splits import Splits
from tamis.recipes.state import Context, State
from tamis.recipes.steps.base import Step
from tamis.recipes.workspace import Workspace


def run_plan(
    plan: Sequence[Step],
    state: State,
    original: Network,
    data: Splits,
    device: torch.device,
    space: Workspace,
    progress: Listener,
    at: str = "steps",
) -> State:
    """Every step, or what an earlier run has left of it.

    Args:
        plan: the steps.
        state: the network that they begin with.
        original: the network as the user gave it.
        data: the parts of the data.
        device: where steps train.
        space: where finished steps lie.
        progress: as every long call takes it.
        at: the keys that lead to the plan in its recipe, for errors.
    """
    for number, step in enumerate(plan, 1):
        path = space.file(number, step.step)
        before = state
        if not path.exists():
            announce(progress, f"step {number} of {len(plan)}: {step.step}")
            listener = prefixed(progress, f"{number}/{len(plan)}")
            directory, notes = space.directory(number, step.step), space.notes(number, step.step)
            with _placed(f"{at}[{number - 1}]", step):
                step.run(state, Context(original, data, directory, notes, device, listener)).small.save(path)
        # Always from the file: a run that goes on begins with the same as one that was never broken off.
        state = _read(path, step, before)
        space.tidy(number, step.step)
    return state


@contextmanager
def _placed(where: str, step: Step) -> Iterator[None]:
    """Errors of a step say which one it was; those of a budget speak of what was asked for."""
    try:
        yield
    except TamisError as error:
        if step.step != "budget":
            error.args = (f"{where} ({step.step}): {error}",)
        raise


def _read(path: Path, step: Step, before: State) -> State:
    """What a step has left in its file."""
    module = before.module
    rebuilds = step.rebuilds and module is not None
    try:
        small = load(path, module if module is not None and rebuilds else before.small.network)
    except CorruptArtifact as error:
        raise CorruptArtifact(f"{error}; delete it to have it made again") from error
    if module is not None and rebuilds:
        module = small.apply_to(module).eval()
    return State(small, small.network if step.renews else before.reference, module)


def announce(progress: Listener, text: str) -> None:
    """A line about what comes next, for those who want to be told and have no way of their own to tell it."""
    if progress is True:
        print(text, file=sys.stderr, flush=True)


def prefixed(progress: Listener, prefix: str) -> Listener:
    """What a part's own progress is reported to: the user's function hears which part it is."""
    if not callable(progress):
        return progress
    tell = progress
    return lambda now: tell(replace(now, task=f"{prefix} {now.task}") if isinstance(now, Progress) else now)
