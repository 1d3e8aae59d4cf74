"""`compress`: run a recipe, step by step, and leave the small file with its certificate, its report and its lock."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import Compressed, load, read_json_object
from tamis.certificates import certify
from tamis.errors import CorruptArtifact, InvalidInput, TraceError
from tamis.graph import Network, trace
from tamis.progress import Listener
from tamis.recipes.budget import STARTS, Budget
from tamis.recipes.catalogue import recipe_path
from tamis.recipes.lock import Lock, recipe_or_lock, sha256_of
from tamis.recipes.plan import announce, run_plan
from tamis.recipes.schema import DataSection, Recipe, recipe_of
from tamis.recipes.splits import Splits, load_splits
from tamis.recipes.state import DELTA, State
from tamis.recipes.workspace import Workspace
from tamis.recipes.yaml_document import Document
from tamis.reports import Candidate, report
from tamis.training import Data, as_data, check_fits, parse_spec
from tamis.verification import (
    REQUIRED,
    Certificate,
    network_facts,
    parse_rate,
    required_bounds,
    requirement_of_labels,
)

SMALL, CERTIFICATE, REPORT, LOCK = "small.tamis", "certificate.json", "report.html", "recipe.lock.yaml"
IN_PYTHON = "given in Python"  # what a lock file says of data that has no name
ELSEWHERE = "Name another folder as out=, or pass force=True to write over it"


@dataclass(frozen=True)
class Compression:
    """What a run left.

    Attributes:
        folder: where small.tamis, certificate.json, report.html and recipe.lock.yaml are.
        small: the network, as read from its file.
        module: the architecture that the file is for, where a step rebuilt it (binarize, kronecker); None: the model's.
        certificate: what compression cost.
        lock: what the lock file says.
    """

    folder: Path
    small: Compressed
    module: nn.Module | None
    certificate: Certificate
    lock: Lock

    @property
    def met(self) -> bool | None:
        """Whether the certificate says what was required; None where nothing was."""
        return self.certificate.passed


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
        >>> done = tamis.compress(model, "ternary", data="digits", out="out/ternary")
        >>> print(done.certificate)
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InvalidInput("compress runs in one process: start it without torchrun")
    data, test = _without_names(data, "the training data"), _without_names(test, "the test data")
    wanted, given_lock, path = _wanted(recipe, data, test, target_bytes, max_disagreement)
    splits = _load(wanted, {"train": data, "test": test})
    called = called or type(model).__name__
    net, module = network_of(model, example, splits, called)
    check_plan(wanted, module, net, splits, called)
    where = device_for(net, device)
    if given_lock is not None:
        given_lock.check_made_for(net, splits, path)
        if max_accuracy_drop is None:
            max_accuracy_drop = given_lock.requirements.get("max_accuracy_drop")
        if max_disagreement is None:
            max_disagreement = given_lock.requirements.get("max_disagreement")
    if max_disagreement is None and wanted.budget is not None:
        max_disagreement = wanted.budget.max_disagreement
    required = requirements_of(max_accuracy_drop, max_disagreement, splits)
    asked = {**required, "called": called, "command": command, "just_initialised": just_initialised}
    lock = Lock.of(wanted, net, called, splits, where).requiring(required)
    folder = Path(out)
    space = Workspace(folder)
    if not force:
        _refuse_overwriting(folder, space, lock)
    if (done := _finished(folder, space, lock, net, module, wanted, splits, asked, progress)) is not None:
        return done
    threads = given_lock.threads if given_lock is not None else lock.threads
    with space.alone():
        lock = space.begin(Lock({**lock.content, "threads": threads}), force).requiring(required)
        _note_versions(given_lock, lock, progress)
        with _threads(lock.threads), space.given_up_on_errors():
            state = run_plan(wanted.plan, State(Compressed(net), net, module), net, splits, where, space, progress)
            return _finish(folder, space, lock, net, state, wanted, splits, asked, progress)


# -- before the work ---------------------------------------------------------------------------------------------------


def _without_names(data: Any, called: str) -> str | Data | None:
    """Names as they are, and the samples of anything else."""
    return (
        data
        if data is None or isinstance(data, str)
        else str(data)
        if isinstance(data, Path)
        else as_data(data, called)
    )


def _wanted(
    recipe: str | Path | Mapping[str, Any] | Recipe | None,
    data: str | Data | None,
    test: str | Data | None,
    target_bytes: int | str | None,
    max_disagreement: float | str | None,
) -> tuple[Recipe, Lock | None, Path]:
    """The recipe with what was asked for beside it; the lock and its path, where it came from a lock file."""
    lock, path, document = None, Path("recipe"), Document.of_data({})
    budget: dict[str, Any] = {}
    if target_bytes is not None:
        budget = {"target_bytes": target_bytes}
    elif max_disagreement is not None:
        budget = {"max_disagreement": max_disagreement}
    if isinstance(recipe, (str, Path)):
        path = recipe_path(str(recipe))
        found, document, lock = recipe_or_lock(path)
    elif isinstance(recipe, Recipe):
        found = recipe
    elif recipe is None and not budget:
        raise InvalidInput("compress needs a recipe or a budget: recipe=, target_bytes= or max_disagreement=")
    else:
        found = recipe_of(recipe if recipe is not None else {"name": "budget", "budget": budget})
    if lock is not None or any(step.step in Budget.not_after for step in found.steps):
        budget.pop("max_disagreement", None)  # nothing is left to search among: it is required, and no more
    if budget and recipe is not None:
        plain = found.resolved()
        kept = {"starts": plain["budget"]["starts"]} if "starts" in plain.get("budget", {}) else {}
        found = recipe_of({**plain, "budget": {**budget, **kept}})
    if lock is None and found.budget is not None and found.budget.starts is None and not found.steps:
        plain = found.resolved()
        found = recipe_of({**plain, "budget": {**plain["budget"], "starts": STARTS}})
    part, of = (None, "train") if found.budget is None else (0.5, "test")
    named = _named_data(found.data, data, test, document).resolved(part, of)
    if lock is not None and (budget or named != found.data):
        raise InvalidInput(f"'{path}' is a lock file, which says everything: leave out the data and the budget")
    return found.model_copy(update={"data": named}), lock, path


def requirements_of(
    max_accuracy_drop: float | str | None, max_disagreement: float | str | None, data: Splits
) -> dict[str, float | None]:
    """What is required of a certificate, as `certify` takes it, if the test data can tell; known before the work."""
    if max_accuracy_drop is not None and not data.test_has_labels:
        raise InvalidInput(f"'{data.test.name}' has no labels, which {requirement_of_labels(max_accuracy_drop)} needs")
    given = {"max_accuracy_drop": max_accuracy_drop, "max_disagreement": max_disagreement}
    return {name: None if value is None else parse_rate(value, name) for name, value in given.items()}


def _named_data(
    section: DataSection, data: str | Data | None, test: str | Data | None, document: Document
) -> DataSection:
    """The data section, with the data that was given beside the recipe."""
    given: dict[str, str] = {}
    if data is not None:
        given = parse_spec(data).splits() if isinstance(data, str) else {"train": IN_PYTHON}
    if test is not None:
        given["test"] = test if isinstance(test, str) else IN_PYTHON
    named = section.model_copy(update=given)
    for name, words, option in (("train", "training data", "data"), ("test", "test data", "test")):
        said = getattr(named, name)
        if said is None:
            message = f"no {words} is named: write it here, or pass {option}=NAME"
            raise document.error(("data", name), message)
        if name not in given and said == IN_PYTHON:
            raise document.error(("data", name), f"the {words} was {IN_PYTHON}, and no file has it: pass {option}=")
        if name not in given and document.is_file and parse_spec(said).in_module:
            message = f"'{said}' is Python code, which a file may not run by itself: name it, too, as {option}={said}"
            raise document.error(("data", name), message)
    return named


def _load(recipe: Recipe, given: Mapping[str, str | Data | None]) -> Splits:
    data = recipe.data
    objects = {name: each for name, each in given.items() if isinstance(each, Data)}
    splits = load_splits(**{**data.model_dump(), **objects})
    trains = [step.step for step in recipe.every_step if step.trains]
    if trains and not splits.has_labels:
        raise InvalidInput(f"'{data.train}' has no labels, which the step '{trains[0]}' needs to train")
    return splits


def network_of(model: Any, example: Any, data: Splits, called: str) -> tuple[Network, nn.Module | None]:
    """The graph, and the module where there is one."""
    net = model if isinstance(model, Network) else _traced(model, example, data, called)
    if not net.params:
        raise InvalidInput(f"{called} has no parameters: there is nothing to make smaller")
    return net, None if isinstance(model, Network) else model


def _traced(model: Any, example: Any, data: Splits, called: str) -> Network:
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"compress needs a module or a Network, got {type(model).__name__}")
    if example is not None:
        return trace(model, example)
    try:
        return trace(model, data.train.example)
    except TraceError as error:
        raise InvalidInput(f"{called} does not take inputs as those of '{data.train.name}': {error}") from error


def device_for(net: Network, asked: str | torch.device | None) -> torch.device:
    """Where steps train: the device that is asked for, or else that of the network."""
    if asked is None:
        return net.device
    try:
        return torch.device(asked)
    except (RuntimeError, TypeError):
        raise InvalidInput(f"device must be cpu, cuda or another one of torch, got {asked!r:.60}") from None


def check_plan(recipe: Recipe, module: nn.Module | None, net: Network, data: Splits, called: str) -> None:
    """Refuse what would fail later, before anything is written."""
    for step in recipe.every_step:
        if module is None and (step.trains or step.rebuilds):
            raise InvalidInput(f"the step '{step.step}' needs a module, and {called} is a program without one")
    for part in (data.train, data.test):
        try:
            net.check_inputs((part.example,))
        except InvalidInput as error:
            raise InvalidInput(f"{called} does not take '{part.name}': {error}") from error
    if module is not None and any(step.trains for step in recipe.every_step):
        check_fits(module, data.train, called=called)
    net.check_finite()


# -- the work ----------------------------------------------------------------------------------------------------------


def _finish(
    folder: Path,
    space: Workspace,
    lock: Lock,
    net: Network,
    state: State,
    recipe: Recipe,
    data: Splits,
    asked: Mapping[str, Any],
    progress: Listener,
) -> Compression:
    """Write what the run leaves; the lock file last, which says that all of it is there.

    What another run left goes first: a kill must not leave its certificate beside the new network.
    """
    for name in (LOCK, CERTIFICATE, REPORT):
        (folder / name).unlink(missing_ok=True)
    state.small.save(folder / SMALL)
    rebuilt = state.module if any(step.rebuilds for step in recipe.plan) else None
    lock = lock.with_result(folder / SMALL, _notes(recipe, space))
    certificate = _certify(folder, lock, net, rebuilt, data, asked, progress)
    lock.write(folder / LOCK)
    space.remove()
    return Compression(folder, state.small, rebuilt, certificate, lock)


def _certify(
    folder: Path,
    lock: Lock,
    net: Network,
    rebuilt: nn.Module | None,
    data: Splits,
    asked: Mapping[str, Any],
    progress: Listener,
) -> Certificate:
    """Write the certificate of the file in the folder, with what was asked of it, and the report."""
    announce(progress, "certify")
    file = folder / SMALL
    certificate = certify(net, file, data.test, rebuilt=rebuilt, delta=DELTA, progress=progress, **asked)
    (folder / REPORT).unlink(missing_ok=True)  # it may be that of another certificate
    certificate.save(folder / CERTIFICATE)
    again = _repeating(folder / LOCK, lock, asked)
    result = lock.content["result"]
    tried = [
        Candidate(
            ", ".join(filter(None, (each["start"], each.get("layers")))),
            each["bytes"],
            1 - each["different"] / result["held_out"],
            each["chosen"],
        )
        for each in result.get("tried", ())
    ]
    report(
        folder / CERTIFICATE,
        folder / REPORT,
        original=net,
        rebuilt=rebuilt,
        tried=tried,
        tried_by="share of equal answers",
        reproduce=[again],
    )
    return certificate


def _repeating(path: Path, lock: Lock, asked: Mapping[str, Any]) -> str:
    """What makes the same file again: a command where a command made it, or else a call."""
    data = DataSection.model_validate(lock.content["recipe"]["data"])
    if asked["command"] is not None:
        return f"tamis compress {asked['called']} --recipe {shlex.quote(str(path))}{code_named_in(data)} -o again"
    given = (("data", data.train), ("test", data.test))
    more = "".join(f", {name}={name}" for name, said in given if said == IN_PYTHON)
    return f"tamis.compress(model, {str(path)!r}{more}, out='again')"


def code_named_in(data: DataSection) -> str:
    """The options that name data which is Python code: it is not run because a file names it."""
    given = (("--data", data.train), ("--test", data.test))
    named = [(option, said) for option, said in given if said is not None and parse_spec(said).in_module]
    return "".join(f" {option} {shlex.quote(said)}" for option, said in named)


def _notes(recipe: Recipe, space: Workspace) -> dict[str, Any]:
    """What the budget's search tried: how many samples it was compared on, and every network."""
    path = space.notes(len(recipe.plan), recipe.plan[-1].step)
    found: dict[str, Any] = read_json_object(path, "delete it to begin anew") if path.exists() else {}
    return found


