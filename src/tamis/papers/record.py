"""What stands beside every stored figure: the command, the day, the machine."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from tamis.artifact.atomic import replacing
from tamis.errors import InvalidInput


def environment() -> dict[str, Any]:
    """The command, the day and the machine."""
    own = sys.modules["__main__"].__spec__
    script = [os.path.relpath(sys.argv[0])] if sys.argv[0] else []  # none in an interactive session
    program = ["-m", own.name.removesuffix(".__main__")] if own else script
    return {
        "command": shlex.join(["python", *program, *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def store(path: str | Path, figures: Any) -> None:
    """Write figures with their environment as JSON, whole or not at all."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(json.dumps({"environment": environment(), "figures": figures}, indent=2) + "\n")


def keep(path: Path, part: str, figures: Mapping[str, Any], parts: Sequence[str]) -> None:
    """Store one part's figures with their own environment, in the order of `parts`; those of the other parts stay.

    Parts that are stored and not among `parts` come last.

    Raises:
        InvalidInput: what is at `path` is damaged, or holds no parts.
    """
    known = {**(_stored_parts(path) if path.exists() else {}), part: {"environment": environment(), **figures}}
    store(path, {name: known[name] for name in dict.fromkeys([*parts, *known]) if name in known})


def _stored_parts(path: Path) -> dict[str, Any]:
    try:
        parts = json.loads(path.read_text())["figures"]
        if not isinstance(parts, dict):
            raise TypeError(f"its figures are of type {type(parts).__name__}, not one for each part")
    except (ValueError, LookupError, TypeError) as error:  # no text, no JSON, or another one
        raise InvalidInput(
            f"'{path}' is damaged or holds no figures by part ({error}); move it away to begin anew"
        ) from error
    return parts


def _processor() -> str:
    """Model name and the widest vector instructions."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in lines.items()}
    flags = set(fields.get("flags", "").split())
    widest = next((name for name in ("avx512f", "avx2", "sse2") if name in flags), "unknown")
    return f"{fields.get('model name', platform.processor() or 'unknown')}, {os.cpu_count()} cores, {widest}"
