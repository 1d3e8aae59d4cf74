"""Weights of a module in a `.safetensors` file, beside which it says what samples they were trained on."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_model
from torch import nn

from tamis.artifact import seen_filter
from tamis.artifact.atomic_file import replace_file
from tamis.artifact.seen_list import has_list, read_list, write_list
from tamis.graph import SeenSamples, seen_by

SEEN = "tamis.seen"  # in the metadata of the file


def save_weights(model: nn.Module, path: str | Path) -> None:
    """Write all parameters and buffers of a module, whole or not at all; `safetensors.torch.load_model` reads them.

    What the module has seen stands in the metadata of the file, as much of it as fits into 2% of the weights' bytes;
    where not all of it does, all of it stands in a list beside the file.
    """
    room = sum(value.nbytes for value in model.state_dict().values()) // seen_filter.PART_OF_FILE
    seen = seen_by(model)
    text = seen_filter.encode_within(seen, len, room)
    with replace_file(path) as part:
        save_model(model, str(part), None if text is None else {SEEN: text})
        sha256 = _sha256_of(part)
    write_list(path, sha256, seen, text)


def seen_in(path: str | Path) -> SeenSamples:
    """Read which samples the weights of a `.safetensors` file were trained on."""
    with safe_open(path, "pt") as file:
        own = seen_filter.read(path, (file.metadata() or {}).get(SEEN))
    # Weights that are not ours have no list, and need not be read once more for their sha256.
    return read_list(path, _sha256_of(path), own) if has_list(path) else own


def _sha256_of(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
