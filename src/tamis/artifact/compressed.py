"""`Compressed`: a network that was made small, what of it is left, and how that came about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import format
from tamis.artifact.fingerprint import fingerprint
from tamis.artifact.masks import Masks
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters
from tamis.graph.network import Network
from tamis.graph.trace import tied_names, trace_as

LARGEST_INPUT = 2**26  # numbers in the inputs that a file may ask us to trace a model with


class Compressed:
    """A small network. Nothing in it changes; a transform returns a new one.

    Attributes:
        params: parameters and buffers by name, zero where they are pruned.
        masks: which entries are kept, for the parameters that were pruned.
        recipe: the steps that led here, in order, each a dict of its name ("step") and its settings.

    Example:
        >>> small = tamis.prune(net, 0.8)
        >>> print(small.summary())
        >>> small.save("small.tamis")
        >>> module = small.apply_to(model)
    """

    def __init__(
        self,
        network: Network,
        masks: Mapping[str, Tensor] | None = None,
        recipe: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._set(network, Masks({name: mask.clone() for name, mask in Masks(masks or {}).items()}), recipe)
        self.masks.check_zeros(self.params)

    @classmethod
    def _sound(cls, source: Network | _Untraced, masks: Masks, recipe: Iterable[Mapping[str, Any]]) -> Compressed:
        """Without copies, and without a look at every weight: for new masks, and zeros that were set just now."""
        made = cls.__new__(cls)
        made._set(source, masks, recipe)
        return made

    def _set(self, source: Network | _Untraced, masks: Masks, recipe: Iterable[Mapping[str, Any]]) -> None:
        self.params: Mapping[str, Tensor] = source.params
        self.masks = masks
        self.recipe = tuple(dict(step) for step in recipe)
        self._source = source

    def __deepcopy__(self, memo: Any) -> Compressed:
        return self  # nothing in it changes

    def __repr__(self) -> str:
        steps = ", ".join(repr(step.get("step")) for step in self.recipe) or "nothing done"
        return f"Compressed({self.masks.pruned:,} of {self.masks.total:,} weights pruned; {steps})"

    @cached_property
    def network(self) -> Network:
        """The small network. Of a file that was loaded for a module, the module is traced when this is first asked for.

        Raises:
            InvalidParameters: the module, as it is then, computes something else than the network that was saved.
        """
        return self._source if isinstance(self._source, Network) else self._source.traced()

    @cached_property
    def nbytes(self) -> int:
        """How many bytes `save` writes."""
        return format.size(self.params, self.masks, self._about)

    def pruned(self, kept: Mapping[str, Tensor], step: Mapping[str, Any]) -> Compressed:
        """The network with further entries set to zero, those that `kept` does not keep, by a step for the recipe."""
        params = Masks(kept).zeroed(self.params)
        return Compressed._sound(self.network.replaced(params=params), self.masks & kept, [*self.recipe, step])

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers under the user's own names, pruned weights as plain zeros; copies."""
        state = {name: value.clone() for name, value in self.params.items()}
        return state | {alias: state[name] for alias, name in self._source.aliases.items()}

    def apply_to(self, model: nn.Module) -> nn.Module:
        """A copy of the user's module with the small network's weights.

        Args:
            model: a module of the same architecture, on any device; it is left as it is.
        """
        if not isinstance(model, nn.Module):
            raise InvalidInput(f"apply_to needs a torch.nn.Module, got {type(model).__name__}")
        # What a hook computes from parameters (torch.nn.utils.prune's) is no leaf, and torch copies leaves only.
        computed = [v for module in model.modules() for v in vars(module).values() if isinstance(v, Tensor)]
        copy = deepcopy(model, {id(value): value.detach().clone() for value in computed if not value.is_leaf})
        unmade = any(value.is_meta for value in copy.state_dict().values())  # a module without weights takes ours
        try:
            copy.load_state_dict(self.state_dict(), assign=unmade)
        except RuntimeError as error:
            raise InvalidParameters(f"the compressed network does not fit {type(model).__name__}: {error}") from error
        return copy

    def save(self, path: str | Path) -> None:
        """Write the network to a `.tamis` file, whole or not at all; docs/format.md specifies it."""
        self.nbytes = format.write(path, self.params, self.masks, self._about)  # known now, without encoding again

    def summary(self) -> str:
        """What is left of each pruned parameter, and of the whole, in words and a table."""
        rows = [(name, mask.numel(), int(mask.count_nonzero())) for name, mask in self.masks.items()]
        width = max([len("parameter"), *(len(name) for name in self.masks)])
        lines = [f"{'parameter':{width}}  {'weights':>12}  {'left':>12}  pruned"] if rows else []
        lines += [
            f"{name:{width}}  {size:>12,}  {left:>12,}  {(size - left) / max(size, 1):6.1%}"
            for name, size, left in rows
        ]
        dense = sum(value.numel() * value.element_size() for value in self.params.values())
        total, pruned = self.masks.total, self.masks.pruned
        lines.append(f"{pruned:,} of {total:,} weights pruned ({self.masks.sparsity:.2%}) in {len(rows)} parameters")
        lines.append(
            f"{self.nbytes:,} bytes in a file, {self.nbytes / max(dense, 1):.3f} of the {dense:,} of all parameters"
        )
        return "\n".join(lines)

    @cached_property
    def _about(self) -> dict[str, Any]:
        """What the file says beside its tensors."""
        source = self._source
        return {"graph": _graph(source) if isinstance(source, Network) else source.graph, "recipe": list(self.recipe)}


