"""The results of a sweep have a row for each candidate, and can be written as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tamis.reports import Candidate
from tamis.sweeps.space import Point, describe_point
from tamis.verification import Certificate

RESULTS = "results.json"


@dataclass(frozen=True)
class Row:
    """A row is a candidate in the results.

    Attributes:
        trial: the number of its trial in the study.
        point: the name of each range → what was tried of it.
        figures: what was measured on the held-out data.
        front: whether no other one beats it.
        folder: where its file is, as certified; None if it is not.
        certificate: what it costs, on the test data.
    """

    trial: int
    point: Point
    figures: Mapping[str, Any]
    front: bool
    folder: Path | None = None
    certificate: Certificate | None = None

    @property
    def passed(self) -> bool | None:
        """Say whether its certificate says what was required; None without a certificate or a requirement."""
        return None if self.certificate is None else self.certificate.passed


@dataclass(frozen=True)
class SweepResult:
    """A sweep result lists all candidates, and what their certificates say.

    Attributes:
        folder: where everything is.
        storage: the address of the database, without a password.
        objectives: what candidates were judged by.
        rows: the candidates, the best in the first objective first.
        failed: what could not be made: the point, and why.
        compared: how many networks were compared on the test data, now and before: each certificate pays for them all.
        required: whether something was required of the certificates.
    """

    folder: Path
    storage: str
    objectives: tuple[str, ...]
    rows: Sequence[Row]
    failed: Sequence[tuple[Point, str]] = field(default=())
    compared: int = 0
    required: bool = False

    @property
    def passed(self) -> bool | None:
        """Say whether a network is certified to be as good as required; None where nothing was required."""
        return any(row.passed for row in self.rows) if self.required else None

    @property
    def certified(self) -> list[Row]:
        """List the candidates that have a certificate."""
        return [row for row in self.rows if row.certificate is not None]


def list_candidates(rows: Sequence[Row], place: int) -> list[Candidate]:
    """List all candidates, for a picture of bytes against accuracy; none where accuracies are not known."""
    # A picture with some of the candidates would show a front that is none.
    if not all("accuracy" in row.figures for row in rows):
        return []
    return [
        Candidate(describe_point(row.point), row.figures["bytes"], row.figures["accuracy"], number == place)
        for number, row in enumerate(rows)
    ]


def as_plain_data(result: SweepResult) -> dict[str, Any]:
    """Return a result as JSON takes it."""
    return {
        "folder": str(result.folder),
        "storage": result.storage,
        "objectives": list(result.objectives),
        "compared_on_test_data": result.compared,
        "passed": result.passed,
        "candidates": [_as_plain_row(row) for row in result.rows],
        "failed": [{"point": point, "error": why} for point, why in result.failed],
    }


def _as_plain_row(row: Row) -> dict[str, Any]:
    plain: dict[str, Any] = {"trial": row.trial, "point": row.point, **row.figures, "front": row.front}
    plain["certified"] = row.certificate is not None
    if row.certificate is not None:
        # A bound that says nothing is left out, rather than written as a number that somebody may compare.
        claims = {claim.name: claim.bound.value for claim in row.certificate.claims if claim.bound.informative}
        plain |= {"folder": str(row.folder), "certificate": claims, "passed": row.certificate.passed}
    return plain
