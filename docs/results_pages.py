"""Pages of stored figures, made of the JSON files themselves: what was measured, by which command, when and where."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MOST_ROWS = 60  # of one table; the file has all of them


def write_results_pages(results: Sequence[Path], folder: Path) -> None:
    """Write a page for each file of figures in some folders, and one that lists them."""
    folder.mkdir(exist_ok=True)
    stored = sorted((path for each in results for path in each.glob("*.json")), key=lambda path: path.name)
    files = [path for path in stored if "environment" in json.loads(path.read_text())]
    for path in files:
        (folder / f"{path.stem}.md").write_text(page_of(path, folder), encoding="utf-8")
    (folder / "index.md").write_text(index_of(files), encoding="utf-8")


def index_of(files: list[Path]) -> str:
    """The list of all files, with the day and the machine."""
    claim = "Every measured number in these pages comes from one of these files, or is said not to be stored."
    lines = ["# Stored figures", "", claim, ""]
    lines += ["| figures | measured | on |", "|---|---|---|"]
    for path in files:
        said = json.loads(path.read_text())["environment"]
        lines.append(f"| [{path.stem}]({path.stem}.md) | {said.get('date', '')} | {hardware(said)} |")
    entries = [path.stem for path in files]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *entries, "```", ""])


def page_of(path: Path, folder: Path) -> str:
    """One file: its command, and its numbers, one table for each part; links are relative to the page's folder."""
    content = json.loads(path.read_text())
    said = content["environment"]
    lines = [f"# {path.stem.replace('_', ' ')}", "", f"    {said.get('command', '')}", ""]
    lines += [f"{said.get('date', '')}, {hardware(said)}, torch {said.get('torch', 'unknown')}.", ""]
    here = os.path.relpath(path.parent, folder)
    lines += [f"All of it: {{download}}`{path.name} <{here}/{path.name}>`.", ""]
    for picture in pictures_of(path):
        lines += [f"![{picture.stem.replace('_', ' ')}]({here}/{picture.name})", ""]
    figures = content.get("figures", {name: value for name, value in content.items() if name != "environment"})
    parts = figures.items() if isinstance(figures, dict) else [("figures", figures)]
    for name, part in parts:
        rows = list(flattened(part))
        lines += [f"## {name}", "", "| what | value |", "|---|---|"]
        lines += [f"| {escaped(key)} | {escaped(value)} |" for key, value in rows[:MOST_ROWS]]
        lines += ["", f"{len(rows) - MOST_ROWS:,} more in the file.", ""] if len(rows) > MOST_ROWS else [""]
    return "\n".join(lines)


def pictures_of(path: Path) -> list[Path]:
    """What was drawn of a file's figures; of two files that a picture is named after, it is of the longer name."""
    stems = sorted((other.stem for other in path.parent.glob("*.json")), key=len, reverse=True)
    drawn = sorted(path.parent.glob(f"{path.stem}_*.svg"))
    return [each for each in drawn if path.stem == next(stem for stem in stems if each.stem.startswith(f"{stem}_"))]


def hardware(said: dict[str, Any]) -> str:
    """The machine, the GPU first."""
    return str(said.get("gpu") or said.get("processor") or "unknown")


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Numbers and texts with the way that leads to them; what a part says of its environment stands above already."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name != "environment":
                yield from flattened(inner, f"{path} › {name}" if path else str(name))
    elif isinstance(value, list) and any(isinstance(inner, (dict, list)) for inner in value):
        for place, inner in enumerate(value):
            yield from flattened(inner, f"{path} [{place}]")
    else:
        yield path, ", ".join(map(written, value)) if isinstance(value, list) else written(value)


def written(value: Any) -> str:
    """A number to five digits."""
    return f"{value:.5g}" if isinstance(value, float) else "–" if value is None else str(value)


def escaped(text: str) -> str:
    """As a cell of a Markdown table takes it."""
    return text.replace("|", "\\|").replace("\n", " ")[:300] or " "
