"""A run leaves a folder with the small file, its certificate, its report and, written last, its lock file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tamis.artifact import Compressed, load, read_json_object
from tamis.certificates import certify
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.progress import Listener
from tamis.recipes.lock import Lock, sha256_of
from tamis.recipes.plan import announce
from tamis.recipes.prepared_model import PreparedModel
from tamis.recipes.request import IN_PYTHON, code_options
from tamis.recipes.schema import DataSection, Recipe
from tamis.recipes.splits import Splits
from tamis.recipes.state import DELTA, State
from tamis.recipes.workspace import Workspace
from tamis.reports import Candidate, report
from tamis.verification import REQUIRED, Certificate, network_facts, required_bounds

SMALL, CERTIFICATE, REPORT, LOCK = "small.tamis", "certificate.json", "report.html", "recipe.lock.yaml"
ELSEWHERE = "Name another folder as out=, or pass force=True to write over it"


@dataclass(frozen=True)
class Compression:
    """A compression is the result of a run: its files, and what they say.

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
        """Return whether the certificate says what was required; None where nothing was required."""
        return self.certificate.passed


@dataclass(frozen=True)
class OutputFolder:
    """An output folder is where one run leaves its files, with all that is needed to write them.

    Attributes:
        path: the folder.
        model: what is compressed.
        recipe: what is done to it.
        data: on what.
        lock: of this run.
        certification: arguments of `certify`: what is required, and what the certificate notes.
        progress: as every long call takes it.
    """

    path: Path
    model: PreparedModel
    recipe: Recipe
    data: Splits
    lock: Lock
    certification: Mapping[str, Any]
    progress: Listener

    @property
    def space(self) -> Workspace:
        """Return the folder of unfinished work inside it."""
        return Workspace(self.path)

    def refuse_overwriting(self) -> None:
        """Raise InvalidInput where the folder holds what another run left when it was finished, or what no run left."""
        # A lock file says what the folder holds; without one, files may be anybody's.
        if (self.path / LOCK).exists():
            if differs := self.lock.differs(Lock.read(self.path / LOCK)):
                raise InvalidInput(f"'{self.path}' holds the finished run of something else: {differs}. {ELSEWHERE}")
            return
        present = [name for name in (SMALL, CERTIFICATE, REPORT) if (self.path / name).exists()]
        # Unless this very run was broken off here: the lock file is the last that it writes.
        if present and not self.space.belongs_to(self.lock):
            raise InvalidInput(
                f"'{self.path}' holds {', '.join(present)}, and no {LOCK} says what they are. {ELSEWHERE}"
            )

    def read_finished(self) -> Compression | None:
        """Return what the same run, finished earlier, has left; None if its file is not there.

        Without its report or its own certificate, these are written again, and no step is run.
        """
        if not all((self.path / name).exists() for name in (LOCK, SMALL)):
            return None
        old = Lock.read(self.path / LOCK)
        # The sha256 tells a file that was damaged or exchanged: then all of it is made again.
        if self.lock.differs(old) or old.content.get("result", {}).get("sha256") != sha256_of(self.path / SMALL):
            return None
        module = self.model.rebuilt_module(self.recipe)
        small = load(self.path / SMALL, self.model.net if module is None else module)
        rebuilt = None if module is None else small.apply_to(module).eval()
        certificate = self._read_certificate()
        # The report is drawn from the certificate, and is written with it.
        if certificate is None or not (self.path / REPORT).exists():
            # With the run's own threads: outputs that rounded otherwise could change an answer, and the certificate.
            with use_threads(old.threads):
                certificate = self._certify(old, rebuilt)
        # Other requirements need no other network; only what is said of it changes.
        if old.requirements != self.lock.requirements:
            old = old.with_requirements(self.lock.requirements)
            old.write(self.path / LOCK)
        # A kill between the lock file and this left it there.
        self.space.remove()
        return Compression(self.path, small, rebuilt, certificate, old)

    def finish(self, state: State, lock: Lock) -> Compression:
        """Write what the run leaves; the lock file last, which says that all of it is there."""
        # What another run left goes first: a kill must not leave its certificate beside the new network.
        for name in (LOCK, CERTIFICATE, REPORT):
            (self.path / name).unlink(missing_ok=True)
        state.small.save(self.path / SMALL)
        # The architecture changes only by steps that rebuild layers; for all others the model's own reads the file.
        rebuilt = state.module if any(step.rebuilds for step in self.recipe.plan) else None
        lock = lock.with_result(self.path / SMALL, self._read_search_notes())
        certificate = self._certify(lock, rebuilt)
        # Last: whoever finds it may rely on everything else being there.
        lock.write(self.path / LOCK)
        self.space.remove()
        return Compression(self.path, state.small, rebuilt, certificate, lock)

    def _certify(self, lock: Lock, rebuilt: nn.Module | None) -> Certificate:
        """Write the certificate of the file in the folder, and the report."""
        announce(self.progress, "certify")
        file, net = self.path / SMALL, self.model.net
        certificate = certify(
            net, file, self.data.test, rebuilt=rebuilt, delta=DELTA, progress=self.progress, **self.certification
        )
        (self.path / REPORT).unlink(missing_ok=True)  # it may be that of another certificate
        certificate.save(self.path / CERTIFICATE)
        report(
            self.path / CERTIFICATE,
            self.path / REPORT,
            original=net,
            rebuilt=rebuilt,
            tried=_list_candidates(lock.content["result"]),
            tried_by="share of equal answers",
            reproduce=[self._format_repeat_command(lock)],
        )
        return certificate

    def _read_certificate(self) -> Certificate | None:
        """Return the certificate; None if it is damaged, or speaks of another file, original or requirement."""
        try:
            certificate = Certificate.load(self.path / CERTIFICATE)
        except (FileNotFoundError, CorruptArtifact):
            return None
        content, arguments = certificate.content, self.certification
        # Compared by what it says and not by its date: whatever would be written anew just the same is kept.
        facts = {**network_facts(self.model.net), "just_initialised": arguments["just_initialised"]}
        same_file = content["file"]["sha256"] == sha256_of(self.path / SMALL)
        same_network = facts.items() <= content["network"].items()
        required = {each["claim"]: each["at_most"] for each in content.get("requirements", ())}
        same_requirements = required == required_bounds(**{name: arguments[name] for name in REQUIRED})
        return certificate if same_file and same_network and same_requirements else None

    def _format_repeat_command(self, lock: Lock) -> str:
        """Return what makes the same file again: a command where a command made it, or else a call."""
        path, data = self.path / LOCK, DataSection.model_validate(lock.content["recipe"]["data"])
        if self.certification["command"] is not None:
            name = self.certification["called"]
            return f"tamis compress {name} --recipe {shlex.quote(str(path))}{code_options(data)} -o again"
        sources = (("data", data.train), ("test", data.test))
        more = "".join(f", {name}={name}" for name, spec in sources if spec == IN_PYTHON)
        return f"tamis.compress(model, {str(path)!r}{more}, out='again')"

    def _read_search_notes(self) -> dict[str, Any]:
        """Return what the budget's search tried: every network, and on how many samples they were compared."""
        # A budget runs last, and is what leaves notes.
        path = self.space.notes(len(self.recipe.plan), self.recipe.plan[-1].step)
        notes: dict[str, Any] = read_json_object(path, "delete it to begin anew") if path.exists() else {}
        return notes


def _list_candidates(result: Mapping[str, Any]) -> list[Candidate]:
    """List the networks that a search tried, for the report."""
    return [
        Candidate(
            ", ".join(filter(None, (each["start"], each.get("layers")))),
            each["bytes"],
            1 - each["different"] / result["held_out"],
            each["chosen"],
        )
        for each in result.get("tried", ())
    ]


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads meanwhile: the number decides how sums are rounded."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
