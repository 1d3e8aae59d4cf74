"""`certify`, `verify` and `report` read their arguments by these functions, so that all three read them alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tamis.artifact import Compressed, File, load
from tamis.errors import InvalidInput, InvalidParameters
from tamis.graph import Network, trace
from tamis.verification.samples import Inputs, as_tensor, first_input


def as_network(original: Network | nn.Module, example: Any, inputs: Inputs, call: str) -> Network:
    """Return the original as a network; trace a module with the example, or else with the first of the inputs."""
    if isinstance(original, Network):
        return original
    if not isinstance(original, nn.Module):
        raise InvalidInput(f"{call} needs the original network or module, got {type(original).__name__}")
    example = first_input(inputs) if example is None else example
    if example is None:
        raise InvalidInput(f"{call} needs an example of the input of {type(original).__name__}: pass example=")
    # Inputs go where the module is, and floats become floats of its kind: data comes as float32 on the CPU.
    taken = next((value for value in original.parameters() if value.is_floating_point()), torch.zeros(()))
    each = [as_tensor(value, "example") for value in (example if isinstance(example, tuple) else (example,))]
    return trace(original, tuple(v.to(taken.device, taken.dtype if v.is_floating_point() else v.dtype) for v in each))


def open_file(file: str | Path | File) -> File:
    """Read the bytes of a file once; what is hashed is then what is decoded."""
    if isinstance(file, Compressed):
        raise InvalidInput("what is certified is a file, read back: save the network, and give the path of its file")
    return File.read(file)


def load_small(
    file: File, net: Network, original: Network | nn.Module, rebuilt: Network | nn.Module | None
) -> Compressed:
    """Load the small network of a file for the graph of the original, or else for an architecture of its own.

    Args:
        file: the `.tamis` file.
        net: the original, traced.
        original: the original as the user gave it; `load` rebuilds the layers of a module as the file says.
        rebuilt: what the user says that the architecture is.
    """
    try:
        return load(file, net)  # the traced graph first: it need not be traced again
    except InvalidParameters:
        architecture = original if rebuilt is None else rebuilt
        if architecture is net:
            raise
        return load(file, architecture)


def check_prior_kind(prior: Any) -> None:
    """Raise InvalidInput for a prior that is no network."""
    if not (prior is None or isinstance(prior, Network)):
        raise InvalidInput(f"prior must be a Network, as tamis.trace gives it, got {type(prior).__name__}")
