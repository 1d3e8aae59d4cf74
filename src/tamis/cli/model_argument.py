"""MODEL on the command line: a `.pt2` file, or `package.module:factory`; with weights and an input shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor, nn

from tamis.artifact import Compressed, load, weights_of
from tamis.cli.options import ModelChoice
from tamis.cli.weights_file import PICKLES, load_weights
from tamis.errors import InvalidInput, TraceError, UntrustedFile
from tamis.graph import Network, load_program, trace
from tamis.imports import attribute, import_named
from tamis.training.models import EXAMPLE_SHAPES, MODELS

SEED = 0  # of the weights, where the user brings none


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model is the network of MODEL, the origin of its weights, in words, and the content of a `.tamis` file.

    The module has the architecture of the network, and any weights; a program has none.
    """

    network: Network
    weights: str
    compressed: Compressed | None = None
    module: nn.Module | None = None


@dataclass(frozen=True)
class LoadedModule:
    """A loaded module is what the factory of MODEL makes, with its weights, and the rest as in `LoadedModel`."""

    module: nn.Module
    weights: str
    compressed: Compressed | None = None


def load_network(
    model: str,
    weights: Path | None = None,
    shape: str | None = None,
    trust: bool = False,
    device: torch.device | str = "cpu",
    example: Sequence[Tensor] | None = None,
) -> LoadedModel:
    """Load the network that the command line names.

    Args:
        model: a `.pt2` file, or `package.module:factory`.
        weights: a `.tamis` file; or, with a factory, a `.safetensors`, `.pt` or `.pth` file with exactly the parameters
            and buffers of its module.
        shape: one input's shape without the batch, such as "3,32,32".
        trust: read a `.pt2` file even if it can run code of whoever made it.
        device: where its tensors go.
        example: an input of the data, in a batch of one, where there is some: it tells a shape that nothing else does.

    Raises:
        UntrustedFile: the `.pt2` file can run code, and `trust` is False.
        InvalidInput, InvalidParameters, CorruptArtifact, TraceError, FileNotFoundError: each message repeats what the
            user typed.
    """
    if model.endswith(".pt2"):
        _refuse_what_a_program_has(model, weights, shape)
        network = _load_program(Path(model), trust).to(device)
        return LoadedModel(network, "from the file") if weights is None else _load_compressed(weights, network)
    if weights is not None and _is_compressed(weights):
        if shape is not None:
            raise InvalidInput(f"--shape goes with other weights; '{weights}' has its own shape")
        built = _build(model, SEED).to(device)
        compressed = load(weights, built)
        module = compressed.apply_to(built)  # with its layers, where the file's were rebuilt
        return LoadedModel(compressed.network, _describe(weights, compressed), compressed, module)
    sizes = None if shape is None else _parse_shape(shape)
    loaded = load_module(model, weights)
    sizes, module = sizes or _find_shape(model), loaded.module.to(device)
    if sizes is not None:
        return LoadedModel(_trace(module, torch.zeros(1, *sizes, device=device)), loaded.weights, module=module)
    if example is None:
        raise InvalidInput(f"the input shape of '{model}' is unknown: pass it without the batch, as in --shape 3,32,32")
    return LoadedModel(trace(module, tuple(each.to(device) for each in example)), loaded.weights, module=module)


def open_network(
    original: ModelChoice, device: torch.device | str = "cpu", example: Sequence[Tensor] | None = None
) -> LoadedModel:
    """Return the network that a command's arguments name; see `load_network`."""
    return load_network(original.model, original.weights, original.shape, original.trust, device, example)


def _trace(module: nn.Module, zeros: Tensor) -> Network:
    """Trace a module with floats of these sizes, or with integers where it takes no floats, as embeddings do."""
    try:
        return trace(module, zeros)
    except TraceError as error:
        with suppress(TraceError):
            return trace(module, zeros.to(torch.int64))
        raise error from None


def load_module(model: str, weights: Path | None = None, seed: int = SEED) -> LoadedModule:
    """Load the module that the command line names: a factory's, with a file's weights or those it draws by `seed`."""
    built = _build(model, seed)
    if weights is None:
        return LoadedModule(built, f"as the factory draws them with seed {seed}")
    if _is_compressed(weights):
        compressed = load(weights, built)
        return LoadedModule(compressed.apply_to(built), _describe(weights, compressed), compressed)
    return LoadedModule(built, load_weights(built, weights))


