"""JSON files that a run writes for itself: an object is read back, or refused with one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tamis.errors import CorruptArtifact


def read_json_object(path: Path, advice: str) -> dict[str, Any]:
    """Read the object in a JSON file.

    Args:
        path: the file.
        advice: what to do where it is damaged, for the message.

    Raises:
        CorruptArtifact: it is no JSON, is nested too deeply to be read, or holds something else than an object.

    Example:
        >>> path = Path("figures.json")
        >>> path.write_text('{"accuracy": 0.9}')
        17
        >>> read_json_object(path, "delete it to have it made again")
        {'accuracy': 0.9}
    """
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptArtifact(f"{path} is damaged: it is not JSON ({error!s:.200}); {advice}") from error
    if not isinstance(content, dict):
        raise CorruptArtifact(f"{path} is damaged: it holds {content!r:.80}; {advice}")
    return content