def load(path: str | Path, model: nn.Module | Network) -> Compressed:
    """Read a `.tamis` file.

    Args:
        path: the file.
        model: the architecture: a module, or a traced network. Its own weights do not matter, and it is left as it is.

    Returns:
        What was saved, bit for bit, with parameters where the model's own are (CPU, GPU).

    Raises:
        CorruptArtifact: the file is damaged, or not a `.tamis` file.
        InvalidParameters: it is a file for another model.

    Example:
        >>> small = tamis.load("small.tamis", resnet20())
        >>> module = small.apply_to(resnet20())
    """
    if not isinstance(model, (nn.Module, Network)):
        raise InvalidInput(
            f"load needs the model that '{path}' is for, a module or a Network, got {type(model).__name__}"
        )
    own, aliases = _tensors_of(model)
    contents = format.read(path, {name: (tuple(value.shape), value.dtype) for name, value in own.items()})
    places = {name: torch.device("cpu") if value.is_meta else value.device for name, value in own.items()}
    params = {name: value.to(places[name]) for name, value in contents.tensors.items()}
    masks = Masks({name: mask.to(places[name]) for name, mask in contents.masks.items()})
    graph, recipe = _checked_about(path, contents.about)
    if isinstance(model, nn.Module):
        return Compressed._sound(_Untraced(model, graph, MappingProxyType(params), aliases, str(path)), masks, recipe)
    _compare_graphs(path, graph, model)
    return Compressed._sound(model.replaced(params=params), masks, recipe)


def _tensors_of(model: nn.Module | Network) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    """Parameters and buffers as a Network has them: tied ones once, under the first name; and their other names."""
    if isinstance(model, Network):
        return model.params, model.aliases
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    tied = tied_names(state)
    return {name: value.detach() for name, value in state.items() if name not in tied}, tied


@dataclass(frozen=True)
class _Untraced:
    """A file's parameters with the module they are for."""

    model: nn.Module
    graph: Mapping[str, Any]
    params: Mapping[str, Tensor]
    aliases: Mapping[str, str]
    path: str

    def traced(self) -> Network:
        device = next((value.device for value in self.params.values()), torch.device("cpu"))
        module = self.model
        if any(value.is_meta for value in module.state_dict().values()):
            module = deepcopy(module).to_empty(device=device)
        try:
            example = tuple(
                torch.zeros(item["shape"], dtype=getattr(torch, item["dtype"]), device=device)
                for item in self.graph["inputs"]
            )
            network = trace_as(module, example, self.graph["batched"])
        except Exception as error:  # whatever an input that a file chose does to a module
            raise InvalidParameters(f"'{self.path}' does not fit {type(module).__name__}: {error}") from error
        _compare_graphs(self.path, self.graph, network)
        return network.replaced(params={name: self.params[name] for name in network.params})


def _graph(net: Network) -> dict[str, Any]:
    """What a file needs to say of a graph: its fingerprint, and the inputs to trace it with."""
    inputs = [
        {"shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
        for shape, dtype in zip(net.input_shapes, net.input_dtypes, strict=True)
    ]
    return {"fingerprint": fingerprint(net), "inputs": inputs, "batched": net.batched, "torch": torch.__version__}


def _compare_graphs(path: str | Path, graph: Mapping[str, Any], net: Network) -> None:
    if graph["fingerprint"] != fingerprint(net):
        raise InvalidParameters(
            f"'{path}' was saved from a network that computes something else with the same parameters: its operations, "
            f"their settings or the input shape differ (or torch traces them otherwise: it was version "
            f"{graph['torch']} then, and is {torch.__version__} now)"
        )


def _checked_about(path: str | Path, about: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The parts of a file's metadata, if they are what `save` writes."""
    graph: Any = about.get("graph") if isinstance(about, dict) else None
    recipe: Any = about.get("recipe") if isinstance(about, dict) else None
    inputs: Any = graph.get("inputs") if isinstance(graph, dict) else None
    sound = isinstance(inputs, list) and all(map(_is_input, inputs)) and isinstance(graph.get("batched"), bool)
    sound = sound and all(isinstance(graph.get(name), str) for name in ("fingerprint", "torch"))
    if not sound or not isinstance(recipe, list) or not all(isinstance(step, dict) for step in recipe):
        raise CorruptArtifact(f"'{path}' does not describe its graph and recipe as a .tamis file does")
    if sum(math.prod(item["shape"]) for item in inputs) > LARGEST_INPUT:
        raise CorruptArtifact(f"'{path}' asks for inputs of more than {LARGEST_INPUT:,} numbers")
    return graph, recipe


def _is_input(item: Any) -> bool:
    shape, dtype = (item.get("shape"), item.get("dtype")) if isinstance(item, dict) else (None, None)
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        return False
    return isinstance(dtype, str) and isinstance(getattr(torch, dtype, None), torch.dtype)
