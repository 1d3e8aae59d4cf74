"""Replacement turns linear layers of a network into products of Kronecker-sparse factors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from tamis.errors import InvalidInput, TamisError, join_names
from tamis.graph import Patterns, as_patterns, matches, substitute_modules
from tamis.kronecker.conv import KroneckerConv2d
from tamis.kronecker.factorize import check_refine, factorize
from tamis.kronecker.layer import KroneckerLayer, KroneckerLinear
from tamis.kronecker.pattern import Pattern, PatternLike, as_chain
from tamis.progress import Listener, reporting
from tamis.settings import Factorization, documents

Replaceable = nn.Linear | nn.Conv2d
Chain = Iterable[PatternLike]
Choice = Chain | Mapping[str, Chain] | Callable[[int, int], Chain | None]
BEGINNINGS = ("factorized", "scratch")


@documents(Factorization)
def replace(
    model: nn.Module,
    patterns: Choice,
    keep: Patterns = (),
    begin: str = "factorized",
    convolutions: bool = False,
    refine: int = 0,
    seed: int = 0,
    progress: Listener = False,
) -> nn.Module:
    """Return a copy of a network with `KroneckerLinear` in place of `nn.Linear`.

    Biases, devices, dtypes and modes stay those of the layers. Hooks do not: those of a layer that is replaced are not
    called for the new one, so register them again on what `replace` gives. With `convolutions`, a `KroneckerConv2d`
    comes in place of `nn.Conv2d`, whose matrix is of (filters, channels · rows · columns of the kernel). Products
    nearest to the weights are those of `factorize`.

    Args:
        model: any module; it is left as it is.
        patterns: a function (outputs, inputs) → patterns, leftmost first, or None for a layer that is to stay; one
            list of patterns, for all layers of its size; or a dict of them by the names of layers, the others staying.
        <settings>
        progress: True, False, or a function that hears of each layer, with the figure `relative_error`.

    Example:
        >>> model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> small = replace(model, lambda M, N: tamis.kronecker.monarch(M, N, 4), keep="2")
        >>> [type(layer).__name__ for layer in small]
        ['KroneckerLinear', 'ReLU', 'Linear']

    Reference: gonon2024thesis.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"replace needs an nn.Module, got {type(model).__name__}")
    if begin not in BEGINNINGS:
        raise InvalidInput(f"begin must be one of {', '.join(BEGINNINGS)}, got {begin!r}")
    check_refine(refine)
    # All choices are checked before anything is copied or factorized, which may take minutes.
    chains = _choose_chains(model, patterns, keep, convolutions)
    copied = copy.deepcopy(model)
    made: dict[nn.Module, nn.Module] = {}
    # Factors are drawn from torch's own generator, as by any layer: it is set for this and given back as it was.
    generator_state = torch.Generator().manual_seed(seed).get_state()
    with torch.random.fork_rng(devices=[]), reporting(progress, "replacing", len(chains)) as report:
        torch.set_rng_state(generator_state)
        for done, (name, chain) in enumerate(chains.items()):
            layer = copied.get_submodule(name)
            assert isinstance(layer, Replaceable)
            made[layer], figures = _make_layer(name, layer, chain, begin, refine)
            report(done + 1, **figures)
    # By module and not by name: a layer that a model holds under two names is replaced in both places.
    return substitute_modules(copied, made)


