"""Lemma 2 of Yang bounds how large the outputs of an L1,∞-normalized network can be."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.bounds.bound import Bound, exp_rounded_up, log_of_product, log_rounded_up
from tamis.bounds.l1inf_class import IN_THE_BOX, VANISHES, check_class, lipschitz, log_largest


def l1inf_output(k: int, c: float, o: float | Sequence[float], activation: str = "relu") -> Bound:
    """Return a bound of ‖f(x)‖_∞ over all inputs x in [−1, 1]^m and all networks f of the class SN_{c,o} (Lemma 2):

        ‖f(x)‖_∞ ≤ ‖o‖_∞ max(1, (γ_σ c)^k).

    Args:
        k: how many hidden layers the networks have.
        c: the largest ℓ1-norm of a hidden neuron's incoming weights with its bias.
        o: the same norm of the output, or of each output.
        activation: "relu", "tanh" or "shifted sigmoid", whose Lipschitz constant is γ_σ.

    Example:
        >>> round(l1inf_output(k=2, c=3.0, o=0.5).value, 12)
        4.5

    Reference: yang2021l1inf.
    """
    check_class(k, c, o)
    widest = max(o) if isinstance(o, Sequence) else o
    log_layers = log_largest(k, c, activation)
    log_value = log_of_product(log_rounded_up(widest), log_layers)
    return Bound(
        value=exp_rounded_up(log_value),
        log_value=log_value,
        informative=True,  # nothing smaller is known of an output beforehand
        source="yang2021l1inf, Lemma 2",
        assumptions=(IN_THE_BOX,),
        checked=(VANISHES,),
        terms={
            "‖o‖_∞": widest,
            "max(1, (γ_σ c)^k)": exp_rounded_up(log_layers),
            "γ_σ": lipschitz(activation),
        },
    )
