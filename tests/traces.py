"""`TraceMemory`: a network that many tests begin with is traced once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import tamis
import tamis.architecture.baselines
import tamis.artifact.compressed
import tamis.pruning.iterative_pruning
import tamis.recipes.prepared_model
import tamis.verification.arguments
from tamis.graph import Network, seen_by, trace

# Those that trace the modules that they are given.
CALLERS = (
    tamis,
    tamis.architecture.baselines,
    tamis.artifact.compressed,
    tamis.pruning.iterative_pruning,
    tamis.recipes.prepared_model,
    tamis.verification.arguments,
)


class TraceMemory:
    """The graph of a module is kept for as long as its layers are the same ones, and gets the values of the moment."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[nn.Module, Network]] = {}

    def trace(self, model: nn.Module, example: Any) -> Network:
        """Return what `tamis.trace` returns, made once."""
        if not isinstance(example, torch.Tensor):
            return trace(model, example)
        values = dict(model.state_dict())
        shapes = tuple((name, value.shape, value.dtype, value.device) for name, value in values.items())
        key = (id(model), str(model), shapes, example.shape[1:], example.dtype)
        if key not in self._known:
            net = trace(model, example)
            if not {*net.params, *net.constants} <= set(values):
                return net  # it has values of its own
            self._known[key] = (model, net)  # the module is kept alive, and its id with it
            return net
        net = self._known[key][1]
        params, constants = ({name: values[name].clone() for name in each} for each in (net.params, net.constants))
        return net.replace(params=params, constants=constants, seen=seen_by(model))

    @contextmanager
    def in_use(self) -> Iterator[TraceMemory]:
        """Have runs trace by this memory meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            for caller in CALLERS:
                patch.setattr(caller, "trace", self.trace)
            yield self
