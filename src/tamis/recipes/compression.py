"""`compress` runs a recipe step by step, and leaves the small file with its certificate, its report and its lock."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import Compressed
from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.progress import Listener
from tamis.recipes.lock import Lock
from tamis.recipes.output_folder import Compression, OutputFolder, use_threads
from tamis.recipes.plan import run_plan
from tamis.recipes.prepared_model import prepare_model
from tamis.recipes.request import GivenData, parse_requirements, resolve_request
from tamis.recipes.schema import Recipe
from tamis.recipes.state import Context, State


def compress(
    model: nn.Module | Network,
    recipe: str | Path | Mapping[str, Any] | Recipe | None = None,
    data: Any = None,
    out: str | Path = "out",
    *,
    test: Any = None,
    target_bytes: int | str | None = None,
    max_disagreement: float | str | None = None,
    max_accuracy_drop: float | str | None = None,
    example: Tensor | tuple[Tensor, ...] | None = None,
    device: str | torch.device | None = None,
    called: str | None = None,
    command: str | None = None,
    just_initialised: bool = False,
    force: bool = False,
    progress: Listener = True,
) -> Compression:
    """Run a recipe on a model, and certify what that cost on data that no step saw.

    A finished step, and what there is of an unfinished one, lies in OUT/.tamis-compress until all is done: after a
    kill, the same call goes on from there, and what comes out is the same to the last byte. The same call on a finished
    folder returns at once, or writes the certificate and the report that are missing there.

    Args:
        model: a module, or a network where no step trains or rebuilds it; it is left as it is.
        recipe: a YAML file, the name of a recipe that ships (`tamis recipes`), the lock file of an earlier run, a
            `Recipe`, or the same as plain data. None with a budget alone.
        data: the training data, a name or path; without a split ("digits"), its train and test splits. Or what you have
            in Python: a DataLoader, a torch Dataset, a pair (inputs, labels), as `tamis.training.as_data` takes it;
            whoever repeats the run from its lock file passes the same again. None: what the recipe names.
        out: the folder to write to; made if it is not there.
        test: what the certificate speaks of, in the same forms, where `data` does not name both splits.
        target_bytes: a budget, as the recipe's own, which it replaces but for its starts.
        max_disagreement: how many answers may differ, as 0.02 or "2%": required of the certificate, and
            `Compression.met` says whether it holds. It is also the budget, in the same way, unless there is nothing
            left to search for: with `target_bytes`, with a lock file, and where the recipe quantizes, binarizes or
            factorizes the network itself.
        max_accuracy_drop: how much accuracy may be lost, as 0.01 or "1pt"; required, and never searched for.
        example: an input to trace a module with; by default the first of the data.
        device: where steps train; None: where the model is.
        called: what messages, the certificate and the lock file call the model; its class by default.
        command: what runs it, as one would type it again; the certificate repeats it.
        just_initialised: whether the weights of the model are random ones, which the certificate then notes.
        force: write over what is in the folder: what another recipe, model or data left there, finished or not, and
            files of yours that are called as those that a run leaves.
        progress: True, False, or a function of a `Progress`.

    Returns:
        A `Compression`: the folder, the network, its certificate.

    Raises:
        RecipeError: something in the recipe cannot be; nothing was written.
        InvalidInput: the folder holds a run of something else, or files of yours that would be written over, and
            `force` is False; or an argument is wrong.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> recipe = {"steps": [{"step": "prune", "amount": "50%"}]}
        >>> done = tamis.compress(model, recipe, data="digits", out="out/half", progress=False)
        >>> sorted(path.name for path in done.folder.iterdir())
        ['certificate.json', 'recipe.lock.yaml', 'report.html', 'small.tamis']
        >>> done.small.masks.pruned
        320
    """
    # Each process would run all steps, and write to the same folder.
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InvalidInput("compress runs in one process: start it without torchrun")
    data_given = GivenData.of(data, test)
    request = resolve_request(recipe, data_given, target_bytes, max_disagreement)
    plan, given_lock = request.recipe, request.lock
    # In this order, because each needs what came before: the data names the inputs that a model is traced with.
    splits = data_given.load(plan.data)
    prepared = prepare_model(model, splits, example, device, called)
    prepared.check(plan, splits)
    net = prepared.net
    if given_lock is not None:
        given_lock.check_made_for(net, splits, request.path)
        # A run that is repeated requires what the first one did, unless the caller says otherwise.
        if max_accuracy_drop is None:
            max_accuracy_drop = given_lock.requirements.get("max_accuracy_drop")
        if max_disagreement is None:
            max_disagreement = given_lock.requirements.get("max_disagreement")
    # What a search aims at is also required of the certificate, which is issued on other data.
    if max_disagreement is None and plan.budget is not None:
        max_disagreement = plan.budget.max_disagreement
    requirements = parse_requirements(max_accuracy_drop, max_disagreement, splits)
    certification = {**requirements, "called": prepared.name, "command": command, "just_initialised": just_initialised}
    # From here on the folder is looked at. All that can be wrong with the arguments has been said by now, so that an
    # error of the user leaves nothing behind, and nothing of an earlier run is touched.
    lock = Lock.of(plan.as_plain_data(), net, prepared.name, splits, prepared.device).with_requirements(requirements)
    folder = OutputFolder(Path(out), prepared, plan, splits, lock, certification, progress)
    # Before anything is read or made: what another run left there stays, unless `force` gives it up.
    if not force:
        folder.refuse_overwriting()
    if (finished := folder.read_finished()) is not None:
        return finished
    # The threads of the run that is repeated, or bytes would differ.
    threads = given_lock.threads if given_lock is not None else lock.threads
    space = folder.space
    with space.only_process():
        # A run that was broken off goes on with its own lock: its threads, above all, which decide how sums round.
        lock = space.begin(Lock({**lock.content, "threads": threads}), force).with_requirements(requirements)
        # Once it is known which lock holds, and before hours of work whose bytes may be others.
        _note_versions(given_lock, lock, progress)
        with use_threads(lock.threads), space.remove_on_early_error():
            context = Context.of_run(net, splits, space.folder, prepared.device, progress)
            state = run_plan(plan.plan, State(Compressed(net), net, prepared.module), context, space)
            return folder.finish(state, lock)


def _note_versions(first: Lock | None, lock: Lock, progress: Listener) -> None:
    """Say where a run that is repeated was made with other versions: its bytes may differ."""
    if first is None or progress is not True:
        return
    now = lock.content["versions"]
    others = [
        f"{name} {version} (now {now.get(name)})"
        for name, version in first.content["versions"].items()
        if version != now.get(name)
    ]
    if others:
        print(f"the lock file was made with {', '.join(others)}: bytes may differ", file=sys.stderr, flush=True)
