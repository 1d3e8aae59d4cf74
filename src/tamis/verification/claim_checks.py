"""These checks refuse claims of a certificate that do not follow from the files and the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tamis.errors import InvalidInput, VerificationFailed
from tamis.verification import version_1
from tamis.verification.claim import SAME, Case, Kind, Limits
from tamis.verification.claims import kinds_of
from tamis.verification.settings import Settings
from tamis.verification.shares import share_out


def list_required_kinds(content: Mapping[str, Any], case: Case) -> list[Kind]:
    """Return the kinds of the claims, which must be all that such data allows.

    Whoever drops a claim gives the others more of δ, and so smaller bounds.
    """
    there = {
        "networks": True,
        "inputs": True,
        "labels": content["data"]["labels"] is not None,
        "training": content["training"] is not None,
    }
    kinds = [kind for kind in kinds_of(content["certificate"]) if there[kind.needs] and kind.applies(case)]
    wanted, said = [kind.name for kind in kinds], [entry["claim"] for entry in content["claims"]]
    if said != wanted:
        raise VerificationFailed(
            f"the certificate must claim {', '.join(wanted)}; it claims {', '.join(said) or 'nothing'}"
        )
    return kinds


def check_claims(
    kinds: Sequence[Kind], content: Mapping[str, Any], case: Case
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Check every claim; return the names of those that were recomputed, and of those that could not be."""
    old = content["certificate"] == 1
    shares = share_out(case.settings.delta, kinds, case.settings.candidates)
    try:
        for kind, entry in zip(kinds, content["claims"], strict=True):
            _check_claim(kind, entry, content, case, shares[kind.name], old)
    except VerificationFailed as error:
        raise VerificationFailed(f"{error} {version_1.REASON}") if old else error from None
    recomputed = tuple(kind.name for kind in kinds if kind.is_available(case))
    return recomputed, tuple(kind.name for kind in kinds if not kind.is_available(case))


def _check_claim(
    kind: Kind, entry: Mapping[str, Any], content: Mapping[str, Any], case: Case, share: float, old: bool
) -> None:
    measured = entry["measured"]
    _check_samples(kind, measured, content)
    if kind.is_available(case):
        limits = kind.limits(case, share)
        _check_measured(kind, measured, version_1.widen_limits(measured, limits) if old else limits)
    _check_derived(kind, entry, case.settings, share, old)


def _check_samples(kind: Kind, measured: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Check what needs no data: which numbers a claim rests on, and of how many samples they speak."""
    if set(measured) != set(kind.numbers):
        raise VerificationFailed(
            f"the claim '{kind.name}' must say what {', '.join(kind.numbers)} are, and says {', '.join(measured)}"
        )
    samples = content["training" if kind.needs == "training" else "data"]["samples"]
    if "samples" in measured and measured["samples"] != samples:
        raise VerificationFailed(
            f"the claim '{kind.name}' speaks of {measured['samples']} samples, the certificate of {samples}"
        )


def _check_measured(kind: Kind, said: Mapping[str, Any], limits: Limits) -> None:
    for name, (least, most) in limits.items():
        value = said[name]
        if value is None or least is None or most is None:
            holds = value is least is most
        else:
            holds = type(value) is type(least) and least <= value <= most  # counts are whole
        if not holds:
            between = f"it is {least}" if least == most else f"it is between {least} and {most}"
            raise VerificationFailed(f"the claim '{kind.name}' does not hold: it says {name} = {value}, and {between}")


def _check_derived(kind: Kind, entry: Mapping[str, Any], settings: Settings, share: float, old: bool) -> None:
    """Raise VerificationFailed unless bound and sentence are what follows from the numbers."""
    try:
        derived = kind.claim(entry["measured"], settings, share)
        derived = version_1.restate(entry, kind, derived, settings) if old else derived
    except (InvalidInput, TypeError, ValueError, OverflowError) as error:
        raise VerificationFailed(
            f"the claim '{kind.name}' rests on numbers that cannot be: {entry['measured']!r:.200}"
        ) from error
    for field, value in derived.as_json().items():
        if not _is_same(entry[field], value):
            raise VerificationFailed(
                f"the claim '{kind.name}' was changed: its {field} is {entry[field]!r:.300}, not {value!r:.300}"
            )


def _is_same(said: Any, found: Any) -> bool:
    if isinstance(found, Mapping):
        return said.keys() == found.keys() and all(_is_same(said[name], value) for name, value in found.items())
    if isinstance(found, float) and isinstance(said, float):
        return math.isclose(said, found, rel_tol=SAME)
    return type(said) is type(found) and bool(said == found)
