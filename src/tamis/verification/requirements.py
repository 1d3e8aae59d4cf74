"""Requirements are bounds that the certificate of a small network must reach; judging them says whether it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.rates import as_rate
from tamis.verification.measurement import classes_of
from tamis.verification.wording import format_rate, format_share

# The argument that asks for it → the claim whose bound must not be larger.
REQUIRED = {"max_accuracy_drop": "accuracy_change", "max_disagreement": "disagreement"}
WORDS = {"accuracy_change": "accuracy lost", "disagreement": "different answers"}


def parse_rate(value: Any, called: str) -> float:
    """Read a rate from 0 to 1, as people write it: 0.01, "0.01", "1%" or "1pt", a percentage point.

    Example:
        >>> parse_rate("1 pt", "--max-accuracy-drop"), parse_rate(0.02, "max_disagreement")
        (0.01, 0.02)
    """
    rate = as_rate(value)
    if rate is None:
        raise InvalidInput(f"{called} must be a rate from 0 to 1, as 0.01, 1% or 1pt; got {value!r:.50}")
    return rate


def required_bounds(**requirements: Any) -> dict[str, float]:
    """Return the largest bound that each claim may have, by its name, from arguments of which some are None."""
    return {REQUIRED[name]: parse_rate(value, name) for name, value in requirements.items() if value is not None}


def refuse_without_classes(net: Network, **requirements: Any) -> None:
    """Raise InvalidInput where something is required of the answers of a network that gives none."""
    required = [_format_requirement(name, value) for name, value in requirements.items() if value is not None]
    if required and classes_of(net) is None:
        raise InvalidInput(
            f"{required[0]} needs a network with one score for each class, and {net!r} has other outputs"
        )


def requirement_of_labels(max_accuracy_drop: Any) -> str | None:
    """Return the requirement that needs labels, as the user wrote it; None if there is none."""
    return None if max_accuracy_drop is None else _format_requirement("max_accuracy_drop", max_accuracy_drop)


def _format_requirement(name: str, value: Any) -> str:
    return f"{name}={value!r}"


def judge(asked: Mapping[str, float], claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Judge whether the certified bounds, not what was measured, are as small as required; all must be there."""
    bounds = {claim["claim"]: claim["value"] for claim in claims}
    return [{"claim": claim, "at_most": most, "holds": bounds[claim] <= most} for claim, most in asked.items()]


def is_judgement_of(requirements: Sequence[Mapping[str, Any]], claims: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether requirements are what `judge` gives for claims; a file may say anything."""
    bounds = {claim["claim"]: claim["value"] for claim in claims}
    asked = {each["claim"]: each["at_most"] for each in requirements}
    if any(claim not in REQUIRED.values() or bounds.get(claim) is None for claim in asked):
        return False
    return judge(asked, claims) == list(requirements)


def verdict(requirements: Sequence[Mapping[str, Any]]) -> bool | None:
    """Return whether all requirements hold; None where nothing was required."""
    return all(each["holds"] for each in requirements) if requirements else None


def describe_requirement(requirement: Mapping[str, Any], claims: Sequence[Mapping[str, Any]]) -> str:
    """Write what was required, and what is certified; bounds are rounded up, so that "at most" stays true.

    Example:
        >>> requirement = {"claim": "disagreement", "at_most": 0.02, "holds": True}
        >>> describe_requirement(requirement, [{"claim": "disagreement", "value": 0.01234}])
        'different answers: at most 2% required, at most 1.24% certified'
    """
    bound = next(claim["value"] for claim in claims if claim["claim"] == requirement["claim"])
    unit = " pt" if requirement["claim"] == "accuracy_change" else "%"
    required, certified = format_share(Decimal(repr(requirement["at_most"]))), format_rate(bound)
    required, certified = (each.removesuffix("%") + unit for each in (required, certified))
    return f"{WORDS[requirement['claim']]}: at most {required} required, at most {certified} certified"
