"""All samples that a network has seen, in a file beside it: `small.tamis.seen` has what `small.tamis` has no room for.

A file remembers its samples in at most 2% of its bytes, which for a small one is next to nothing. Whoever certifies has
the list as well, and new data can be told from old; who only runs the network needs no list. docs/format.md specifies
it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from tamis.artifact import seen_filter
from tamis.artifact.atomic_file import LONGEST_NAME, replace_file
from tamis.artifact.json_file import read_json_object
from tamis.errors import CorruptArtifact
from tamis.graph import SeenSamples

SUFFIX = ".seen"


def list_path(path: str | Path) -> Path:
    """Return where the list of a file is: beside the file itself, wherever a link to it may be."""
    target = Path(os.path.realpath(path))
    return target.with_name(target.name + SUFFIX)


def has_list(path: str | Path) -> bool:
    """Return whether there is a list beside a file; it may be that of a file which stood there before."""
    return os.path.exists(list_path(path))  # also False for a name that is too long, where `Path.exists` raises


def write_list(path: str | Path, sha256: str, seen: SeenSamples, text: str | None) -> None:
    """Write the list of a file that was just written, or remove the list of an earlier one where none is needed.

    The list comes after its file. A kill between the two leaves a list of another file, which nobody takes for its own.

    Args:
        path: the file.
        sha256: what tells the file from all others, which the reader of the list must name again.
        seen: the samples that made the network.
        text: what the file itself says of them; None where it says nothing.
    """
    beside = list_path(path)
    if len(os.fsencode(beside.name)) > LONGEST_NAME:  # there can be no such file
        return
    if not seen or seen_filter.count_in(text) == len(seen.cells):
        beside.unlink(missing_ok=True)
    else:
        # What fits into a description bounds a list, too: it remembers 120,000 samples, and of more an even part.
        whole = seen_filter.encode_within(seen, len, seen_filter.LONGEST)
        with replace_file(beside) as part:
            part.write_text(json.dumps({"of": sha256, "seen": whole}) + "\n")


def read_list(path: str | Path, sha256: str, own: SeenSamples) -> SeenSamples:
    """Return all samples that the list of a file names; where it has none, those that the file itself names.

    Args:
        path: the file.
        sha256: what `write_list` was given.
        own: the samples that the file itself names.

    Raises:
        CorruptArtifact: the list is damaged, or forgets samples that the file remembers.
    """
    if not has_list(path):
        return own
    beside = list_path(path)
    advice = f"delete it, and '{path}' is read without it"
    if beside.stat().st_size > 2 * seen_filter.LONGEST:  # before all of it is read
        raise CorruptArtifact(f"'{beside}' is larger than any list of samples; {advice}")
    said = read_json_object(beside, advice)
    if said.get("of") != sha256:  # that of a file which stood here before
        return own
    whole = seen_filter.read(beside, said.get("seen"))
    # A list that could hide what the file knows would let a forger certify on it.
    if whole.limit < own.limit or not np.isin(own.cells, whole.cells).all():
        raise CorruptArtifact(f"'{beside}' does not name all samples that '{path}' was made with; {advice}")
    return whole
