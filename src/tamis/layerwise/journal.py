"""The journal of a walk keeps finished layers in a directory, so that a run that is killed loses none of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import Codes, load_archive, read_json_object, replace_file
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.training import Team

ORIGIN = "origin.json"


@dataclass(frozen=True)
class LayerOutcome:
    """An outcome is the result of transforming one layer.

    Attributes:
        params: the parameters that change, with their new values.
        codes: the codes of those that were quantized.
        masks: which entries are kept, for those that were pruned.
        figures: numbers for the report.
    """

    params: dict[str, Tensor]
    codes: dict[str, Codes] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


class LayerJournal:
    """A journal records the outcomes of finished layers in files; without a directory, it records nothing.

    Args:
        directory: where the files go; it is created if it does not exist.
        origin: the step, its settings and the networks: only a run of the same origin may continue from the files.
        team: the processes of the run, of which the first one writes.
    """

    def __init__(self, directory: str | Path | None, origin: Mapping[str, Any], team: Team) -> None:
        self._directory = None if directory is None else Path(directory)
        self._origin, self._team = dict(origin), team

    @property
    def is_active(self) -> bool:
        """Return whether there is a directory to record in."""
        return self._directory is not None

    def begin(self, data: str) -> None:
        """Start a journal, or check that the one in the directory is of the same run.

        Args:
            data: a digest that identifies the calibration data.
        """
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        # Through JSON and back, so that tuples and the like compare equal to what the file gives.
        origin = json.loads(json.dumps({**self._origin, "calibration": data}))
        path = self._directory / ORIGIN
        if path.exists():
            _check_origin(path, read_json_object(path, "delete its directory to begin anew"), origin)
        # One process writes; all wait below, so that none reads a file that is not there yet.
        elif self._team.leads:
            for part in self._directory.glob("layer_*.pt"):  # nothing says which run these layers are of
                raise InvalidInput(
                    f"'{self._directory}' has '{part.name}' but no {ORIGIN}; name another place by directory="
                )
            with replace_file(path) as part:
                part.write_text(json.dumps(origin, indent=2))
        self._team.wait()

    def read(self, number: int, weight: str) -> LayerOutcome | None:
        """Read the outcome of a layer; None if it is not recorded."""
        path = self._find_path(number)
        if path is None or not path.exists():
            return None
        try:
            stored = load_archive(path, self._team.device)
            codes = {name: Codes(**parts) for name, parts in stored["codes"].items()}
            if stored["weight"] != weight:
                raise CorruptArtifact(f"it holds the layer of '{stored['weight']}', not of '{weight}'")
            return LayerOutcome(stored["params"], codes, stored["masks"], stored["figures"])
        except OSError:
            raise
        except Exception as error:  # torch and pickle raise many types for a damaged file
            raise CorruptArtifact(
                f"'{path}' is damaged ({error!s:.200}); delete it, and the layer is computed again"
            ) from error

    def record(self, number: int, weight: str, outcome: LayerOutcome) -> None:
        """Write the outcome of a layer to its file."""
        path = self._find_path(number)
        if path is not None and self._team.leads:
            # Plain dicts and tensors only: files are read with weights_only=True, which refuses classes.
            codes = {
                name: {"indices": each.indices, "levels": each.levels, "scales": each.scales}
                for name, each in outcome.codes.items()
            }
            content = {**vars(outcome), "codes": codes, "weight": weight}
            with replace_file(path) as part, part.open("wb") as file:
                torch.save(content, file)
        self._team.wait()

    def _find_path(self, number: int) -> Path | None:
        return None if self._directory is None else self._directory / f"layer_{number:04d}.pt"


def _check_origin(path: Path, recorded: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    differences = [
        f"{name} was {recorded.get(name)!r:.80}, now it is {current.get(name)!r:.80}"
        for name in dict.fromkeys([*recorded, *current])
        if recorded.get(name) != current.get(name)
    ]
    if differences:
        raise InvalidInput(
            f"'{path}' comes from another run: {'; '.join(differences[:4])}. Use the same settings to continue it; "
            f"delete '{path.parent}', or name another place by directory=, to begin anew"
        )
