"""Stored figures: numbers as JSON, beside them the command, the day and the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import torch

from tamis.artifact import replace_file
from tamis.errors import InvalidInput

WIDTH = 120  # characters of a line


def describe_environment() -> dict[str, Any]:
    """Return the command, the day and the machine."""
    own = sys.modules["__main__"].__spec__
    script = [os.path.relpath(sys.argv[0])] if sys.argv[0] else []  # none in an interactive session
    program = ["-m", own.name.removesuffix(".__main__")] if own else script
    return {
        "command": shlex.join(["python", *program, *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "processor": _name_processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


@contextmanager
def time_stage(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Note how long a stage took, in seconds."""
    began = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - began, 1)


def store(path: str | Path, figures: Any) -> None:
    """Write figures with their environment as JSON, whole or not at all."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as part:
        part.write_text(write_json({"environment": describe_environment(), "figures": figures}) + "\n")


def write_json(value: Any, indent: int = 0, before: int = 0) -> str:
    """Write JSON that people can read in few lines: what fits into a line stands in it, and short values share one.

    Args:
        value: what `json.dumps` takes.
        indent: spaces at the beginning of the line that the value ends in.
        before: how much of the line is taken by what the value is the value of.

    Example:
        >>> write_json({"losses": [0.5, 0.25], "rounds": 2})
        '{"losses": [0.5, 0.25], "rounds": 2}'
    """
    line = json.dumps(value)
    if not isinstance(value, (dict, list, tuple)) or indent + before + len(line) < WIDTH:  # and a comma
        return line
    if isinstance(value, dict):
        heads = [json.dumps({name: None})[1:-5] for name in value]  # as JSON has it, also of a number
        items = [
            head + write_json(inner, indent + 1, len(head)) for head, inner in zip(heads, value.values(), strict=True)
        ]
    else:
        items = [write_json(inner, indent + 1) for inner in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * (indent + 1)
    return begin + margin + margin.join(_fill(items, WIDTH - indent - 1)) + "\n" + " " * indent + end


def _fill(items: Sequence[str], width: int) -> list[str]:
    """Return lines of items with commas between, each with as many as there is room for."""
    lines = [""]
    for place, item in enumerate(items):
        piece = item + ("," if place < len(items) - 1 else "")
        if lines[-1] and len(lines[-1]) + 1 + len(piece) > width:
            lines.append("")
        lines[-1] += f" {piece}" if lines[-1] else piece
    return lines


def keep(path: Path, part: str, figures: Mapping[str, Any], parts: Sequence[str]) -> None:
    """Store one part's figures with their own environment, in the order of `parts`; those of the other parts stay.

    Parts that are stored and not among `parts` come last.

    Raises:
        InvalidInput: what is at `path` is damaged, or holds no parts.
    """
    known = {
        **(_read_stored_parts(path) if path.exists() else {}),
        part: {"environment": describe_environment(), **figures},
    }
    store(path, {name: known[name] for name in dict.fromkeys([*parts, *known]) if name in known})


def _read_stored_parts(path: Path) -> dict[str, Any]:
    try:
        parts = json.loads(path.read_text())["figures"]
        if not isinstance(parts, dict):
            raise TypeError(f"its figures are of type {type(parts).__name__}, not one for each part")
    except (ValueError, LookupError, TypeError) as error:  # no text, no JSON, or another one
        raise InvalidInput(
            f"'{path}' is damaged or holds no figures by part ({error}); move it away to begin anew"
        ) from error
    return parts


def _name_processor() -> str:
    """Return model name and the widest vector instructions."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines.items()}
    flags = set(fields.get("flags", "").split())
    widest = next((name for name in ("avx512f", "avx2", "sse2") if name in flags), "unknown")
    return f"{fields.get('model name', platform.processor() or 'unknown')}, {os.cpu_count()} cores, {widest}"
