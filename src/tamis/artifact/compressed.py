"""`Compressed`: a network that was made small, what of it is left, and how that came about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tamis.artifact import format, seen_filter
from tamis.artifact.codes import Codes
from tamis.artifact.export import export, to_module
from tamis.artifact.file import File
from tamis.artifact.fingerprint import fingerprint
from tamis.artifact.float_layers import Untouched, list_untouched
from tamis.artifact.masks import Masks
from tamis.artifact.rebuild import rebuild_layers, rebuilds_layers
from tamis.artifact.summary import find_weights, write_summary
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters, TamisError, join_names
from tamis.graph import Network, SeenSamples, remember, tied_names, trace, trace_with_batch

T = TypeVar("T")
LARGEST_INPUT = 2**26  # numbers in the inputs that a file may ask us to trace a model with
REALS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
INPUTS = (*REALS, *WHOLE, torch.complex64, torch.complex128)  # dtypes of inputs of networks


class Compressed:
    """A small network, which never changes: a transform returns a new one.

    Attributes:
        params: parameters and buffers by name, zero where they are pruned.
        masks: which entries are kept, for the parameters that were pruned.
        codes: what entries are made of, for the parameters that were quantized: what is kept is `codes[name].values()`.
        recipe: the steps that led here, in order, each a dict of its name ("step") and its settings.

    Example:
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> small = tamis.prune(model, 0.8, example=torch.zeros(1, 3))
        >>> small
        Compressed(16 of 20 weights pruned; 'prune')
        >>> small.save("small.tamis")
        >>> module = small.apply_to(model)
    """

    def __init__(
        self,
        network: Network,
        masks: Mapping[str, Tensor] | None = None,
        recipe: Iterable[Mapping[str, Any]] = (),
        codes: Mapping[str, Codes] | None = None,
    ) -> None:
        kept = Masks({name: mask.clone() for name, mask in Masks(masks or {}).items()})
        kept.check_zeros(network.params)
        own = {name: code.clone() for name, code in _key_by_first_name(network, codes or {}).items()}
        own = _canonicalize_codes(own, network.params, kept)
        _check_values(network.params, kept, own)
        self._set(network, kept, own, recipe)

    @classmethod
    def _make_unchecked(
        cls,
        source: Network | _Untraced,
        masks: Masks,
        codes: Mapping[str, Codes],
        recipe: Iterable[Mapping[str, Any]],
    ) -> Compressed:
        """Make one without copies and without checking every weight, of masks, codes and values that fit already."""
        made = cls.__new__(cls)
        made._set(source, masks, codes, recipe)
        return made

    def _set(
        self,
        source: Network | _Untraced,
        masks: Masks,
        codes: Mapping[str, Codes],
        recipe: Iterable[Mapping[str, Any]],
    ) -> None:
        self.params: Mapping[str, Tensor] = source.params
        self.masks = masks
        self.codes: Mapping[str, Codes] = MappingProxyType(dict(codes))
        self.recipe = tuple(dict(step) for step in recipe)
        self._source = source

    def __deepcopy__(self, memo: Any) -> Compressed:
        return self  # nothing in it changes

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the traced network: the user's module may be of a class that cannot be pickled."""
        return Compressed._make_unchecked, (self.network, self.masks, dict(self.codes), self.recipe)

    def __repr__(self) -> str:
        steps = ", ".join(repr(step.get("step")) for step in self.recipe) or "nothing done"
        done = [f"{self.masks.pruned:,} of {self.masks.total:,} weights pruned"] if self.masks or not self.codes else []
        done += [f"{find_weights(self.codes):,} weights quantized"] if self.codes else []
        return f"Compressed({', '.join(done)}; {steps})"

    @cached_property
    def network(self) -> Network:
        """Return the small network. A module that a file was loaded for is traced when this is first asked for.

        Raises:
            InvalidParameters: the module, as it is then, computes something else than the network that was saved.
        """
        return self._source if isinstance(self._source, Network) else self._source.trace()

    @property
    def aliases(self) -> Mapping[str, str]:
        """Return the further names of tied parameters, with the name that `params` has them under."""
        return self._source.aliases

    @property
    def seen(self) -> SeenSamples:
        """Return the samples that it was made with, as far as that is known."""
        return self._source.seen

    @cached_property
    def nbytes(self) -> int:
        """Return how many bytes `save` writes."""
        return format.size(self.params, self.masks, self._about, self.codes, self.seen)

    def pruned(self, kept: Mapping[str, Tensor], step: Mapping[str, Any]) -> Compressed:
        """Return the network with further entries set to zero, where `kept` is False, by a step for the recipe."""
        params = Masks(kept).zeroed(self.params)
        network, masks = self.network.replace(params=params), self.masks & kept
        codes = {name: code.apply_mask(masks[name]) if name in kept else code for name, code in self.codes.items()}
        return Compressed._make_unchecked(network, masks, codes, [*self.recipe, step])

    def changed(
        self,
        changes: Mapping[str, Tensor],
        codes: Mapping[str, Codes],
        step: Mapping[str, Any],
        kept: Mapping[str, Tensor] | None = None,
    ) -> Compressed:
        """Return the network with parameters changed, quantized and pruned further, by a step for the recipe.

        What is pruned is zero. A parameter that is changed here without codes has none afterwards.

        Args:
            changes: new values, by any of a parameter's names: biases, means of batch-norms, refitted weights.
            codes: what further parameters become, by any of their names.
            step: what the recipe says of it.
            kept: where it is False, further entries are pruned.

        Example:
            >>> small = Compressed(tamis.trace(nn.Linear(3, 2), torch.zeros(1, 3)))
            >>> small.changed({"bias": torch.zeros(2)}, {}, {"step": "refit"})
            Compressed(0 of 0 weights pruned; 'refit')
        """
        start = self.pruned(kept, step) if kept else self
        network = start.network
        codes, changes = _key_by_first_name(network, codes), _key_by_first_name(network, changes)
        if both := [name for name in codes if name in changes]:
            raise InvalidParameters(f"{join_names(both)}: there are both codes and new values; pass one of the two")
        codes = _canonicalize_codes(codes, start.params, start.masks)
        new = {name: code.values(start.masks.get(name)) for name, code in codes.items()}
        new |= _move_changes(changes, start.params)
        masks = Masks({name: mask for name, mask in start.masks.items() if name in changes})
        network = network.replace(params=masks.zeroed(network.with_params(new).params))
        codes = {name: code for name, code in start.codes.items() if name not in new} | codes
        return Compressed._make_unchecked(network, start.masks, codes, [*self.recipe, step])

    def with_seen(self, seen: SeenSamples) -> Compressed:
        """Return the same network, which remembers that these samples, too, were used to make it."""
        if not seen:
            return self
        return Compressed._make_unchecked(
            self.network.replace(seen=self.seen | seen), self.masks, self.codes, self.recipe
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all parameters and buffers under the user's own names, pruned weights as plain zeros."""
        state = {name: value.clone() for name, value in self.params.items()}
        return state | {alias: state[name] for alias, name in self.aliases.items()}

    def apply_to(self, model: nn.Module) -> nn.Module:
        """Return a copy of the user's module with the small network's weights.

        Args:
            model: a module of the same architecture, or the one that the network began with, whose layers are rebuilt
                in the copy as the recipe rebuilt them. It may be on any device, and is left as it is.
        """
        if not isinstance(model, nn.Module):
            raise InvalidInput(f"apply_to needs a torch.nn.Module, got {type(model).__name__}")
        # What a hook computes from parameters (torch.nn.utils.prune's) is no leaf, and torch copies leaves only.
        computed = [v for module in model.modules() for v in vars(module).values() if isinstance(v, Tensor)]
        copy = deepcopy(model, {id(value): value.detach().clone() for value in computed if not value.is_leaf})
        try:
            self._fill(copy)
        except RuntimeError as error:
            if (rebuilt := self._rebuild(model)) is model:
                message = f"the compressed network does not fit {type(model).__name__}: {error}"
                raise InvalidParameters(message) from error
            self._fill(copy := rebuilt)
        remember(copy, self.seen)
        return copy

    def _fill(self, module: nn.Module) -> None:
        """Load the small network's weights into a module of our own; one without weights takes ours."""
        extra = {name: value for name, value in module.state_dict().items() if not isinstance(value, Tensor)}
        module.load_state_dict(self.state_dict() | extra, assign=_is_on_meta(module))  # get_extra_state's stays its own

    def _rebuild(self, model: nn.Module) -> nn.Module:
        device = next((value.device for value in model.parameters()), torch.device("cpu"))
        return rebuild_layers(model, self.recipe, _zero_inputs(self._about["graph"], device), repr(self))

    def to_module(self) -> nn.Module:
        """Return the small network as a plain module, for which neither tamis nor the user's model is needed.

        Its state_dict has the user's own names; it computes what `network` does, in evaluation mode.
        """
        return to_module(self.network)

    def export(self, path: str | Path) -> None:
        """Write what computes the small network to a `.pt2` file (torch.export) or an `.onnx` file, by the suffix.

        Weights are written as plain numbers: `save` writes the small file. An `.onnx` file is tried before it is there.
        """
        export(self.network, path)

    def save(self, path: str | Path) -> None:
        """Write the network to a `.tamis` file, whole or not at all; docs/format.md specifies it."""
        # From now on the size is known, without encoding again.
        self.nbytes = format.write(path, self.params, self.masks, self._about, self.codes, self.seen)

    def summary(self) -> str:
        """Describe what became of each pruned or quantized parameter, and of the whole, in a table and in words."""
        return write_summary(self.params, self.masks, self.codes, self.recipe, self.nbytes, self.untouched)

    @cached_property
    def untouched(self) -> tuple[Untouched, ...]:
        """Return the layers whose parameters are neither pruned nor quantized, and why."""
        return list_untouched(self.network, self.masks.keys() | self.codes.keys())

    @cached_property
    def _about(self) -> dict[str, Any]:
        """Return what the file says beside its tensors."""
        source = self._source
        return {
            "graph": _describe_graph(source) if isinstance(source, Network) else source.graph,
            "recipe": list(self.recipe),
        }


def compressed_of(
    net: Network | Compressed | nn.Module, example: Tensor | tuple[Tensor, ...] | None, call: str
) -> Compressed:
    """Return what a transform begins with, of whatever it was given; `call` is its name, for messages."""
    if isinstance(net, Compressed):
        return net
    if isinstance(net, nn.Module):
        if example is None:
            kind = type(net).__name__
            raise InvalidInput(f"{call} needs an example of the input of {kind}: pass example=, or trace it")
        net = trace(net, example)
    if not isinstance(net, Network):
        raise InvalidInput(f"{call} needs a Network, a Compressed or a module, got {type(net).__name__}")
    return Compressed(net)


def load(path: str | Path | File, model: nn.Module | Network) -> Compressed:
    """Read a `.tamis` file.

    Args:
        path: the file, or what `File.read` read of it.
        model: the architecture: a module, or a traced network. Its own weights do not matter, and it is left as it is.
            A file whose layers were rebuilt (made binary, or products of factors) is read for the module that it was
            made of as well: the layers are rebuilt in a copy, as the file's recipe says.

    Returns:
        What was saved, bit for bit, with parameters where the model's own are (CPU, GPU).

    Raises:
        CorruptArtifact: the file is damaged, or not a `.tamis` file.
        InvalidParameters: it is a file for another model.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> tamis.prune(model, 4, example=torch.zeros(1, 3)).save("small.tamis")
        >>> small = tamis.load("small.tamis", nn.Linear(3, 2))
        >>> int((small.apply_to(model).weight == 0).sum())
        4
    """
    if not isinstance(model, (nn.Module, Network)):
        raise InvalidInput(
            f"load needs the model that '{path}' is for, a module or a Network, got {type(model).__name__}"
        )
    file = File.read(path)
    try:
        return _load_for(file, model)  # as it is, first: it may have the file's layers already
    except InvalidParameters as error:
        architecture = _rebuild_for(file, model, error)
    return _load_for(file, architecture)


def _load_for(file: File, model: nn.Module | Network) -> Compressed:
    """Read a file for a model that has its layers."""
    own, aliases = _collect_tensors(model)
    contents = format.read(file, {name: (tuple(value.shape), value.dtype) for name, value in own.items()})
    places = {name: torch.device("cpu") if value.is_meta else value.device for name, value in own.items()}
    params = {name: contents.tensors[name].to(place) for name, place in places.items()}  # in the model's order
    masks = Masks({name: mask.to(places[name]) for name, mask in contents.masks.items()})
    codes = {name: code.to(places[name]) for name, code in contents.codes.items()}
    graph, recipe = _parse_about(file, contents.about)
    seen = seen_filter.read(file, contents.about.get("seen"))
    if isinstance(model, nn.Module):
        source = _Untraced(model, graph, MappingProxyType(params), aliases, str(file), seen)
        return Compressed._make_unchecked(source, masks, codes, recipe)
    _compare_graphs(file, graph, model)
    return Compressed._make_unchecked(model.replace(params=params, seen=seen), masks, codes, recipe)


def _rebuild_for(file: File, model: nn.Module | Network, misfit: InvalidParameters) -> nn.Module:
    """Rebuild the layers of a module as the recipe of a file says.

    Raises:
        InvalidParameters: `misfit`, which says why the file is not for the model itself, where nothing can be rebuilt.
    """
    own, _ = _collect_tensors(model)
    try:
        graph, recipe = _parse_about(file, format.about(file, own))
    except TamisError:  # what is wrong with the file is less than that it is for another model
        raise misfit from None
    if not rebuilds_layers(recipe):
        raise misfit
    if isinstance(model, Network):
        raise InvalidParameters(
            f"{misfit}. Layers of it were rebuilt, and a traced network has none to rebuild: pass the module that "
            f"'{file}' was made of"
        ) from misfit
    example = _zero_inputs(graph, next((value.device for value in own.values()), torch.device("cpu")))
    if (rebuilt := rebuild_layers(model, recipe, example, f"'{file}'")) is model:
        raise misfit
    return rebuilt


def _key_by_first_name(net: Network, values: Mapping[str, T]) -> dict[str, T]:
    """Key values by the name that the network has a parameter under, whichever of its names they were given by."""
    result: dict[str, T] = {}
    for name, value in values.items():
        first = net.aliases.get(name, name)
        if first not in net.params:
            raise InvalidParameters(f"the network has no parameter '{name}'; it has {join_names(net.params)}")
        if first in result:
            raise InvalidParameters(f"'{name}' and another name of the same tied parameter, '{first}', are both given")
        result[first] = value
    return result


def _canonicalize_codes(
    codes: Mapping[str, Codes], params: Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> dict[str, Codes]:
    """Move codes to their parameters, and give what is pruned the index 0: equal networks have equal codes."""
    for name, code in codes.items():
        shape, dtype = tuple(params[name].shape), params[name].dtype
        if code.levels.dtype is not dtype or tuple(code.indices.shape) != shape:
            raise InvalidParameters(
                f"the codes of '{name}' are for {code.levels.dtype} of shape {tuple(code.indices.shape)}, but the "
                f"parameter is {dtype} of shape {shape}"
            )
    moved = {name: code.to(params[name].device) for name, code in codes.items()}
    return {name: code.apply_mask(masks[name]) if name in masks else code for name, code in moved.items()}


def _check_values(params: Mapping[str, Tensor], masks: Mapping[str, Tensor], codes: Mapping[str, Codes]) -> None:
    """Raise InvalidParameters where a parameter is not exactly what its codes and its mask say."""
    for name, code in codes.items():
        found, said = params[name], code.values(masks.get(name))
        wrong = (found != said) | (found.signbit() != said.signbit())
        if wrong.any():
            at = tuple(wrong.nonzero()[0].tolist())
            raise InvalidParameters(
                f"the codes of '{name}' do not say what the parameter is: its entry {list(at)} is "
                f"{float(found[at])}, and {float(said[at])} by its codes; Compressed.changed replaces the parameter "
                "by what they say"
            )


def _move_changes(changes: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Move new values to their parameters; Network.with_params checks their shapes."""
    for name, value in changes.items():
        if value.dtype is not params[name].dtype:
            raise InvalidParameters(
                f"the new values of '{name}' are {value.dtype}, the parameter is {params[name].dtype}"
            )
    return {name: value.to(params[name].device) for name, value in changes.items()}


def _collect_tensors(model: nn.Module | Network) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
    """Return parameters and buffers as a Network has them, tied ones under their first name, and the other names."""
    if isinstance(model, Network):
        return model.params, model.aliases
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}
    tied = tied_names(state)
    return {name: value.detach() for name, value in state.items() if name not in tied}, tied


def _is_on_meta(module: nn.Module) -> bool:
    """Return whether a module was made on the device "meta", without numbers."""
    return any(isinstance(value, Tensor) and value.is_meta for value in module.state_dict().values())


@dataclass(frozen=True)
class _Untraced:
    """A file's parameters with the module they are for."""

    model: nn.Module
    graph: Mapping[str, Any]
    params: Mapping[str, Tensor]
    aliases: Mapping[str, str]
    path: str
    seen: SeenSamples

    def trace(self) -> Network:
        device = next((value.device for value in self.params.values()), torch.device("cpu"))
        module = self.model
        if _is_on_meta(module):
            module = deepcopy(module).to_empty(device=device)
        try:
            network = trace_with_batch(module, _zero_inputs(self.graph, device), self.graph["batched"])
        except Exception as error:  # whatever an input that a file chose does to a module
            raise InvalidParameters(f"'{self.path}' does not fit {type(module).__name__}: {error}") from error
        _compare_graphs(self.path, self.graph, network)
        return network.replace(params={name: self.params[name] for name in network.params}, seen=self.seen)


def _zero_inputs(graph: Mapping[str, Any], device: torch.device) -> tuple[Tensor, ...]:
    """Make inputs of zeros, of the shapes and dtypes that a file states."""
    return tuple(
        torch.zeros(item["shape"], dtype=getattr(torch, item["dtype"]), device=device) for item in graph["inputs"]
    )


def _describe_graph(net: Network) -> dict[str, Any]:
    """Return what a file says of a graph: its fingerprint, and the inputs to trace it with."""
    inputs = [
        {"shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
        for shape, dtype in zip(net.input_shapes, net.input_dtypes, strict=True)
    ]
    return {"fingerprint": fingerprint(net), "inputs": inputs, "batched": net.batched, "torch": torch.__version__}


def _compare_graphs(path: str | Path | File, graph: Mapping[str, Any], net: Network) -> None:
    if graph["fingerprint"] != fingerprint(net):
        raise InvalidParameters(
            f"'{path}' was saved from a network that computes something else with the same parameters: its operations, "
            f"their settings or the input shape differ (or torch traces them otherwise: it was version "
            f"{graph['torch']} then, and is {torch.__version__} now)"
        )


def _parse_about(path: str | Path | File, about: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the graph and the recipe of a file's metadata, if they are what `save` writes."""
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
    return isinstance(dtype, str) and getattr(torch, dtype, None) in INPUTS
