"""A plan runs the steps one after the other; each finished step lies in a file, and is read from there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tamis.artifact import load
from tamis.errors import CorruptArtifact, TamisError
from tamis.progress import Listener, Progress
from tamis.recipes.state import Context, State
from tamis.recipes.steps.base import Step
from tamis.recipes.workspace import Workspace


def run_plan(plan: Sequence[Step], state: State, context: Context, space: Workspace, at: str = "steps") -> State:
    """Run every step, or read what an earlier run has left of it.

    Args:
        plan: the steps.
        state: the network that they begin with.
        context: of the run; each step gets its own directory, notes and progress.
        space: where finished steps lie.
        at: the keys that lead to the plan in its recipe, for errors.
    """
    progress = context.progress
    for number, step in enumerate(plan, 1):
        path = space.file(number, step.step)
        before = state
        if not path.exists():
            announce(progress, f"step {number} of {len(plan)}: {step.step}")
            listener = with_prefix(progress, f"{number}/{len(plan)}")
            # Made for each step alone, so that two steps of one kind do not find each other's checkpoints.
            directory, notes = space.directory(number, step.step), space.notes(number, step.step)
            own = replace(context, directory=directory, notes=notes, progress=listener)
            with _name_step_in_errors(f"{at}[{number - 1}]", step):
                step.run(state, own).small.save(path)
        # Always from the file: a run that goes on begins with the same as one that was never broken off.
        state = _read(path, step, before)
        # Only now, as the file is known to be readable: what the step left on its way is what it could go on from.
        space.tidy(number, step.step)
    return state


@contextmanager
def _name_step_in_errors(where: str, step: Step) -> Iterator[None]:
    """Put the step's place before its errors; those of a budget already speak of what was asked for."""
    try:
        yield
    except TamisError as error:
        if step.step != "budget":
            error.args = (f"{where} ({step.step}): {error}",)
        raise


def _read(path: Path, step: Step, before: State) -> State:
    """Read the network that a step has left in its file."""
    module = before.module
    rebuilds = step.rebuilds and module is not None
    try:
        # The graph before does not know the parameters of rebuilt layers: such a file is read for the module.
        small = load(path, module if module is not None and rebuilds else before.small.network)
    except CorruptArtifact as error:
        raise CorruptArtifact(f"{error}; delete it to have it made again") from error
    if module is not None and rebuilds:
        module = small.apply_to(module).eval()
    # Later steps fit weights to what a training left, but to what was there before a pruning or quantization.
    return State(small, small.network if step.renews else before.reference, module)


def announce(progress: Listener, text: str) -> None:
    """Print a line about what comes next, where progress is printed and not passed to a function."""
    if progress is True:
        # Not to stdout, which may be what a program reads.
        print(text, file=sys.stderr, flush=True)


def with_prefix(progress: Listener, prefix: str) -> Listener:
    """Return a listener for one part of a run: the user's function hears which part it is."""
    if not callable(progress):
        return progress
    tell = progress
    return lambda now: tell(replace(now, task=f"{prefix} {now.task}") if isinstance(now, Progress) else now)
