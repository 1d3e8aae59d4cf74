"""`quantize` puts the weights of a network on a few levels, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from tamis.artifact import Compressed, compressed_of
from tamis.errors import InvalidInput
from tamis.graph import Network, Patterns, as_patterns, check_same_graph, lasting, without_autocast
from tamis.layerwise import (
    ACTIVATION_BUDGET,
    Calibration,
    CalibrationRun,
    Kernels,
    check_budget,
    describe_calibration,
    find_layers,
    read_calibration,
    transform_layers,
)
from tamis.progress import Listener
from tamis.quantization.alphabet import Alphabet, Radius, alphabet_of
from tamis.quantization.cross_validation import cross_validate
from tamis.quantization.layer_quantizer import LayerQuantizer
from tamis.quantization.problem import Order
from tamis.quantization.quantizer import Quantizer, quantizer_of
from tamis.quantization.units import Per
from tamis.settings import Quantization, documents
from tamis.training import join_team

# Candidates for C_α where it is searched for, from binary levels to those of many bits.
FRACTIONS_OF_RADIUS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)  # of max |w|, or of what fits it best
MULTIPLES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.5, 10.0)


@documents(Quantization)
@without_autocast()
def quantize(
    net: Network | Compressed | nn.Module,
    calibration: Calibration,
    levels: int | Iterable[float] | Alphabet | None = None,
    method: Literal["gpfq", "msq", "optq"] | Quantizer = "optq",
    per: Per = "channel",
    c_alpha: float | Iterable[float] | None = None,
    *,
    search: Literal["layer", "global"] = "layer",
    bits: int | None = None,
    radius: Radius = "median",
    conv: Kernels = "joint",
    order: Order | None = None,
    biases: bool = False,
    bias_correction: bool | None = None,
    pruned: Compressed | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    directory: str | Path | None = None,
    activation_budget: int = ACTIVATION_BUDGET,
    example: Tensor | tuple[Tensor, ...] | None = None,
    progress: Listener = True,
) -> Compressed:
    """Put the weights of every linear and convolution layer on a few levels, layer by layer, without retraining.

    Each layer's weights are chosen so that its outputs on the calibration data stay those of the original network,
    given the inputs that the layers before it, quantized already, now send it. Levels are α · {−1 + 2j/(M−1)}; α is
    C_α times the median of |w|.

    Under `torchrun`, the processes share the batches and the neurons.

    Args:
        net: a network; one that is compressed already, whose pruned weights stay pruned; or a module, with an example.
        calibration: inputs, some hundreds or thousands: a tensor (a tuple for a network of several inputs), a dataset
            or its name ("cifar10:train[:5000]", "images.npz"), or a DataLoader.
        <settings>
        pruned: the same network, pruned: its pruned weights stay zero, and what is left is first fitted to the original
            outputs by least squares. So prune, repair and quantize are one call.
        directory: where each layer is left when it is finished, so that the same call goes on after a kill.
        activation_budget: bytes of activations to keep in memory; what is more goes to files.
        example: an input, if `net` is a module.
        progress: True, False, or a function of a `Progress`, called after each layer.

    Returns:
        The network with `codes`: indices, levels and scales for each quantized parameter. The last step of its
        `recipe` has, for each layer, the relative error ‖Yw − Ỹq‖/‖Yw‖ and the share of zeros.

    Example:
        >>> small = tamis.quantize(net, "cifar10:train[:5000]", levels=3)
        >>> print(small.summary())
        >>> small.save("small.tamis")

    Reference: lybrand2021gpfq, frantar2023optq.
    """
    chosen = quantizer_of(method)
    Quantization(
        levels, method, per, c_alpha, search, bits, radius, conv, order, biases, bias_correction, include, exclude
    )
    check_budget(activation_budget)
    alphabet = alphabet_of(3 if levels is None and bits is None else levels, bits, radius)
    multiples = _multiples(c_alpha, alphabet)
    given, name = compressed_of(net, example, "quantize"), describe_calibration(calibration)
    original, before = given.network, given if pruned is None else _checked(pruned, given.network)
    original.check_finite()
    include, exclude = lasting(include), lasting(exclude)
    choices: dict[str, Any] = {
        "method": chosen.name,
        "per": per,
        "conv": conv,
        "order": order or chosen.order,
        "biases": biases,
        "bias_correction": chosen.bias_correction if bias_correction is None else bias_correction,
        "include": list(as_patterns(include)) or None,
        "exclude": list(as_patterns(exclude)) or None,
    }
    if search == "global" and len(multiples) > 1:
        calibration = list(read_calibration(calibration, original))  # a loader may give its batches only once
        rest: dict[str, Any] = {**choices, "method": chosen, "pruned": pruned, "activation_budget": activation_budget}
        trials = cross_validate(given, calibration, [alphabet], multiples, progress=progress, **rest)
        # One multiple is left: no data is held out below, and with a single C_α the scales are not fitted.
        multiples = (min(trials, key=lambda trial: trial.error).c_alpha or 1.0,)
    team = join_team(original.device)
    quantizer = LayerQuantizer(
        original=original.params,
        masks=before.masks,
        method=chosen,
        alphabet=alphabet,
        per=per,
        order=choices["order"],
        multiples=multiples,
        fits_scales=chosen.improves and len(multiples) > 1,
        biases=biases,
        bias_correction=choices["bias_correction"],
        team=team,
    )
    scales = {"levels": list(alphabet.levels), "radius": alphabet.radius, "c_alpha": list(multiples), "search": search}
    step = {"step": "quantize", **scales, **choices, "calibration": name}
    layers = find_layers(original, include, exclude, conv, done="quantized")
    for layer in layers:
        alphabet.tensor(original.params[layer.weight])  # levels that its dtype cannot tell apart are refused now
    run = CalibrationRun(calibration, activation_budget, directory, progress, hold_out=len(multiples) > 1)
    return transform_layers(original, before, layers, quantizer, step, run)


def _multiples(c_alpha: float | Iterable[float] | None, alphabet: Alphabet) -> tuple[float, ...]:
    """Return the candidates for C_α: those that the user gave, or a built-in list."""
    if alphabet.radius == "given":
        if c_alpha is not None:
            raise InvalidInput(f"levels {alphabet.levels!s:.80} are meant as they are: leave out {c_alpha=}")
        return (1.0,)
    if c_alpha is None:
        return MULTIPLES if alphabet.radius == "median" else FRACTIONS_OF_RADIUS
    multiples = tuple(c_alpha) if isinstance(c_alpha, Iterable) and not isinstance(c_alpha, Tensor) else (c_alpha,)
    if not multiples or not all(_is_positive(multiple) for multiple in multiples):
        raise InvalidInput(f"c_alpha={c_alpha!r} must be a positive number, or several to choose from")
    return tuple(float(multiple) for multiple in multiples)


def _is_positive(number: Any) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool) and 0 < float(number) < math.inf


def _checked(pruned: Compressed, original: Network) -> Compressed:
    """Return a pruned network if it is the original but for its weights, and raise InvalidInput otherwise."""
    if not isinstance(pruned, Compressed):
        raise InvalidInput(f"pruned must be a Compressed, as tamis.prune gives it, got {type(pruned).__name__}")
    check_same_graph(original, pruned.network, "quantize", interchangeable=True)
    return pruned