def _refuse_overwriting(folder: Path, space: Workspace, lock: Lock) -> None:
    """Raise InvalidInput where a folder holds what another run left when it was finished, or what no run left."""
    if (folder / LOCK).exists():
        if differs := lock.differs(Lock.read(folder / LOCK)):
            raise InvalidInput(f"'{folder}' holds the finished run of something else: {differs}. {ELSEWHERE}")
        return
    there = [name for name in (SMALL, CERTIFICATE, REPORT) if (folder / name).exists()]
    if there and not space.belongs_to(lock):
        raise InvalidInput(f"'{folder}' holds {', '.join(there)}, and no {LOCK} says what they are. {ELSEWHERE}")


def _finished(
    folder: Path,
    space: Workspace,
    lock: Lock,
    net: Network,
    module: nn.Module | None,
    recipe: Recipe,
    data: Splits,
    asked: Mapping[str, Any],
    progress: Listener,
) -> Compression | None:
    """What the same run, finished earlier, has left; None if there is no file of it.

    Without its report or its own certificate, these are written again, and no step is run.
    """
    if not all((folder / name).exists() for name in (LOCK, SMALL)):
        return None
    old = Lock.read(folder / LOCK)
    if lock.differs(old) or old.content.get("result", {}).get("sha256") != sha256_of(folder / SMALL):
        return None
    rebuilds = module is not None and any(step.rebuilds for step in recipe.plan)
    small = load(folder / SMALL, module if module is not None and rebuilds else net)
    rebuilt = small.apply_to(module).eval() if module is not None and rebuilds else None
    certificate = _certificate_of(folder, net, asked)
    if certificate is None or not (folder / REPORT).exists():
        with _threads(old.threads):
            certificate = _certify(folder, old, net, rebuilt, data, asked, progress)
    if old.requirements != lock.requirements:
        old = old.requiring(lock.requirements)
        old.write(folder / LOCK)
    space.remove()
    return Compression(folder, small, rebuilt, certificate, old)


