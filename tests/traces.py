"""`TraceMemory`: networks of one architecture are traced once, however many tests begin with them."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tamis.graph import Network, seen_by, trace, trace_with_batch

# Modules of which the class, the plain attributes and the shapes say what they compute.
PLAIN = ("torch.nn.modules.", "tamis.training.models.", "tamis.binary.layers", "tamis.kronecker.layer", "experiments.")


class TraceMemory:
    """The graph of an architecture is kept, and gets the values of each module that has it.

    What one process has traced lies in a folder for the others that run tests beside it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._known: dict[str, Network] = {}
        self._folder = folder
        self.asleep = False  # nothing is remembered meanwhile

    def trace(self, model: nn.Module, example: Any) -> Network:
        """Return what `tamis.trace` returns, made once for modules that are alike."""
        return self._remember(model, example, lambda: trace(model, example), None)

    def trace_with_batch(self, model: nn.Module, example: Any, batched: bool) -> Network:
        """Return what `tamis.graph.trace_with_batch` returns, made once for modules that are alike."""
        return self._remember(model, example, lambda: trace_with_batch(model, example, batched), batched)

    def _remember(self, model: nn.Module, example: Any, make: Callable[[], Network], batched: bool | None) -> Network:
        """Give the graph of an earlier module the values of this one; make it where there was none."""
        alone = example[0] if isinstance(example, tuple) and len(example) == 1 else example
        if (
            self.asleep
            or not isinstance(model, nn.Module)
            or not isinstance(alone, torch.Tensor)
            or not is_plain(model)
        ):
            return make()
        values = {name: value.detach() for name, value in model.named_parameters(remove_duplicate=False)}
        values |= model.named_buffers(remove_duplicate=False)
        first = {value.data_ptr(): name for name, value in reversed(values.items())}  # tied values have one graph
        shapes = [(name, value.shape, value.dtype, first[value.data_ptr()]) for name, value in values.items()]
        described = str((shapes, plain_attributes(model), alone.shape[1:], alone.dtype))
        key = hashlib.sha256(f"{described}{batched}".encode()).hexdigest()
        net = self._recall(key)
        if net is None:
            net = make()
            # A network that is not batched was traced for as many samples as the example has.
            if net.batched and {*net.params, *net.constants} <= set(values):
                self._keep(key, net)
                # Where samples are found to be independent, that is what `trace_with_batch` is told to take them for.
                self._keep(hashlib.sha256(f"{described}{True}".encode()).hexdigest(), net)
            return net
        params, constants = ({name: values[name].clone() for name in each} for each in (net.params, net.constants))
        return net.replace(params=params, constants=constants, seen=seen_by(model))

    def _recall(self, key: str) -> Network | None:
        if key not in self._known and self._folder is not None and (self._folder / key).exists():
            self._known[key] = pickle.loads((self._folder / key).read_bytes())
        return self._known.get(key)

    def _keep(self, key: str, net: Network) -> None:
        self._known[key] = net
        if self._folder is not None:
            part = self._folder / f"{key}.{os.getpid()}"
            part.write_bytes(pickle.dumps(net))
            part.replace(self._folder / key)


def plain_attributes(model: nn.Module) -> str:
    """Return the class of each part of a module and what it was made with."""
    kinds = (bool, int, float, str, tuple)
    parts = {
        name: (type(part), {key: value for key, value in vars(part).items() if isinstance(value, kinds)})
        for name, part in model.named_modules(remove_duplicate=False)
    }
    passing = [sorted(part._non_persistent_buffers_set) for part in model.modules()]
    return str([passing, *((name, kind, {**each, "training": None}) for name, (kind, each) in parts.items())])


def is_plain(model: nn.Module) -> bool:
    """Say whether a module is on the CPU, has no hooks, and is made of layers that print what they are."""
    for part in model.modules():
        if not type(part).__module__.startswith(PLAIN) or part._forward_hooks or part._forward_pre_hooks:
            return False
    return all(value.device.type == "cpu" for value in model.state_dict().values())
