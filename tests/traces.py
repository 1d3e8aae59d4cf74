"""`TraceMemory`: a network that many tests begin with is traced once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import tamis.artifact.compressed
import tamis.recipes.prepared_model
import tamis.verification.arguments
from tamis.graph import Network, seen_by, trace

# Those that trace what the tests of recipes and sweeps give them.
CALLERS = (tamis.artifact.compressed, tamis.recipes.prepared_model, tamis.verification.arguments)


class TraceMemory:
    """A trace of a module is kept for as long as none of its values changes; a network is immutable."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[nn.Module, Network]] = {}

    def trace(self, model: nn.Module, example: Any) -> Network:
        """Return what `tamis.trace` returns, made once."""
        if not isinstance(example, torch.Tensor):
            return trace(model, example)
        values = tuple((name, id(value), value._version) for name, value in model.state_dict(keep_vars=True).items())
        key = (id(model), values, example.shape[1:], example.dtype)
        if key not in self._known:
            self._known[key] = (model, trace(model, example))  # the module is kept alive, and its id with it
        return self._known[key][1].replace(seen=seen_by(model))

    @contextmanager
    def in_use(self) -> Iterator[TraceMemory]:
        """Have runs trace by this memory meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            for caller in CALLERS:
                patch.setattr(caller, "trace", self.trace)
            yield self
