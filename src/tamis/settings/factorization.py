"""The settings of `tamis.kronecker.replace` say which layers get factors, and what those begin with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tamis.settings.field import setting


@dataclass(frozen=True)
class Factorization:
    """These settings of `tamis.kronecker.replace` say which layers get factors, and what those begin with."""

    keep: str | Iterable[str] = setting(
        "Which layers stay dense: names or patterns, as head or blocks.*.attn.", (), metavar="LAYERS"
    )
    begin: str = setting(
        "What factors begin with: factorized, the products nearest to the weights; or scratch, drawn anew for "
        "training.",
        "factorized",
        choices=("factorized", "scratch"),
    )
    convolutions: bool = setting("Replace convolutions without groups, too.", False, typed=bool)
    refine: int = setting(
        "How many steps of L-BFGS on the error follow a factorization; for two factors there is nothing to gain.",
        0,
        typed=int,
        metavar="N",
    )
    seed: int = setting("The seed of what is drawn.", 0, typed=int, metavar="N")