def draws_weights(model: str, weights: Path | None) -> bool:
    """Tell whether the weights of a model are drawn at random: with another seed they would be others."""
    if weights is not None or model.endswith(".pt2"):
        return False
    one, other = (_build(model, seed).state_dict().values() for seed in (SEED, SEED + 1))
    return not all(torch.equal(first, second) for first, second in zip(one, other, strict=True))


def warn_of_drawn_weights(model: str) -> None:
    """Warn that the weights of a model were not trained."""
    said = f"warning: the weights of '{model}' were just initialised at random; pass --weights for trained ones"
    Console(stderr=True).print(Text(said, style="yellow"), soft_wrap=True)


# -- .tamis ------------------------------------------------------------------------------------------------------------


def _is_compressed(weights: Path) -> bool:
    return weights.suffix == ".tamis"


def _load_compressed(weights: Path, architecture: Network) -> LoadedModel:
    compressed = load(weights, architecture)
    return LoadedModel(compressed.network, _describe(weights, compressed), compressed)


def _describe(weights: Path, compressed: Compressed) -> str:
    masks, codes = compressed.masks, compressed.codes
    pruned = [f"{masks.pruned:,} of {masks.total:,} weights pruned"] if masks else []
    quantized = [f"{weights_of(codes):,} quantized"] if codes else []
    return ", ".join([str(weights), *pruned, *quantized])


# -- .pt2 --------------------------------------------------------------------------------------------------------------


def _refuse_what_a_program_has(model: str, weights: Path | None, shape: str | None) -> None:
    other_weights = weights is not None and not _is_compressed(weights)
    for option, given in (("--weights", other_weights), ("--shape", shape is not None)):
        if given:
            raise InvalidInput(f"{option} goes with package.module:factory; '{model}' has its own weights and shape")


def _load_program(path: Path, trust: bool) -> Network:
    try:
        return load_program(path, trust)
    except UntrustedFile as error:
        raise UntrustedFile(
            f"{error}. Nothing of it was run; save it again with plain weights, or add --trust if you know who made it"
        ) from error


# -- package.module:factory --------------------------------------------------------------------------------------------


def _find_factory(model: str) -> tuple[Callable[[], Any], ModuleType]:
    module_name, colon, path = model.partition(":")
    if not (module_name and colon and path):
        hint = f"; did you mean tamis.training.models:{model}?" if model in MODELS else ""
        if Path(model).suffix in PICKLES:
            hint = f": weights alone go to --weights {model}, beside what makes the module"
        raise InvalidInput(f"MODEL must be a .pt2 file or package.module:factory, got '{model}'{hint}")
    module = import_named(module_name)
    factory = attribute(module, path)
    if not callable(factory):
        raise InvalidInput(f"'{model}' is not callable but {type(factory).__name__}: {factory!r:.80}")
    return factory, module


def _build(model: str, seed: int) -> nn.Module:
    factory, _ = _find_factory(model)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # so that untrained weights, too, give the same numbers each time
            built = factory()
    except Exception as error:
        raise InvalidInput(f"{model}() failed: {type(error).__name__}: {error}") from error
    if not isinstance(built, nn.Module):
        raise InvalidInput(f"{model}() must return a torch.nn.Module, got {type(built).__name__}: {built!r:.80}")
    return built


# -- the input's shape -------------------------------------------------------------------------------------------------


def _parse_shape(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
        raise InvalidInput(f"--shape must be positive sizes without the batch, such as 3,32,32; got '{text}'")
    return tuple(int(size) for size in sizes)


def _find_shape(model: str) -> tuple[int, ...] | None:
    """Return the shape of a model that ships, or the one that a user's module states."""
    factory, module = _find_factory(model)
    for name, known in MODELS.items():
        if known is factory:
            return EXAMPLE_SHAPES[name]
    shape = getattr(factory, "example_shape", getattr(module, "example_shape", None))
    if shape is None:
        return None
    if not (isinstance(shape, (tuple, list)) and all(isinstance(size, int) and size > 0 for size in shape)):
        raise InvalidInput(f"example_shape of '{model}' must be a tuple of positive sizes, got {shape!r}")
    return tuple(shape)
