"""Held-out data must be new: what a network was made with, or chosen on, cannot say how it does on other data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tamis.artifact import Compressed
from tamis.bounds import log_upper_tail
from tamis.errors import AssumptionViolated
from tamis.graph import Array, Network, SeenSamples
from tamis.verification.evidence import Evidence

CHANCE = 1e-9  # with which new data may be refused: so many hits of the filter would be an accident
NEW = (
    "what is claimed of them would not hold for new ones; use data that nothing has seen (inputs with so few possible "
    "values that new draws repeat old ones cannot be told from these)"
)
# What steps of a recipe call the data that they used: where one is there, the file was made with samples.
DATA_KEYS = ("calibration", "data")
DOUBT = 0.01  # with which half of the samples that made a file may pass as new ones before a reader is told
ENOUGH = 64  # samples remembered: that fewer than six of them are in the half has a probability of 10⁻¹²


def check_unseen(
    held_out: Evidence, training: Evidence | None, net: Network, small: Compressed, file: str | Path
) -> None:
    """Raise AssumptionViolated where held-out data was used to make either network, as far as that is known."""
    if training is not None:
        refuse_training(held_out.digests, training.digests)
    refuse_seen(held_out.digests, {f"'{Path(file).name}'": small.seen, "the original network": net.seen})


def refuse_seen(digests: Array, networks: Mapping[str, SeenSamples]) -> None:
    """Raise AssumptionViolated where more samples are among those that a network has seen than chance can explain.

    A new sample is taken for one that was seen with a probability p that is known (`SeenSamples.chance`), so that the
    number of hits among n new ones is Binomial(n, p).

    Args:
        digests: those of the held-out samples.
        networks: what each has seen, by what messages call it.
    """
    samples = len(np.unique(digests))
    for name, seen in networks.items():
        hits = seen.count(digests)
        if _is_refused(hits, samples, seen):
            raise AssumptionViolated(f"{_describe_hits(hits, samples, name, seen)}: {NEW}")


def _is_refused(hits: int, samples: int, seen: SeenSamples) -> bool:
    """Return whether so many hits among so many samples are more than chance can explain."""
    return hits > 0 and log_upper_tail(hits, samples, seen.chance).value <= math.log(CHANCE)


def _describe_hits(hits: int, samples: int, name: str, seen: SeenSamples) -> str:
    purposes = " and ".join(seen.purposes)
    if seen.share == 1:
        return f"{hits:,} of {samples:,} held-out samples were used to make {name} ({purposes})"
    about = min(samples, max(hits, round(hits / seen.share)))
    return (
        f"about {about:,} of {samples:,} held-out samples were used to make {name} ({purposes}; it remembers one in "
        f"{round(1 / seen.share):,} of those it has seen, and {hits:,} of these are here)"
    )


def refuse_training(held_out: Array, training: Array) -> None:
    """Raise AssumptionViolated where a held-out sample is one of training, in whatever order they come."""
    new = np.unique(held_out)
    shared = int(np.isin(new, training).sum())
    if shared:
        raise AssumptionViolated(f"{shared:,} of {len(new):,} held-out samples are among those of training: {NEW}")


def recognition_note(small: Compressed, samples: int) -> str | None:
    """Tell a reader where a file remembers too few of the samples that made it to refuse half of them as held-out data.

    Files of before had 2% of their bytes to remember samples in, which in one of a few kilobytes is next to nothing.
    What made such a network may be certified on, and nobody would be told; so the certificate says it.

    Args:
        small: the network, as it was read from its file.
        samples: how many distinct held-out samples there are.

    Returns:
        The note; None where such data is refused, or where no step says that it used any.
    """
    seen, word = small.seen, "that the held-out data is new rests on your word"
    if not seen:
        used = any(step.get(key) for step in small.recipe for key in DATA_KEYS)
        return f"This file recognises none of the samples it was made with: {word}." if used else None
    if seen.share == 1 or _compute_chance_to_pass(seen, samples) <= DOUBT:
        return None
    # The limit is the first cell that is not remembered, so that this is an unbiased estimate; and a rough one.
    made_with = float(f"{len(seen.cells) / seen.share:.1g}")
    return f"This file recognises {len(seen.cells)} of about {made_with:,.0f} samples it was made with: {word}."


def _compute_chance_to_pass(seen: SeenSamples, samples: int) -> float:
    """Return the probability that half of the samples seen, drawn at random, are not refused as held-out data."""
    remembered = len(seen.cells)
    if remembered > ENOUGH:
        return 0.0
    # Each sample that is remembered is in the half, or not: the hits are Binomial(remembered, 1/2).
    passing = (hits for hits in range(remembered + 1) if not _is_refused(hits, samples, seen))
    return sum(math.comb(remembered, hits) for hits in passing) / 2**remembered
