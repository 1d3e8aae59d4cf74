"""An alphabet has the levels that a quantized weight may take, and a rule for the scale that they are stretched to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

import torch
from torch import Tensor

from tamis.artifact import FEWEST_LEVELS, MOST_LEVELS
from tamis.errors import InvalidInput

Radius = Literal["median", "max", "least_squares", "given"]
# Candidates for the multiple of max |w| that nearest rounding does best with; its error is not convex in the multiple.
FRACTIONS = torch.linspace(0.05, 1.0, 96, dtype=torch.float64)


@dataclass(frozen=True)
class Alphabet:
    """An alphabet is a sorted list of levels, with a rule by which the weights give the scale α that multiplies them.

    Attributes:
        levels: ascending and distinct; for equispaced ones −1 + 2j/(M−1), j = 0 … M−1 (GPFQ, section 6).
        radius: what α is a multiple of: "median" of |w| (the paper), "max" of |w|, "least_squares" (the α for which
            nearest rounding loses least), or "given", where the levels are meant as they are and α is 1.

    Example:
        >>> make_equispaced(3).levels, Alphabet((-0.5, 0.0, 0.25)).radius
        ((-1.0, 0.0, 1.0), 'given')
    """

    levels: tuple[float, ...]
    radius: Radius = "given"

    def __post_init__(self) -> None:
        if not FEWEST_LEVELS <= len(self.levels) <= MOST_LEVELS:
            count = len(self.levels)
            raise InvalidInput(
                f"an alphabet has {FEWEST_LEVELS} to {MOST_LEVELS} levels, got {count}: {self.levels!s:.80}"
            )
        if any(not isinstance(level, Real) or not math.isfinite(level) for level in self.levels):
            raise InvalidInput(f"levels must be finite numbers, got {self.levels!s:.80}")
        if any(low >= high for low, high in zip(self.levels, self.levels[1:], strict=False)):
            raise InvalidInput(f"levels must be sorted and distinct, got {self.levels!s:.80}")
        _check_radius(self.radius)

    def tensor(self, like: Tensor) -> Tensor:
        """Return the levels in the dtype, and on the device, of a weight."""
        # Levels that differ in float64 may fall together in the weight's dtype, and would then waste an index.
        levels = torch.tensor(self.levels, dtype=like.dtype, device=like.device)
        if not levels.isfinite().all() or (levels[1:] <= levels[:-1]).any():
            raise InvalidInput(
                f"in {like.dtype}, which the weights are in, levels are not finite and ascending any more: "
                f"{self.levels!s:.80}"
            )
        return levels

    def radii(self, weights: Tensor) -> Tensor:
        """Compute α for C_α = 1, for each unit.

        Args:
            weights: (units, weights of each); NaN for those that are pruned.
        """
        if self.radius == "given":
            return weights.new_ones(len(weights))
        found = _compute_median(weights) if self.radius == "median" else weights.abs().nan_to_num(0.0).amax(1)
        if self.radius == "least_squares":
            found = found * _find_best_fraction(weights, found, self.tensor(weights))
        # A unit of zeros has no scale of its own: a tiny one keeps it as near to zero as the levels allow.
        return torch.where(found > 0, found, 2.0**-100)


def make_equispaced(count: int, radius: Radius = "median") -> Alphabet:
    """Make the alphabet α · {−1 + 2j/(M−1) : j = 0 … M−1} (GPFQ, section 6; ERRATA 10)."""
    if isinstance(count, bool) or not isinstance(count, Integral) or not FEWEST_LEVELS <= count <= MOST_LEVELS:
        raise InvalidInput(
            f"levels={count!r} must be a whole number from {FEWEST_LEVELS} to {MOST_LEVELS}, or a list of levels"
        )
    steps = int(count) - 1
    # One division of whole numbers makes level j exactly minus level M − 1 − j; −1 + 2j/(M−1), evaluated as it is
    # printed, rounds twice and is not symmetric for every M.
    return Alphabet(tuple((2 * j - steps) / steps for j in range(steps + 1)), radius)


def parse_alphabet(levels: int | Iterable[float] | Alphabet | None, bits: int | None, radius: Radius) -> Alphabet:
    """Make the alphabet that the arguments of `tamis.quantize` mean.

    They are a number of levels, a list of them, or bits for 2^bits levels.
    """
    if (levels is None) == (bits is None):
        raise InvalidInput(f"give either levels or bits, got {levels=} and {bits=}")
    _check_radius(radius)
    if bits is not None:
        if isinstance(bits, bool) or not isinstance(bits, Integral) or not 1 <= bits <= 16:
            raise InvalidInput(f"bits={bits!r} must be a whole number from 1 to 16")
        return make_equispaced(2 ** int(bits), radius)
    if isinstance(levels, Alphabet):
        return levels
    if isinstance(levels, Iterable):
        try:
            return Alphabet(tuple(float(level) for level in levels))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{levels=} must be a whole number, or a sorted list of numbers") from error
    return make_equispaced(levels, radius)  # type: ignore[arg-type]  # whatever it is, it is refused there by its value


def _check_radius(radius: str) -> None:
    if radius not in ("median", "max", "least_squares", "given"):
        raise InvalidInput(f"radius must be median, max, least_squares or given, got {radius!r}")


def _compute_median(weights: Tensor) -> Tensor:
    """Compute the median of |w|; of the non-zero ones, where half or more are zero."""
    magnitudes = weights.abs()
    nonzero = magnitudes.masked_fill(magnitudes == 0, math.nan)
    # A median of zero would make every level zero: a unit of which half are zeros is measured by the rest.
    median = _compute_nan_median(magnitudes)
    return torch.where(median > 0, median, _compute_nan_median(nonzero))


def _compute_nan_median(values: Tensor) -> Tensor:
    """Compute the median of the numbers in each row: the mean of the middle two if even in number, 0 if none."""
    ordered, count = values.sort(1).values, values.isfinite().sum(1, keepdim=True)  # NaNs come last
    last = (count - 1).clamp_min(0)
    middle = torch.cat([last // 2, torch.minimum(count // 2, last)], 1)
    return ordered.gather(1, middle).mean(1).nan_to_num(0.0)


def _find_best_fraction(weights: Tensor, largest: Tensor, levels: Tensor) -> Tensor:
    """Find the fraction of max |w| for which nearest rounding has the least squared error, for each unit."""
    # The nearest level changes half-way between two: counting the middles below a weight gives its index.
    middles = (levels[1:] + levels[:-1]) / 2
    weights = weights.contiguous()  # torch.bucketize warns about others
    errors = []
    for fraction in FRACTIONS.to(weights):
        scale = (largest * fraction).clamp_min(1e-300)[:, None]  # a unit of zeros must not divide 0 by 0
        errors.append((weights - levels[torch.bucketize(weights / scale, middles)] * scale).square().nansum(1))
    return FRACTIONS.to(weights)[torch.stack(errors).argmin(0)]
