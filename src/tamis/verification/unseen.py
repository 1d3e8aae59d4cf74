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
        if hits and log_upper_tail(hits, samples, seen.chance).value <= math.log(CHANCE):
            raise AssumptionViolated(f"{_describe_hits(hits, samples, name, seen)}: {NEW}")


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
