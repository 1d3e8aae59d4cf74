"""The settings of `tamis.kronecker.replace` say what the factors of a layer begin with."""

from __future__ import annotations

from dataclasses import dataclass

from tamis.settings.field import setting


@dataclass(frozen=True)
class Factorization:
    """These settings of `tamis.kronecker.replace` say which layers get factors, and what those begin with."""

    begin: str = setting(
        "Products nearest to the weights, or drawn anew for training.",
        "factorized",
        choices=("factorized", "scratch"),
    )
    convolutions: bool = setting("Replace convolutions, too.", False, typed=bool)
    refine: int = setting("Steps of L-BFGS after a factorization.", 0, typed=int, metavar="N")
    seed: int = setting("Of what is drawn.", 0, typed=int, metavar="N")
