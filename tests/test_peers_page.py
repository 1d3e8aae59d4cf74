"""The tables of docs/peers.md are the figures of docs/results/peers.json, row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "peers.md").read_text(encoding="utf-8")
STORED: dict[str, Any] = json.loads((DOCS / "results" / "peers.json").read_text(encoding="utf-8"))
HEADINGS = {"resnet20": "## ResNet-20", "resnet32": "## ResNet-32"}


def cells_on_the_page(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without its two lines of titles."""
    below = PAGE.split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def cells_of(row: dict[str, Any]) -> list[str]:
    """What the page must say of a stored row: per cent, KB, KB, seconds, seconds, MB."""
    if "not measured" in row:
        return [row["group"], row["method"], row["not measured"], "", "", "", "", ""]
    return [
        row["group"],
        row["method"],
        format(100 * row["accuracy"], ".2f"),
        format(row["bytes"] / 1e3, ",.1f"),
        format(row["gzipped"] / 1e3, ",.1f"),
        format(row["CPU seconds"], ".2f"),
        format(row["seconds"], ".2f"),
        f"{row['peak memory'] / 1e6:.0f} (+{row['of it for the call'] / 1e6:.0f})",
    ]


@pytest.mark.parametrize("network", HEADINGS)
def test_a_table_has_every_stored_row_and_no_other(network: str) -> None:
    stored = [cells_of(row) for row in STORED["figures"]["rows"] if row["network"] == network]
    assert len(stored) >= 10
    assert cells_on_the_page(HEADINGS[network]) == stored


def test_bytes_are_the_sum_of_the_files() -> None:
    rows = [row for row in STORED["figures"]["rows"] if "not measured" not in row]
    assert all(row["bytes"] == sum(row["files"].values()) for row in rows)


def test_the_page_names_the_run() -> None:
    said = STORED["environment"]
    text = " ".join(PAGE.split())
    assert said["command"] in text and said["date"] in text and said["torch"] in text
    assert all(version in text for version in STORED["figures"]["versions"].values())
