"""The claims of a certificate share δ, so that all of them hold together with probability 1 − δ."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.verification.claim import Kind
from tamis.verification.claims import kinds_of
from tamis.verification.schema import VERSION


def share_out(delta: float, kinds: Sequence[Kind], candidates: int = 1) -> dict[str, float]:
    """Return the part of δ that each claim has, by name; the parts times the number of candidates are δ together.

    A claim that says which part it needs has that one, the others share the rest equally, and a proof takes nothing.

    Args:
        delta: the probability that any of the claims may be wrong.
        kinds: the claims.
        candidates: how many small networks the same is claimed of, at once.

    Example:
        >>> from tamis.verification.claims import Deviation, Disagreement, PathMetric
        >>> share_out(0.05, [Disagreement(), Deviation(), PathMetric()])
        {'disagreement': 0.025, 'deviation': 0.025, 'path_metric': 0.0}
    """
    asked = {kind.name: kind.part for kind in kinds if kind.statistical and kind.part is not None}
    equal = [kind.name for kind in kinds if kind.statistical and kind.part is None]
    if not equal:  # nobody is there to take the rest
        asked = {name: part / sum(asked.values()) for name, part in asked.items()}
    rest = delta * (1 - sum(asked.values())) / max(1, len(equal))
    shares = {name: delta * part for name, part in asked.items()} | dict.fromkeys(equal, rest)
    # A union bound twice: over the claims of one network, and over all candidates.
    return {kind.name: shares.get(kind.name, 0.0) / candidates for kind in kinds}


def share_of_disagreement(delta: float, labelled: bool) -> float:
    """Return the part of δ that a certificate has for the rate of different answers.

    Args:
        delta: as `share_out` takes it.
        labelled: whether the held-out data has labels, about which more is claimed.

    Example:
        >>> share_of_disagreement(0.05, labelled=False)
        0.025
    """
    there = ("inputs", "labels") if labelled else ("inputs",)
    return share_out(delta, [kind for kind in kinds_of(VERSION) if kind.needs in there])["disagreement"]
