"""Certificates of version 1 are checked by these rules.

They stay as they were issued, while bounds have since become tighter, or larger because they round up, and words have
changed. What such a certificate says is true where no bound that it states is smaller than the one that follows now,
with δ in equal shares as it was then. Everything else must be what version 1 said; the terms of a bound, which say how
its number came about, are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tamis.errors import VerificationFailed
from tamis.verification.certificate import read_claim
from tamis.verification.claim import SAME, Claim, Kind, Limits
from tamis.verification.settings import Settings
from tamis.verification.wording import format_limit

REASON = "(the certificate is of version 1, when not every bound rounded up: have the file certified again)"
# What a bound grows with, and what better arithmetic or a shorter code makes smaller: more than now is no better claim.
MAY_BE_LARGER = ("bits", "log_bound")
SOURCES = {
    "disagreement": "clopper1934confidence, upper limit",
    "accuracy_change": "clopper1934confidence, upper limit of the rate of one kind of discordant pairs",
    "error_rate": "clopper1934confidence, upper limit",
    "deviation": "wilks1941tolerance, one-sided tolerance limit",
    "boxes": "zhang2018crown, linear relaxation; the smallest of it, joint intervals and the path-metric",
    "path_metric": "gonon2024thesis, Theorem 3.4.1",
    "generalization": "langford2005tutorial, Occam's razor bound",
}


def widen_limits(said: Mapping[str, Any], limits: Limits) -> Limits:
    """Let numbers that a bound grows with be larger than they come out now."""
    return {
        name: (least, said[name] if _may_be_larger(name, said[name], most) else most)
        for name, (least, most) in limits.items()
    }


def _may_be_larger(name: str, said: Any, most: Any) -> bool:
    return name in MAY_BE_LARGER and None not in (said, most) and bool(said > most)


def restate(entry: Mapping[str, Any], kind: Kind, derived: Claim, settings: Settings) -> Claim:
    """Derive the claim with the bound and in the words of the certificate.

    Raises:
        VerificationFailed: the bound of the certificate is smaller than the one that follows.
    """
    stated, follows = read_claim(entry).bound, derived.bound
    for said, found in ((stated.value, follows.value), (stated.log10, follows.log10)):
        if said < found and abs(found - said) > SAME * abs(found):
            raise VerificationFailed(
                f"the claim '{kind.name}' states a bound of {stated.value!r} (log10 {stated.log10!r}), and what was "
                f"measured gives {follows.value!r} (log10 {follows.log10!r})"
            )
    bound = replace(
        follows,
        value=stated.value,
        log_value=stated.log_value,
        informative=stated.informative and follows.informative,
        source=SOURCES[kind.name],
        terms=stated.terms,
    )
    sentence = _write_every_digit(kind.sentence(bound, derived.measured, settings), derived.measured)
    return replace(derived, bound=bound, sentence=sentence)


def _write_every_digit(sentence: str, measured: Mapping[str, Any]) -> str:
    """Write the largest input as version 1 did."""
    largest = measured.get("largest_input")
    if largest is None:
        return sentence
    short, long = (f"between −{text} and {text}," for text in (format_limit(largest), repr(largest)))
    return sentence.replace(short, long)
