"""`prune` sets the weights of a network that matter least to zero."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from tamis.artifact import Compressed, compressed_of
from tamis.errors import InvalidInput
from tamis.graph import Network, Patterns, as_patterns, lasting
from tamis.layerwise import (
    ACTIVATION_BUDGET,
    Calibration,
    CalibrationRun,
    check_budget,
    describe_calibration,
    find_layers,
    transform_layers,
)
from tamis.progress import Listener
from tamis.pruning.amount import Amount, as_plain_amount, count_by_layer, count_of
from tamis.pruning.criterion import OBS, Criterion, criterion_of, name_criterion
from tamis.pruning.obs import BrainSurgeon
from tamis.pruning.prunable_weights import find_candidates
from tamis.pruning.selection import Sweep, Visitor, keep_all_but_smallest
from tamis.settings import Pruning, documents


@documents(Pruning)
def prune(
    net: Network | Compressed | nn.Module,
    amount: Amount,
    by: Literal["phi", "magnitude", "random", "obs"] | Criterion = "phi",
    scope: Literal["global", "layer"] = "global",
    include: Patterns = None,
    exclude: Patterns = None,
    biases: bool = False,
    seed: int = 0,
    *,
    halve_final: bool = False,
    calibration: Calibration = None,
    directory: str | Path | None = None,
    activation_budget: int = ACTIVATION_BUDGET,
    example: Tensor | tuple[Tensor, ...] | None = None,
    progress: Listener = True,
) -> Compressed:
    """Set the weights that matter least to zero.

    The thesis' Φ-GP is `by="phi"`, `scope="global"`, its Φ-LP `by="phi"`, `scope="layer"`, its MP `by="magnitude"`,
    `scope="layer"`.

    Args:
        net: a network; one that is compressed already, whose pruned weights stay pruned and of whose remaining weights
            `amount` is pruned; or a module, with an example of its input.
        <settings>
        calibration, directory, activation_budget, progress: for "obs", as `tamis.quantize` takes them.
        example: an input, if `net` is a module.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        >>> small = tamis.prune(model, amount=0.8, by="phi", scope="global", example=torch.zeros(1, 8))
        >>> small.masks.pruned, small.masks.total
        (48, 60)

    Reference: gonon2024thesis, hassibi1993obs.
    """
    criterion_of(by)  # a criterion that is none is said first
    _check_calibration(by, calibration, biases)
    settings = Pruning(
        amount, by, scope, lasting(include), lasting(exclude), biases, seed=seed, halve_final=halve_final
    )
    check_budget(activation_budget)
    settings = replace(settings, amount=as_plain_amount(amount), seed=int(seed))
    before = compressed_of(net, example, "prune")
    before.network.check_finite()
    kept = choose_masks(before, settings)
    if by != OBS:
        return before.pruned(kept, _describe_step(settings))
    return _operate(before, kept, settings, CalibrationRun(calibration, activation_budget, directory, progress))


def choose_masks(before: Compressed, settings: Pruning) -> dict[str, Tensor]:
    """Choose which weights are kept, by the parameters that settings name; what is pruned before stays pruned."""
    chosen = find_candidates(before.network, settings.include, settings.exclude, settings.biases)
    pruned = {n: int((~before.masks[n]).count_nonzero()) if n in before.masks else 0 for n in chosen.names}
    left = {name: before.params[name].numel() - pruned[name] for name in chosen.names}
    # What was pruned before scores −∞ (`_put_pruned_first`) and is counted in: it stays pruned, and `amount` is of the
    # rest.
    counts = {
        names: count + sum(pruned[name] for name in names)
        for names, count in _share_out(settings, left, chosen.final if settings.halve_final else None).items()
    }
    scores = criterion_of(settings.by)(before.network, chosen.names, settings.seed)
    kept = keep_all_but_smallest(_put_pruned_first(scores, before.masks), counts)
    return {name: kept[name] for name in chosen.names}


def _operate(before: Compressed, kept: Mapping[str, Tensor], settings: Pruning, run: CalibrationRun) -> Compressed:
    """Prune as many weights of each parameter as the masks do, chosen and made up for by the optimal brain surgeon."""
    if coded := [name for name in kept if name in before.codes]:
        raise InvalidInput(f"by='obs' moves the weights it keeps, and '{coded[0]}' is quantized: quantize afterwards")
    original = before.network
    surgeon = BrainSurgeon(original.params, before.masks, {name: int((~mask).sum()) for name, mask in kept.items()})
    # Counts come from masks that magnitudes gave: `obs` keeps the share of every layer, and chooses within it.
    only = [glob.escape(name) for name in kept]  # names, not patterns
    layers = find_layers(original, only, None, "joint", done="pruned by 'obs'")
    step = {**_describe_step(settings), "calibration": describe_calibration(run.calibration)}
    return transform_layers(original, before, layers, surgeon, step, run)


def _describe_step(settings: Pruning) -> dict[str, Any]:
    """Return the recipe's entry; what is off is left out, as in files that were written before it existed."""
    patterns = {name: list(as_patterns(getattr(settings, name))) for name in ("include", "exclude")}
    options = {**patterns, "biases": settings.biases, "halve_final": settings.halve_final}
    step = {
        "step": "prune",
        "by": name_criterion(settings.by),
        "scope": settings.scope,
        "amount": settings.amount,
        "seed": settings.seed,
    }
    return step | {name: value for name, value in options.items() if value}


def _check_calibration(by: str | Criterion, calibration: Calibration, biases: bool) -> None:
    if by == OBS and calibration is None:
        raise InvalidInput("by='obs' chooses weights by what data makes of them: pass calibration=")
    if by == OBS and biases:
        raise InvalidInput("by='obs' prunes weights only: leave out biases=True")
    if by != OBS and calibration is not None:
        raise InvalidInput(
            f"by={name_criterion(by)!r} looks at no data: leave out calibration=, or call tamis.repair afterwards"
        )


def _share_out(settings: Pruning, sizes: Mapping[str, int], halved: str | None) -> dict[tuple[str, ...], int]:
    """Compute how many weights to prune among which parameters; `sizes` says how many weights each has left."""
    amount = settings.amount
    # Amounts by layer settle what goes where, so that scope has no say left.
    if isinstance(amount, Mapping) or settings.scope == "layer":
        return {(name,): count for name, count in count_by_layer(amount, sizes, halved).items()}
    # With one pool for all layers only the total can be lowered: by as much as half of the last layer's share.
    if halved is not None:
        return {tuple(sizes): sum(count_by_layer(amount, sizes, halved).values())}
    return {tuple(sizes): count_of(amount, sum(sizes.values()), "the network")}


def _put_pruned_first(scores: Sweep, masks: Mapping[str, Tensor]) -> Sweep:
    """Return scores that put what is pruned already first."""

    def sweep(visit: Visitor) -> None:
        def show(name: str, score: Tensor) -> None:
            # −∞ is below every score that a criterion may give, negative Φ-costs of biases included.
            visit(name, score.masked_fill(~masks[name], float("-inf")) if name in masks else score)

        scores(show)

    return sweep
