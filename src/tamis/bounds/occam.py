"""A short description of a network bounds its error rate, from its errors on the very data it was trained on."""

from __future__ import annotations

import math
from numbers import Integral

from tamis.bounds.binomial import check_counts, check_probability, is_number, largest_rate
from tamis.bounds.bound import Bound, log_rounded_up
from tamis.errors import InvalidInput


def occam(errors: int, n: int, bits: float, delta: float, candidates: int = 1, trivial: float = 1.0) -> Bound:
    """With confidence 1 − δ, the probability of an error is at most `value`: Occam's razor for one coded network.

    value = max {p : P[Bin(n, p) ≤ errors] ≥ δ·2^−bits / candidates}. It holds for all networks of the code at once,
    hence for the one that training and compression chose after seeing the data. A longer code never gives a
    smaller bound.

    Args:
        errors: how many training inputs, as they are without augmentation, the network gets wrong.
        n: how many training inputs there are.
        bits: the length of the network's code word, in a prefix-free code.
        delta: the probability with which the statement may fail.
        candidates: how many such codes it was chosen among, where the bits do not say which.
        trivial: the error rate of guessing, such as 0.9 for ten equally frequent classes; what is not below says
            nothing.

    Example:
        >>> round(occam(errors=1_800, n=60_000, bits=1_900, delta=0.05).value, 3)
        0.08

    Reference: langford2005tutorial.
    """
    n, errors = check_counts(n, errors=errors)
    delta = check_probability("delta", delta)
    if not is_number(bits) or bits < 0:
        raise InvalidInput(f"the length of a code word must be a finite number of at least 0, got bits={bits!r}")
    if isinstance(candidates, bool) or not isinstance(candidates, Integral) or candidates < 1:
        raise InvalidInput(f"candidates must be a whole number of at least 1, got candidates={candidates!r}")
    if not is_number(trivial) or not 0 < trivial <= 1:
        raise InvalidInput(f"trivial, the error rate of guessing, must be in (0, 1], got trivial={trivial!r}")
    bits, candidates, trivial = float(bits), int(candidates), float(trivial)
    # Kraft: the 2^−bits of a prefix-free code add up to at most 1, so that δ·2^−bits for each network is δ for all of
    # them. In logarithms, since 2^−bits is far below float64.
    log_delta = math.log(delta) - bits * math.log(2) - math.log(candidates)
    value = largest_rate(errors, n, log_delta)
    return Bound(
        value=value,
        log_value=log_rounded_up(value),
        informative=value < trivial,
        source="langford2005tutorial, Occam's razor bound",
        assumptions=(
            "the training inputs and their labels are independent draws from the distribution that the rate is meant "
            "for",
            "the errors are counted on the training set itself, without augmentation",
            "the code is prefix-free and was fixed before the training data was seen",
            "everything that the decoder needs to restore the network is counted in the bits",
        ),
        terms={
            "errors": errors,
            "n": n,
            "bits": bits,
            "delta": delta,
            "candidates": candidates,
            "trivial": trivial,
            "observed": errors / n,
            "log_delta": log_delta,
        },
    )
