"""A transform that works layer by layer: a walk, what is done to each layer on it, and the network that comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis.artifact import Codes, Compressed, fingerprint, fingerprint_of_values
from tamis.layerwise.calibration import Calibration
from tamis.layerwise.journal import Journal
from tamis.layerwise.layers import Layer
from tamis.layerwise.walk import Treatment, Walk
from tamis.progress import Listener, reporting


def transformed(
    walk: Walk,
    layers: Sequence[Layer],
    treatment: Treatment,
    before: Compressed,
    step: Mapping[str, Any],
    directory: str | Path | None,
    progress: Listener,
) -> Compressed:
    """The network after a walk.

    Args:
        walk: with the original network, from which no layer has been treated yet.
        layers: in the order of their nodes.
        treatment: what is done to each.
        before: the small network as it was.
        step: for the recipe, which gains the figures of every layer as "layers"; its "step" names the work.
        directory: where finished layers are kept; None: nowhere.
        progress: True, False, or a function of a `Progress`.
    """
    networks = directory and {
        "original": fingerprint_of_values(walk.net.params),
        "start": fingerprint_of_values(before.params),
        "masks": fingerprint_of_values(before.masks),
        "scales": fingerprint_of_values({name: code.scales for name, code in before.codes.items()}),
        "graph": fingerprint(walk.net),
    }
    journal = Journal(directory, {**step, **(networks or {}), "torch": torch.__version__}, walk.team)
    changes: dict[str, Tensor] = {}
    codes: dict[str, Codes] = {}
    masks: dict[str, Tensor] = {}
    figures: dict[str, dict[str, Any]] = {}
    layers = [_without_pruned_shift(layer, before.masks) for layer in layers]
    with (
        reporting(progress if walk.team.leads else False, str(step["step"]), len(layers)) as report,
        walk.frontier,  # here, too, so that its files go at once if a listener raises
    ):
        for layer, outcome in walk.treat(layers, treatment, journal):
            changes |= outcome.params
            codes |= outcome.codes
            masks |= outcome.masks
            figures[layer.weight] = outcome.figures
            report(len(figures), error=outcome.figures["error"])
    changes = {name: value for name, value in changes.items() if name not in codes}
    return before.changed(changes, codes, {**step, "layers": figures}, masks).having_seen(walk.seen_samples())


def _without_pruned_shift(layer: Layer, masks: Mapping[str, Tensor]) -> Layer:
    """A layer whose bias, if entries of it are pruned, takes up no change of the mean: they stay zero."""
    pruned = layer.shift is not None and layer.shift.name in masks and not bool(masks[layer.shift.name].all())
    return replace(layer, shift=None) if pruned else layer


def described(calibration: Calibration) -> str:
    """Calibration data for a recipe: its name, if it has one."""
    name = getattr(calibration, "name", None)
    return str(calibration if isinstance(calibration, (str, Path)) else name or type(calibration).__name__)
