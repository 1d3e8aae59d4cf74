"""Notes say what a reader of a certificate should know of its data and its original before the claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tamis.bounds import smallest_rate

VERSION_1 = (
    "The certificate is of version 1, which does not say whether the original was trained, and whose issuer may have "
    "chosen that version: prefer one of version 2."
)
INITIALISED = "The weights of the original network were just initialised at random: nothing was trained."
DOUBT = 0.01  # the probability that a network which only guesses is taken for one that does better


def notes_of(content: Mapping[str, Any]) -> list[str]:
    """Write the notes that follow from what a certificate says of its data: a verifier can write them again."""
    notes = [
        INITIALISED if content["network"]["just_initialised"] else None,
        _note_guessing(content),
        _note_copies(content["data"], "held-out"),
        _note_copies(content["training"], "training"),
    ]
    return [note for note in notes if note is not None]


def _note_copies(data: Mapping[str, Any] | None, called: str) -> str | None:
    if data is None or data["given"] == data["samples"]:
        return None
    return (
        f"Of {data['given']:,} {called} samples given, {data['samples']:,} are distinct: so many count, and "
        "of all that were given the worst."
    )


def _note_guessing(content: Mapping[str, Any]) -> str | None:
    accuracy, given = content["accuracy"], content["data"]["given"]
    if accuracy is None:
        return None
    right, guessed = (round(accuracy[name] * given) for name in ("before", "guessing"))
    return write_guessing_note(right, guessed, given)


def write_guessing_note(right: int, guessed: int, given: int) -> str | None:
    """Write a note where the original may as well answer the most frequent class each time, as an untrained one.

    Args:
        right: on how many samples the original is right.
        guessed: how many samples are of the most frequent class.
        given: how many samples there are.
    """
    if smallest_rate(right, given, math.log(DOUBT)) > guessed / given:
        return None
    return (
        f"The original network is right on {right:,} of {given:,} samples, and whoever always answers the "
        f"most frequent class on {guessed:,}: it cannot be told from guessing. Are its weights trained ones?"
    )