def patterns_of(model: nn.Module) -> dict[str, list[list[int]]]:
    """Return the patterns of a network's layers by name, as in a recipe, from which `replace` makes the same layers.

    Example:
        >>> from tamis.kronecker import monarch
        >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        >>> patterns_of(replace(model, {"0": monarch(32, 64, 4)}))
        {'0': [[1, 8, 8, 4], [4, 8, 16, 1]]}
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, KroneckerLayer)}
    return {name: [list(pattern.shape) for pattern in layer.patterns] for name, layer in layers.items()}


def _choose_chains(
    model: nn.Module, patterns: Choice, keep: Patterns, convolutions: bool
) -> dict[str, tuple[Pattern, ...]]:
    """Choose the layers to be replaced, by name, and the patterns of each."""
    layers = _find_layers(model, convolutions)
    # Names in `keep` are checked against the layers that could be replaced: a misspelt one would replace a layer
    # silently.
    kept = _match_kept(keep, layers)
    choose = _choose_by_name(patterns, layers)
    chains: dict[str, tuple[Pattern, ...]] = {}
    for name, layer in layers.items():
        if name in kept:
            continue
        chain = _ask_for_chain(choose, name, layer.weight.shape[0], layer.weight[0].numel())
        if chain is not None:
            _check_layer(name, layer, model)
            chains[name] = chain
    if not chains:
        sizes = [f"{name} ({layer.weight.shape[0]} × {layer.weight[0].numel()})" for name, layer in layers.items()]
        raise InvalidInput(f"no layer is replaced by these patterns with {keep=}; there are {join_names(sizes)}")
    return chains


def _choose_by_name(patterns: Choice, layers: Iterable[str]) -> Callable[[str, int, int], Chain | None]:
    """Turn the user's choice into a function of a layer's name and its numbers of outputs and inputs."""
    if isinstance(patterns, Mapping):
        unknown = [name for name in patterns if name not in layers]
        if unknown:
            raise InvalidInput(f"there are patterns for {join_names(unknown)}, but the layers are {join_names(layers)}")
        return lambda name, rows, columns: patterns.get(name)
    if callable(patterns):
        return lambda name, rows, columns: patterns(rows, columns)
    fixed = as_chain(patterns)
    size = fixed[0].rows, fixed[-1].columns
    return lambda name, rows, columns: fixed if size == (rows, columns) else None


def _find_layers(model: nn.Module, convolutions: bool) -> dict[str, Replaceable]:
    """Return the layers that can be replaced, by name, without subclasses, which may use their weight otherwise."""
    kinds = (nn.Linear, nn.Conv2d) if convolutions else (nn.Linear,)
    layers: dict[str, Replaceable] = {}
    for name, module in model.named_modules():
        if type(module) not in kinds:
            continue
        assert isinstance(module, Replaceable)
        if module._parameters.get("weight") is None:  # torch cannot copy the model, whether this layer is kept or not
            raise InvalidInput(
                f"the weight of '{name}' is no parameter of its own but computed: remove its parametrization"
            )
        # Filters of a grouped convolution see a part of the channels each: there is no one matrix to factorize.
        if not (isinstance(module, nn.Conv2d) and module.groups > 1):
            layers[name] = module
    if not layers:
        raise InvalidInput(f"{type(model).__name__} has no layer to replace")
    return layers


def _match_kept(keep: Patterns, layers: Iterable[str]) -> set[str]:
    kept: set[str] = set()
    for pattern in as_patterns(keep):
        named = {name for name in layers if matches([name], (pattern,))}
        if not named:
            raise InvalidInput(f"keep names '{pattern}', which matches no layer; there are {join_names(layers)}")
        kept |= named
    return kept


def _ask_for_chain(
    choose: Callable[[str, int, int], Chain | None], name: str, rows: int, columns: int
) -> tuple[Pattern, ...] | None:
    try:
        given = choose(name, rows, columns)
        chain = None if given is None else as_chain(given)
    except TamisError as error:
        raise InvalidInput(
            f"'{name}', of {rows} × {columns}, has no patterns: {error}; name '{name}' in keep and it stays dense, or "
            "choose others for its size"
        ) from error
    if chain is not None and (chain[0].rows, chain[-1].columns) != (rows, columns):
        raise InvalidInput(
            f"'{name}' is of {rows} × {columns}, but the patterns given for it make a product of {chain[0].rows} × "
            f"{chain[-1].columns}"
        )
    return chain


def _check_layer(name: str, layer: Replaceable, model: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d) and layer.padding_mode != "zeros":
        raise InvalidInput(
            f"'{name}' pads with padding_mode={layer.padding_mode!r}, and KroneckerConv2d pads with zeros: name "
            f"'{name}' in keep and it stays as it is"
        )
    for kind, parameter in layer._parameters.items():
        # A tied weight, as of an embedding and its output layer, must stay one parameter, or training would move them
        # apart.
        owners = [] if parameter is None else _find_owners(parameter, model)
        if len(owners) > 1:
            raise InvalidInput(
                f"the {kind} of '{name}' is used by {join_names(owners)}, which replacing one of them would untie: "
                f"name '{name}' in keep and it stays dense"
            )


def _find_owners(parameter: nn.Parameter, model: nn.Module) -> list[str]:
    """Return the names of the modules that have a parameter; a module with several names counts once."""
    return [
        name or "the model itself"
        for name, module in model.named_modules()
        for other in module._parameters.values()
        if other is parameter
    ]


def _make_layer(
    name: str, layer: Replaceable, chain: tuple[Pattern, ...], begin: str, refine: int
) -> tuple[KroneckerLayer, dict[str, float]]:
    """Make the layer that replaces one, and return it with its relative error."""
    weight = layer.weight.detach()
    made = _make_empty_like(layer, chain)
    figures: dict[str, float] = {}
    factors: tuple[Tensor, ...] = tuple(made.factors)
    if begin == "factorized":
        try:
            found = factorize(weight.flatten(1), chain, refine)
        except TamisError as error:
            raise InvalidInput(
                f"'{name}' cannot be factorized: {error} (begin='scratch' draws the factors instead)"
            ) from error
        factors, figures = found.factors, {"relative_error": found.relative_error}
    # Also from scratch, where factors are those that the new layer has drawn: the bias is then still the old one's.
    made.set_factors(factors, layer.bias)
    for factor in made.factors:
        # A frozen layer stays frozen.
        factor.requires_grad_(layer.weight.requires_grad)
    if made.bias is not None and layer.bias is not None:
        made.bias.requires_grad_(layer.bias.requires_grad)
    return made.train(layer.training), figures


def _make_empty_like(layer: Replaceable, chain: tuple[Pattern, ...]) -> KroneckerLayer:
    biased = layer.bias is not None
    made: KroneckerLayer
    if isinstance(layer, nn.Linear):
        made = KroneckerLinear(chain, biased)
    else:
        made = KroneckerConv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            chain,
            layer.stride,
            layer.padding,
            layer.dilation,
            biased,
        )
    return made.to(layer.weight.device, layer.weight.dtype)  # drawn on the CPU: the same seed gives the same weights
