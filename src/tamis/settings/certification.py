"""The settings of `tamis.certify` say how sure a certificate is, what it speaks of, and what it must show."""

from __future__ import annotations

from dataclasses import dataclass

from tamis.settings.field import setting


@dataclass(frozen=True)
class Certification:
    """These settings of `tamis.certify` say how sure a certificate is, what it speaks of, and what it must show."""

    delta: float = setting("The probability that any of the claims may be wrong.", 0.05, typed=float, metavar="DELTA")
    candidates: int = setting(
        "If the small network was chosen by the held-out data: among how many networks, itself among them. It pays for "
        "choosing the best of networks that were made without that data, not for making new ones after a look at the "
        "result.",
        1,
        typed=int,
        metavar="N",
    )
    coverage: float = setting(
        "How far outputs move is said for this part of all inputs.", 0.95, typed=float, metavar="PART"
    )
    radius: float | None = setting(
        "Also prove how far outputs move when inputs change by at most this much in each entry.",
        None,
        typed=float,
        metavar="R",
    )
    boxed: int = setting("With `radius`: for how many of the first inputs.", 8, typed=int, metavar="N")
    sequential: bool = setting(
        "The claims of held-out data shall hold however often you look again as samples come in: certify the first "
        "samples again and again, and stop whenever you like. Without it, one look is all there may be.",
        False,
        typed=bool,
    )
    max_accuracy_drop: float | str | None = setting(
        "Require that at most so much accuracy is lost, as 0.01, 1% or 1pt: PASS or FAIL by the certified bound, not "
        "by the rate that was measured. The certificate is issued either way.",
        None,
        metavar="RATE",
    )
    max_disagreement: float | str | None = setting(
        "Require that at most so many answers differ, as 0.02 or 2%: PASS or FAIL by the certified bound.",
        None,
        metavar="RATE",
    )
