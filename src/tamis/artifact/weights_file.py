"""Weights of a module in a `.safetensors` file, beside which it says what samples they were trained on."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_model
from torch import nn

from tamis.artifact import seen_filter
from tamis.artifact.atomic_file import replace_file
from tamis.graph import SeenSamples, seen_by

SEEN = "tamis.seen"  # in the metadata of the file


def save_weights(model: nn.Module, path: str | Path) -> None:
    """Write all parameters and buffers of a module, whole or not at all; `safetensors.torch.load_model` reads them.

    What the module has seen stands in the metadata of the file, as much of it as fits into 2% of the weights' bytes,
    or into 128 bytes where that is more.
    """
    room = seen_filter.compute_room(sum(value.nbytes for value in model.state_dict().values()))
    text = seen_filter.encode_within(seen_by(model), len, room)
    with replace_file(path) as part:
        save_model(model, str(part), None if text is None else {SEEN: text})


def seen_in(path: str | Path) -> SeenSamples:
    """Read which samples the weights of a `.safetensors` file were trained on."""
    with safe_open(path, "pt") as file:
        return seen_filter.read(path, (file.metadata() or {}).get(SEEN))
