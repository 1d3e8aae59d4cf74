"""A budget's search starts from the networks that a few chains of steps make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tamis.artifact import fingerprint_of_values
from tamis.errors import UnsupportedOp
from tamis.recipes.allocation import Option
from tamis.recipes.layer_options import measure_options
from tamis.recipes.plan import announce, run_plan, with_prefix
from tamis.recipes.state import Context, State
from tamis.recipes.steps.base import Step
from tamis.recipes.workspace import Workspace


@dataclass(frozen=True)
class Start:
    """A start is a network for which a search looks for levels.

    Attributes:
        name: how it was made, in a few words.
        place: which one it is of how many, as "2/3".
        state: the network.
        directory: for what is made of it.
    """

    name: str
    place: str
    state: State
    directory: Path


def prepare_starts(starts: Sequence[Sequence[Step]], state: State, context: Context) -> list[Start]:
    """Run each chain of steps; one that the network's operations do not allow is left out.

    Each has a folder of its own, from which a run that was broken off goes on.

    Raises:
        UnsupportedOp: none of them can be made.
    """
    prepared: list[Start] = []
    refused: list[UnsupportedOp] = []
    for number, steps in enumerate(starts, 1):
        name, place = describe_steps(steps), f"{number}/{len(starts)}"
        directory = context.directory / f"start_{number:02d}"
        directory.mkdir(parents=True, exist_ok=True)
        # The network as it is takes no time to make, and needs no line about it.
        if steps:
            announce(context.progress, f"start {place}: {name}")
        listener = with_prefix(context.progress, f"start {place}")
        try:
            space, at = Workspace(directory), f"budget.starts[{number - 1}]"
            final = run_plan(steps, state, replace(context, progress=listener), space, at)
        except UnsupportedOp as error:
            # Of a network's operations, and so of this start alone; any other error is the user's to know.
            announce(context.progress, f"start {place} is left out: {error}")
            refused.append(error)
        else:
            prepared.append(Start(name, place, final, directory))
    # The first reason, as good as any: the network is the same for all of them.
    if not prepared:
        raise refused[0]
    return prepared


def describe_steps(steps: Sequence[Step]) -> str:
    """Describe a chain in a few words: what differs from the defaults.

    Example:
        >>> from tamis.recipes.steps.prune import Prune
        >>> describe_steps([Prune(step="prune", amount=0.5)])
        'prune amount 0.5'
    """
    return ", ".join(map(_describe_step, steps)) or "as it is"


def _describe_step(step: Step) -> str:
    fields = {name: field for name, field in type(step).model_fields.items() if name != "step"}
    changes = {name: getattr(step, name) for name, field in fields.items() if getattr(step, name) != field.default}
    return " ".join([step.step, *(f"{name} {value}" for name, value in changes.items())])


def measure_starts(starts: Sequence[Start], context: Context) -> list[dict[str, list[Option]]]:
    """Measure the options of every start's layers.

    Starts whose weights are fitted to the same network, as all that only prune, share one walk over the calibration
    data and its Gram matrices, which are those of the first of them: close enough to say which options are worth a
    trial, in which every layer then sees its own.
    """
    groups: dict[str, list[int]] = {}  # by the weights that are fitted to, which pruning leaves as they are
    for place, start in enumerate(starts):
        groups.setdefault(fingerprint_of_values(start.state.reference.params), []).append(place)
    options_by_place: dict[int, dict[str, list[Option]]] = {}
    for places in groups.values():
        first = starts[places[0]]
        smalls = [starts[place].state.small for place in places]
        listener = with_prefix(context.progress, f"start {first.place}")
        # In the folder of the first: the same starts have the same first one when a run goes on.
        probe = first.directory / "probe"
        options = measure_options(first.state.reference, smalls, context.data.calibration, probe, listener)
        options_by_place |= dict(zip(places, options, strict=True))
    return [options_by_place[place] for place in range(len(starts))]


def make_start_context(context: Context, start: Start) -> Context:
    """Return the context of the trials of one start."""
    return replace(context, directory=start.directory, progress=with_prefix(context.progress, f"start {start.place}"))
