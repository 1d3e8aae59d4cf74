"""A whole network is quantized layer by layer, by a plan, on calibration data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from tamis.artifact import Compressed, compressed_of
from tamis.errors import InvalidInput
from tamis.graph import Network, check_same_graph, without_autocast
from tamis.layerwise import CalibrationRun, find_layers, transform_layers
from tamis.quantization.layer_quantizer import LayerQuantizer
from tamis.quantization.plan import Plan
from tamis.training import join_team


@dataclass(frozen=True)
class Source:
    """A source is the network to quantize: whose outputs are kept, and from whose weights the choice begins.

    Attributes:
        original: every layer keeps its outputs.
        start: the same network, perhaps pruned: what is pruned stays zero.
    """

    original: Network
    start: Compressed

    @classmethod
    def of(
        cls,
        net: Network | Compressed | nn.Module,
        pruned: Compressed | None,
        example: Tensor | tuple[Tensor, ...] | None,
        caller: str = "quantize",
    ) -> Source:
        """Make the source of what a user passes, and raise InvalidInput where the two networks are not one."""
        given = compressed_of(net, example, caller)
        if pruned is not None:
            if not isinstance(pruned, Compressed):
                raise InvalidInput(f"pruned must be a Compressed, as tamis.prune gives it, got {type(pruned).__name__}")
            # Names decide which weight is fitted to which, so that one graph is not enough: parameters must be
            # interchangeable.
            check_same_graph(given.network, pruned.network, "quantize", interchangeable=True)
        given.network.check_finite()
        return cls(given.network, given if pruned is None else pruned)


@without_autocast()
def quantize_network(source: Source, plan: Plan, run: CalibrationRun, calibration_name: str) -> Compressed:
    """Put the layers that a plan names on its levels, one after the other.

    Args:
        source: the network.
        plan: how.
        run: the data, and where progress and finished layers go; `hold_out` follows from the plan.
        calibration_name: what the recipe calls the data.
    """
    settings, original = plan.settings, source.original
    layers = find_layers(original, settings.include, settings.exclude, settings.conv, done="quantized")
    for layer in layers:
        plan.alphabet.tensor(original.params[layer.weight])  # levels that its dtype cannot tell apart are refused now
    quantizer = LayerQuantizer(original.params, source.start.masks, plan, join_team(original.device))
    step = {"step": "quantize", **plan.describe(), "calibration": calibration_name}
    # With a single candidate there is nothing to compare, and all of the data is there to choose from.
    run = replace(run, hold_out=len(plan.multiples) > 1)
    return transform_layers(original, source.start, layers, quantizer, step, run)
