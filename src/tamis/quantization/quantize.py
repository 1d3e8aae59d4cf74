"""`quantize` puts the weights of a network on a few levels, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from tamis.artifact import Compressed
from tamis.graph import Network, Patterns, lasting, without_autocast
from tamis.layerwise import (
    ACTIVATION_BUDGET,
    Calibration,
    CalibrationRun,
    Kernels,
    check_budget,
    describe_calibration,
    read_calibration,
)
from tamis.progress import Listener
from tamis.quantization.alphabet import Alphabet, Radius
from tamis.quantization.cross_validation import compare_plans
from tamis.quantization.network_quantization import Source, quantize_network
from tamis.quantization.plan import Plan
from tamis.quantization.problem import Order
from tamis.quantization.quantizer import Quantizer, quantizer_of
from tamis.quantization.units import Per
from tamis.settings import Quantization, documents


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
        >>> net, inputs = tamis.trace(torch.nn.Linear(6, 4), torch.zeros(1, 6)), torch.randn(50, 6)
        >>> small = tamis.quantize(net, inputs, levels=3, progress=False)  # or "cifar10:train[:5000]", a DataLoader, …
        >>> small.codes["weight"].levels
        tensor([-1.,  0.,  1.])

    Reference: lybrand2021gpfq, frantar2023optq.
    """
    quantizer_of(method)  # a method that is none is said first
    settings = Quantization(
        levels,
        method,
        per,
        c_alpha,
        search,
        bits,
        radius,
        conv,
        order,
        biases,
        bias_correction,
        lasting(include),
        lasting(exclude),
    )
    check_budget(activation_budget)
    plan = Plan.of(settings)
    source, name = Source.of(net, pruned, example), describe_calibration(calibration)
    run = CalibrationRun(calibration, activation_budget, directory, progress)
    if settings.search == "global" and len(plan.multiples) > 1:
        batches = list(read_calibration(calibration, source.original))  # a loader may give its batches only once
        run = replace(run, calibration=batches)
        # One C_α for the whole network, judged by its outputs; the other search lets each layer judge by its own error.
        trials = compare_plans(source, [replace(plan, multiples=(each,)) for each in plan.multiples], run)
        best = min(range(len(trials)), key=lambda number: trials[number].error)
        # One multiple is left: no data is held out below, and with a single C_α the scales are not fitted.
        plan = replace(plan, multiples=(plan.multiples[best],))
    return quantize_network(source, plan, run, name)
