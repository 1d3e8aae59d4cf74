"""A lock file, recipe.lock.yaml, records everything that is needed to repeat a run, and its result."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import yaml

from tamis import __version__
from tamis.artifact import fingerprint, fingerprint_of_values, replace_file
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.graph import Network
from tamis.recipes.splits import Splits
from tamis.recipes.yaml_document import Document

VERSION = 1
MOST_THREADS = 4096  # with far more, torch does not say no: it crashes
HEADER = "# Written by tamis compress: pass this file as --recipe to repeat the run.\n"
ABOUT_THE_MACHINE = ("versions", "threads")  # what may differ when a run is repeated, as far as it can be


@dataclass(frozen=True)
class Lock:
    """A lock is the content of a lock file.

    Attributes:
        content: plain data: the recipe with every default, digests of the model and the data, versions, threads,
            device, what is required of the certificate and, once the run is over, the file that came out, and what a
            search tried.
    """

    content: Mapping[str, Any]

    @classmethod
    def of(cls, recipe: Mapping[str, Any], net: Network, called: str, data: Splits, device: torch.device) -> Lock:
        """Make the lock of a run that is about to begin; the recipe is plain data, with every default."""
        return cls(
            {
                "lock": VERSION,
                "recipe": recipe,
                "model": {"name": called, **model_facts(net)},
                "data": data.digests,
                "versions": {
                    "tamis": __version__,
                    # Without the ending that names a device, as +cpu: the same version is the same code.
                    "torch": torch.__version__.split("+")[0],
                    "numpy": numpy.__version__,
                    "python": platform.python_version(),
                },
                "threads": torch.get_num_threads(),
                "device": str(device),
            }
        )

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Read a lock file, or raise CorruptArtifact if it is none of this version."""
        content = Document.read(path).data
        if not is_lock(content):
            raise CorruptArtifact(
                f"'{path}' is no lock file of tamis compress, or one of another version: move it, or name another "
                "folder with -o"
            )
        return cls(content)

    def write(self, path: Path) -> None:
        """Write the lock as YAML, whole or not at all."""
        # In the order of writing, in which people read it.
        text = yaml.safe_dump(dict(self.content), sort_keys=False, allow_unicode=True, width=120)
        with replace_file(path) as part:
            part.write_text(HEADER + text, encoding="utf-8")

    @property
    def threads(self) -> int:
        """Return how many threads torch computed with: another number may round sums differently."""
        return int(self.content["threads"])

    @property
    def requirements(self) -> Mapping[str, float]:
        """Return what is required of the certificate, by argument; older lock files state nothing."""
        requirements: Mapping[str, float] = self.content.get("requirements", {})
        return requirements

    def with_requirements(self, requirements: Mapping[str, float | None]) -> Lock:
        """Return the lock with these requirements and no others; those that are None are left out."""
        stated = {name: value for name, value in requirements.items() if value is not None}
        return Lock({**self.content, "requirements": stated})

    def with_result(self, file: Path, notes: Mapping[str, Any]) -> Lock:
        """Return the lock with the file that the run made, and the notes of the search behind it."""
        result = {"file": file.name, "bytes": file.stat().st_size, "sha256": sha256_of(file), **notes}
        return Lock({**self.content, "result": result})

    def differs(self, other: Lock) -> str:
        """Say in words how two runs differ in what makes a network; versions and threads do not count.

        The text is empty if nothing differs.
        """
        # Requirements decide what is said of the network and not how it is made; a result is there once it is made.
        ignored = (*ABOUT_THE_MACHINE, "requirements", "result")
        mine, theirs = ({k: v for k, v in each.content.items() if k not in ignored} for each in (self, other))
        for each in (mine, theirs):
            # What a model is called makes no other network.
            each["model"] = {name: value for name, value in each["model"].items() if name != "name"}
        return "; ".join(_list_differences(mine, theirs)[:3])

    def check_made_for(self, net: Network, data: Splits, path: Path) -> None:
        """Raise InvalidInput unless the model and the data are those of the lock file."""
        current = {"model": model_facts(net), **{f"data {name}": each for name, each in data.digests.items()}}
        recorded = {"model": self.content["model"], **{f"data {name}": v for name, v in self.content["data"].items()}}
        for what, facts in current.items():
            for name, value in facts.items():
                # Data may have another name or path now, as long as its samples are the same.
                if name != "data" and recorded.get(what, {}).get(name) != value:
                    raise InvalidInput(
                        f"the {what} is not that of '{path}': its {name} is {value}, there it is "
                        f"{recorded.get(what, {}).get(name)}"
                    )


def is_lock(content: Any) -> bool:
    """Return whether this is the content of a lock file, and not a recipe."""
    # Everything that other code indexes without asking: whoever edits a lock file is told so here, and not by a
    # KeyError in the middle of a run.
    return (
        isinstance(content, Mapping)
        and content.get("lock") == VERSION
        and all(isinstance(content.get(name), Mapping) for name in ("recipe", "model", "data", "versions"))
        and all(isinstance(each, Mapping) for each in content["data"].values())
        and isinstance(content.get("requirements", {}), Mapping)
        # By type: True is an integer in Python, and no number of threads.
        and type(content.get("threads")) is int
        and 0 < content["threads"] <= MOST_THREADS
    )


def model_facts(net: Network) -> dict[str, str]:
    """Return the digests that identify a network: of its graph, and of its values."""
    return {"graph": fingerprint(net), "values": fingerprint_of_values(net.params)}


def sha256_of(path: Path) -> str:
    """Compute the sha256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _list_differences(mine: Any, theirs: Any, path: str = "") -> list[str]:
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        names = dict.fromkeys([*mine, *theirs])
        return [
            text for name in names for text in _list_differences(mine.get(name), theirs.get(name), f"{path}.{name}")
        ]
    # Lists of the same length are compared item by item, so that a message names one key and not two whole lists.
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        pairs = enumerate(zip(mine, theirs, strict=True))
        return [text for place, pair in pairs for text in _list_differences(*pair, f"{path}[{place}]")]
    return [] if mine == theirs else [f"{path.removeprefix('.')} was {theirs!r:.80}, now it is {mine!r:.80}"]