def _certificate_of(folder: Path, net: Network, asked: Mapping[str, Any]) -> Certificate | None:
    """The certificate in a folder; None if it is damaged, or speaks of another file, original or requirement."""
    try:
        certificate = Certificate.load(folder / CERTIFICATE)
    except (FileNotFoundError, CorruptArtifact):
        return None
    said = certificate.content
    known = {**network_facts(net), "just_initialised": asked["just_initialised"]}
    own = said["file"]["sha256"] == sha256_of(folder / SMALL) and known.items() <= said["network"].items()
    required = {each["claim"]: each["at_most"] for each in said.get("requirements", ())}
    wanted = required_bounds(**{name: asked[name] for name in REQUIRED})
    return certificate if own and required == wanted else None


# -- the machine -------------------------------------------------------------------------------------------------------


def _note_versions(given: Lock | None, lock: Lock, progress: Listener) -> None:
    """Say where a run that is repeated was made with other versions: its bytes may differ."""
    if given is None or progress is not True:
        return
    now = lock.content["versions"]
    others = [
        f"{name} {made} (now {now.get(name)})"
        for name, made in given.content["versions"].items()
        if made != now.get(name)
    ]
    if others:
        print(f"the lock file was made with {', '.join(others)}: bytes may differ", file=sys.stderr, flush=True)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads meanwhile: sums come out the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
