"""The published CIFAR-10 ResNets that lie beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import nn

from tamis.training.models import MODELS

FOLDER = Path(__file__).parents[1].parent / "shared" / "models"


def pretrained(name: str) -> nn.Module:
    """One of them; a test skips where it is not at hand, but for CI."""
    path = FOLDER / f"{name}_cifar10.safetensors"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip(f"{path.name} is not at hand")
    model = MODELS[name]()
    model.load_state_dict(load_file(path))
    return model
