"""What all tests of commands share: a model of the zoo is traced once, and a program read once, for all commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tamis.cli.model_argument
import tamis.reports.comparison
from tamis.graph import Network, load_program, trace

SHIPPED = ("torch.nn.", "tamis.training.models")  # where a layer's class says all of what it computes
_networks: dict[Any, Network] = {}


def trace_once(module: nn.Module, example: Any) -> Network:
    """Return what `trace` does, from memory where the same layers with the same weights were traced before."""
    inputs = example if isinstance(example, tuple) else (example,)
    if not all(type(each).__module__.startswith(SHIPPED) for each in module.modules()):
        return trace(module, example)
    weights = tuple((name, _bytes(value)) for name, value in module.state_dict(keep_vars=True).items())
    key = (repr(module), module.training, weights, tuple((each.shape, each.dtype, each.device) for each in inputs))
    if key not in _networks:
        _networks[key] = trace(module, example)
    return _networks[key]


def load_once(path: Path, trust: bool) -> Network:
    """Return what `load_program` does, from memory where a file with this content was read before, and not trusted."""
    if trust or not path.is_file():
        return load_program(path, trust)
    content = path.read_bytes()
    if content not in _networks:
        _networks[content] = load_program(path, trust)
    return _networks[content]


def _bytes(value: Tensor) -> tuple[Any, ...]:
    plain = value.detach().cpu().contiguous().view(-1).view(torch.uint8) if value.numel() else value
    return (tuple(value.shape), value.dtype, value.device, value.requires_grad, plain.numpy().tobytes())


@pytest.fixture(autouse=True, scope="session")
def commands_take_no_more_time_than_they_must() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tamis.cli.model_argument, "trace", trace_once)
        patch.setattr(tamis.cli.model_argument, "load_program", load_once)
        patch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # a page's latencies are not what is tested
        yield
