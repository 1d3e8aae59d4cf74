"""The schema of certificates checks every field, its type and its range, before anything is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tamis.citations import CITATIONS
from tamis.errors import CorruptArtifact

VERSION = 2  # of what is written; certificates of earlier versions are read by their own form
MOST_SAMPLES = 10**9  # limits take seconds beyond, and a hostile certificate could ask for any number
MOST_CANDIDATES, MOST_BOXES = 10**9, 10**6
LEAST_SHARE = 1e-9  # of a probability, or of inputs
LARGEST_FLOAT = 1e300

Check = Callable[[Any], bool]


def is_count(least: int = 0, most: int = 2**60) -> Check:
    """Return a check for whole numbers of a range."""
    return lambda value: type(value) is int and least <= value <= most


def is_real(value: Any) -> bool:
    """Return whether a value is a number that float64 holds with room to spare."""
    return type(value) in (int, float) and abs(value) <= LARGEST_FLOAT


def is_positive(value: Any) -> bool:
    """Return whether a value is a float of at least 0."""
    return type(value) is float and 0 <= value <= LARGEST_FLOAT


def is_share(least: float) -> Check:
    """Return a check for floats below 1 that are not too small."""
    return lambda value: type(value) is float and least <= value < 1


def is_text(value: Any) -> bool:
    """Return whether a value is printable text: without line breaks, without escape codes."""
    return type(value) is str and value.isprintable()


def printable(text: str) -> str:
    """Replace the characters of a name or a command that a certificate may not hold.

    Example:
        >>> printable("two\\nlines")
        'two lines'
    """
    return "".join(character if character.isprintable() else " " for character in text)


def is_digest(value: Any) -> bool:
    """Return whether a value is a sha256 in hexadecimal digits."""
    return type(value) is str and re.fullmatch("[0-9a-f]{64}", value) is not None


def is_source(value: Any) -> bool:
    """Return whether a value is a citation key, and a place in that work."""
    return is_text(value) and value.split(",")[0] in CITATIONS


def allow_null(check: Check) -> Check:
    """Return a check that takes null as well."""
    return lambda value: value is None or check(value)


def check_list(check: Check) -> Check:
    """Return a check for lists of such values."""
    return lambda value: type(value) is list and all(map(check, value))


def check_mapping(check: Check) -> Check:
    """Return a check for objects with such values under any names."""
    return lambda value: type(value) is dict and all(map(is_text, value)) and all(map(check, value.values()))


def fields(checks: Mapping[str, Check], optional: tuple[str, ...] = ()) -> Check:
    """Return a check for objects with exactly these fields."""

    def check(value: Any) -> bool:
        return type(value) is dict and not list_wrong_fields(value, checks, optional)

    return check


def list_wrong_fields(
    value: Mapping[str, Any], checks: Mapping[str, Check], optional: tuple[str, ...] = ()
) -> list[str]:
    """List the fields that are missing, unknown, or not what they must be."""
    missing = [name for name in checks if name not in value and name not in optional]
    return missing + [name for name, item in value.items() if name not in checks or not checks[name](item)]


def is_rate(value: Any) -> bool:
    """Return whether a value is a float from 0 to 1."""
    return type(value) is float and 0 <= value <= 1


def is_flag(value: Any) -> bool:
    """Return whether a value is True or False."""
    return type(value) is bool


NETWORK: dict[str, Check] = {"graph": is_digest, "values": is_digest, "bytes": is_count()}
DATA: dict[str, Check] = {
    "samples": is_count(1, MOST_SAMPLES),
    "inputs": is_digest,
    "labels": allow_null(is_digest),
    "largest_input": is_positive,
}
TRAINING = DATA | {"labels": is_digest}  # on which what is said of training data rests
SETTINGS: dict[str, Check] = {
    "delta": is_share(LEAST_SHARE),
    "candidates": is_count(1, MOST_CANDIDATES),
    "coverage": is_share(LEAST_SHARE),
    "radius": allow_null(is_positive),
    "boxed": is_count(1, MOST_BOXES),
}
CLAIM = fields(
    {
        "claim": is_text,
        "sentence": is_text,
        "value": allow_null(is_real),
        "log10": allow_null(is_real),
        "informative": is_flag,
        "delta": allow_null(is_share(LEAST_SHARE**3)),
        "assumptions": check_list(is_text),
        "checked": check_list(is_text),
        "source": is_source,
        "terms": check_mapping(allow_null(is_real)),
        "measured": check_mapping(allow_null(is_real)),
    }
)
REQUIREMENT = fields({"claim": is_text, "at_most": is_rate, "holds": is_flag})
VERSION_1: dict[str, Check] = {
    "certificate": is_count(1, 1),
    "made_by": is_text,
    "date": is_text,
    "settings": fields(SETTINGS),
    "network": fields(NETWORK),
    "file": fields({"name": is_text, "sha256": is_digest, "bytes": is_count(1)}),
    "data": fields(DATA),
    "training": allow_null(fields(TRAINING)),
    "prior": allow_null(is_digest),
    "claims": check_list(CLAIM),
    "digest": is_digest,
    "signature": lambda value: type(value) is dict,
}
# Since version 2, a certificate names the original, the data and the command, and says what was required of it.
NAME: dict[str, Check] = {"name": is_text}
GIVEN: dict[str, Check] = {"given": is_count(1, MOST_SAMPLES)}  # where some are equal, more than count
VERSION_2: dict[str, Check] = VERSION_1 | {
    "certificate": is_count(2, 2),
    "command": allow_null(is_text),
    "requirements": check_list(REQUIREMENT),
    "settings": fields(SETTINGS | {"sequential": is_flag}),
    "network": fields(NAME | {"just_initialised": is_flag} | NETWORK),
    "data": fields(NAME | DATA | GIVEN),
    "training": allow_null(fields(NAME | TRAINING | GIVEN)),
    "accuracy": allow_null(fields({"before": is_rate, "after": is_rate, "guessing": is_rate})),
    "notes": check_list(is_text),
}
FORMS = {1: VERSION_1, 2: VERSION_2}


def check_form(content: Any, called: str) -> None:
    """Raise CorruptArtifact for what is not the content of a certificate."""
    if not isinstance(content, dict) or "certificate" not in content:
        raise CorruptArtifact(f"{called} is not a certificate of tamis")
    version = content["certificate"]
    if type(version) is not int or version not in FORMS:
        known = " or ".join(map(str, FORMS))
        raise CorruptArtifact(f"{called} is a certificate of version {version!r:.50}, and not {known}")
    if wrong := list_wrong_fields(content, FORMS[version], optional=("signature",)):
        raise CorruptArtifact(f"{called} is no certificate of tamis: its {', '.join(map(repr, wrong))[:200]} cannot be")


def store_finite(value: float) -> float | None:
    """Return a number as a certificate can hold it; None for one that is too large."""
    return float(value) if abs(value) <= LARGEST_FLOAT else None
