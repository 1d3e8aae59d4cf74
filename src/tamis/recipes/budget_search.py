"""The search for a budget builds only the few networks that look best by the measured options of their layers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal

from tamis.artifact import Compressed, replace_file
from tamis.bounds import disagreement
from tamis.errors import InvalidInput
from tamis.recipes.starting_points import measure_starts, prepare_starts
from tamis.recipes.state import DELTA, Context, State
from tamis.recipes.steps.base import Step
from tamis.recipes.trials import Trial, Trials
from tamis.verification import format_rate, format_share, share_of_disagreement

MOST_CORRECTIONS = 4  # of the guess of how large a file will be
DOUBT = 0.2  # how often the test data may differ on more than the held-out data makes us expect


def open_trials(starts: Sequence[Sequence[Step]], state: State, context: Context) -> list[Trials]:
    """Prepare every start, and measure what its layers could become."""
    prepared = prepare_starts(starts, state, context)
    return [
        Trials(start, options, context)
        for start, options in zip(prepared, measure_starts(prepared, context), strict=True)
    ]


def fit_bytes(starts: Sequence[Sequence[Step]], state: State, context: Context, target: int) -> Compressed:
    """Find the network that answers most like the original on the held-out data, among files of at most so many bytes.

    Counts of different answers that lie within one standard deviation of the least count as equal. Among those
    networks, the one whose outputs moved least is taken: a few inputs already measure that well.

    The size of a file is predicted from the bytes of its layers. The sizes of the first networks that are made correct
    the prediction.

    Args:
        starts: chains of steps, each of which is tried first.
        state: the network that they begin with.
        context: data, folder and progress.
        target: how many bytes.

    Raises:
        InvalidInput: no choice of layers is small enough.
    """
    everything = open_trials(starts, state, context)
    for trials in everything:
        _approach(target, trials)
    # Every network that was made counts, whichever start and correction it came from: its file is there.
    fitting = [pair for pair in _list_trials(everything) if pair[1].bytes <= target]
    if not fitting:
        smallest = min((trial for _, trial in _list_trials(everything)), key=lambda trial: trial.bytes)
        raise InvalidInput(
            f"no file of {target:,} bytes was found: the smallest has {smallest.bytes:,}"
            f"{_describe_start(smallest, starts)}; raise the target, or begin with a smaller network"
        )
    # A count of rare events has a variance of about its mean (Poisson): √least is its standard deviation.
    least = min(trial.different for _, trial in fitting)
    alike = [pair for pair in fitting if pair[1].different <= least + math.sqrt(least)]
    return _load_chosen(min(alike, key=lambda pair: (pair[1].moved, pair[1].bytes)), everything, context)


def _approach(target: int, trials: Trials) -> None:
    """Make the largest network that fits, or the smallest of all where none fits."""
    # What a file has beside its weights (tables of codes, names, padding) depends on the choices themselves. So the
    # first guess takes the overhead of the network as it is, and each network that is made gives a better one; the same
    # place twice means that the guess has settled.
    place = trials.find_largest_within(target - trials.fixed_bytes)
    for _ in range(MOST_CORRECTIONS):
        place = trials.find_largest_within(target - trials.measure_overhead(place))
        if place in trials.done:
            break
    # The first allocation is the smallest there is. With it, an error can at least say how small files become.
    if not any(trial.bytes <= target for trial in trials.done.values()):
        trials.make(0)


def fit_disagreement(starts: Sequence[Sequence[Step]], state: State, context: Context, most: float) -> Compressed:
    """Find the smallest file for which a certificate of at most `most` different answers can be expected.

    The allocations of each start are bisected: of the networks that are made on the way, a larger file differs on fewer
    inputs, up to chance. A start that keeps no promise with what is just below the smallest file so far is given up.

    Args:
        starts: chains of steps, each of which is tried first.
        state: the network that they begin with.
        context: data, folder and progress.
        most: which part of the answers may differ.

    Raises:
        InvalidInput: there is too little data to say so of any network, or none is good enough.
    """
    held_out, test, limit = len(context.data.searched), len(context.data.test), format_share(Decimal(repr(most)))
    # The part of δ that the certificate will have for this claim: with all of δ, the search would expect less than what
    # is issued.
    share = share_of_disagreement(DELTA, context.data.test_has_labels)
    # Before anything is made: no network could keep the promise.
    if (least := predict_bound(0, held_out, test, share)) > most:
        raise InvalidInput(
            f"{held_out:,} held-out and {test:,} test samples are too few for a disagreement of at most {limit}: "
            f"even without a single different answer the bound to expect is {format_rate(least)}; allow more, or name "
            "more data"
        )

    def is_good(trial: Trial) -> bool:
        return predict_bound(trial.different, held_out, test, share) <= most

    everything = open_trials(starts, state, context)
    best: tuple[Trials, Trial] | None = None
    weights = 0  # of the best one, without what every file has beside them
    for trials in everything:
        # Only allocations predicted to be no larger than the best so far are tried. Where the largest of them is not
        # good enough, smaller ones are not expected to be, and this start is given up.
        high = len(trials) - 1 if best is None else trials.find_largest_within(weights)
        place = _find_smallest_good(trials, high, is_good)
        # The file's real bytes decide, and the prediction only says where to look next.
        if place is not None and (best is None or trials.make(place).bytes < best[1].bytes):
            best, weights = (trials, trials.make(place)), trials.predict_bytes(place)
    if best is None:
        _, closest = min(_list_trials(everything), key=lambda pair: (pair[1].different, pair[1].bytes))
        bound = predict_bound(closest.different, held_out, test, share)
        raise InvalidInput(
            f"no file was found with a disagreement of at most {limit}: the closest, of {closest.bytes:,} bytes"
            f"{_describe_start(closest, starts)}, has a bound to expect of {format_rate(bound)}; allow more, or begin "
            "otherwise"
        )
    return _load_chosen(best, everything, context)


def _find_smallest_good(trials: Trials, high: int, is_good: Callable[[Trial], bool]) -> int | None:
    """Bisect for the first allocation that is good enough, up to `high`; None if that one is not."""
    if not is_good(trials.make(high)):
        return None
    # Networks between `high`, which is good, and the last known bad one remain. Counts are noisy, so this need not be
    # the very smallest good allocation; it is one that was made, measured and found to be good.
    low = 0
    while low < high:
        middle = (low + high) // 2
        if is_good(trials.make(middle)):
            high = middle
        else:
            low = middle + 1
    return high


def _list_trials(everything: Sequence[Trials]) -> list[tuple[Trials, Trial]]:
    return [(trials, trial) for trials in everything for trial in trials.done.values()]


def _describe_start(trial: Trial, starts: Sequence[Sequence[Step]]) -> str:
    """Say which start a trial is of, where there are several."""
    return f" ({trial.start})" if len(starts) > 1 else ""


def _load_chosen(chosen: tuple[Trials, Trial], everything: Sequence[Trials], context: Context) -> Compressed:
    """Load the chosen network, and note all trials for the report."""
    records = [
        {
            "start": trial.start,
            "layers": trial.layers,
            "bytes": trial.bytes,
            "different": trial.different,
            # JSON has no infinity.
            "moved": trial.moved if math.isfinite(trial.moved) else None,
            "chosen": trial is chosen[1],
        }
        for _, trial in _list_trials(everything)
    ]
    # Whole or not at all, because the lock file and the report are made from it, also after a kill.
    with replace_file(context.notes) as part:
        part.write_text(json.dumps({"held_out": len(context.data.searched), "tried": records}))
    return chosen[0].read(chosen[1])


def predict_bound(different: int, held_out: int, test: int, delta: float) -> float:
    """Return the bound that a certificate will probably state: with probability `DOUBT` at most it states more.

    Args:
        different: on how many held-out inputs the answers differ.
        held_out, test: how many inputs there are.
        delta: the claim's part of δ.

    Example:
        >>> predict_bound(0, 5000, 5000, 0.0125) < predict_bound(50, 5000, 5000, 0.0125) < 0.02
        True
    """
    # First an upper limit of the true rate, then the bound that this many different answers would lead to. Rounding up
    # keeps the promise careful: the certificate is issued once, on test data that no second network may be tried on.
    rate = disagreement(different, held_out, DOUBT).value
    return disagreement(min(test, math.ceil(rate * test)), test, delta).value
