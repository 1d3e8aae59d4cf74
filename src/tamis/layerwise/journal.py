"""What a walk leaves in a directory, layer by layer, so that a kill loses no layer that was finished."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import Codes, load_archive, read_object, replacing
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.training import Team

ORIGIN = "origin.json"


@dataclass(frozen=True)
class Outcome:
    """What was made of a layer.

    Attributes:
        params: parameters that change.
        codes: of those that were quantized.
        masks: which entries are kept, of those that were pruned.
        figures: for the report.
    """

    params: dict[str, Tensor]
    codes: dict[str, Codes] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


class Journal:
    """The outcomes of finished layers, in files; without a directory, nothing.

    Args:
        directory: made if it is not there.
        origin: what is done, to what, and how: only a run of the same origin may go on from the files.
        team: of which the first process writes.
    """

    def __init__(self, directory: str | Path | None, origin: Mapping[str, Any], team: Team) -> None:
        self._directory = None if directory is None else Path(directory)
        self._origin, self._team = dict(origin), team

    @property
    def keeps(self) -> bool:
        """Whether there is a directory."""
        return self._directory is not None

    def begin(self, data: str) -> None:
        """Go on from what is there, or begin; `data` identifies the calibration data."""
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        origin = json.loads(json.dumps({**self._origin, "calibration": data}))
        path = self._directory / ORIGIN
        if path.exists():
            _compare(path, _read_json(path), origin)
        elif self._team.leads:
            for part in self._directory.glob("layer_*.pt"):  # without an origin: nobody knows of what
                raise InvalidInput(f"'{part}' stands there without {ORIGIN}; name another place by directory=")
            with replacing(path) as part:
                part.write_text(json.dumps(origin, indent=2))
        self._team.wait()

    def finished(self, number: int, weight: str) -> Outcome | None:
        """What was made of a layer, if it is known."""
        path = self._path(number)
        if path is None or not path.exists():
            return None
        try:
            stored = load_archive(path, self._team.device)
            codes = {name: Codes(**parts) for name, parts in stored["codes"].items()}
            if stored["weight"] != weight:
                raise CorruptArtifact(f"it is about '{stored['weight']}', not '{weight}'")
            return Outcome(stored["params"], codes, stored["masks"], stored["figures"])
        except OSError:
            raise
        except Exception as error:  # torch and pickle each have their own
            raise CorruptArtifact(f"'{path}' is damaged ({error!s:.200}); delete it to have it made again") from error

    def record(self, number: int, weight: str, outcome: Outcome) -> None:
        """Keep what was made of a layer."""
        path = self._path(number)
        if path is not None and self._team.leads:
            codes = {
                name: {"indices": each.indices, "levels": each.levels, "scales": each.scales}
                for name, each in outcome.codes.items()
            }
            content = {**vars(outcome), "codes": codes, "weight": weight}
            with replacing(path) as part, part.open("wb") as file:
                torch.save(content, file)
        self._team.wait()

    def _path(self, number: int) -> Path | None:
        return None if self._directory is None else self._directory / f"layer_{number:04d}.pt"


def _read_json(path: Path) -> dict[str, Any]:
    return read_object(path, "delete its directory to begin anew")


def _compare(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differences = [
        f"{name} was {found.get(name)!r:.80}, now it is {wanted.get(name)!r:.80}"
        for name in dict.fromkeys([*found, *wanted])
        if found.get(name) != wanted.get(name)
    ]
    if differences:
        raise InvalidInput(
            f"'{path}' comes from another run: {'; '.join(differences[:4])}. Ask for the same again to go on; delete "
            f"'{path.parent}', or name another place by directory=, to begin anew"
        )
