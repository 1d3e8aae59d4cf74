"""A plan is what the settings of a quantization come to: a method, an alphabet, and the scales to try."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph import as_patterns
from tamis.quantization.alphabet import Alphabet, parse_alphabet
from tamis.quantization.problem import Order
from tamis.quantization.quantizer import Quantizer, quantizer_of
from tamis.settings import Quantization

LEVELS = 3  # unless the user names levels or bits
# Candidates for C_α where it is searched for, from binary levels to those of many bits.
FRACTIONS_OF_RADIUS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)  # of max |w|, or of what fits it best
MULTIPLES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.5, 10.0)


@dataclass(frozen=True)
class Plan:
    """A plan has the settings of a quantization, and the objects that those which are names or numbers stand for.

    Attributes:
        settings: as the user gave them.
        method: the quantizer.
        alphabet: the levels.
        multiples: candidates for C_α; each unit takes the one that does best on held-out data.

    Example:
        >>> plan = Plan.of(Quantization(bits=2, method="gpfq"))
        >>> plan.alphabet.levels[-1], plan.order, plan.fits_scales
        (1.0, 'natural', False)
    """

    settings: Quantization
    method: Quantizer
    alphabet: Alphabet
    multiples: tuple[float, ...]

    @classmethod
    def of(cls, settings: Quantization) -> Plan:
        """Make the plan of settings, and raise InvalidInput for those that name nothing."""
        method, levels = quantizer_of(settings.method), settings.levels
        levels = LEVELS if levels is None and settings.bits is None else levels
        alphabet = parse_alphabet(levels, settings.bits, settings.radius)
        return cls(settings, method, alphabet, _read_multiples(settings.c_alpha, alphabet))

    @property
    def order(self) -> Order:
        """Return in which order a neuron's weights are chosen: the user's, or else the method's."""
        return self.settings.order or self.method.order

    @property
    def bias_correction(self) -> bool:
        """Return whether a bias, or the batch-norm that follows, keeps the means of the outputs."""
        asked = self.settings.bias_correction
        return self.method.bias_correction if asked is None else asked

    @property
    def fits_scales(self) -> bool:
        """Return whether scales may be moved by least squares: not where the user, or a search, has named the one."""
        return self.method.improves and len(self.multiples) > 1

    def describe(self) -> dict[str, Any]:
        """Return the entries that a recipe has for it, in plain numbers and texts."""
        settings = self.settings
        return {
            "levels": list(self.alphabet.levels),
            "radius": self.alphabet.radius,
            "c_alpha": list(self.multiples),
            "search": settings.search,
            "method": self.method.name,
            "per": settings.per,
            "conv": settings.conv,
            "order": self.order,
            "biases": settings.biases,
            "bias_correction": self.bias_correction,
            "include": list(as_patterns(settings.include)) or None,
            "exclude": list(as_patterns(settings.exclude)) or None,
        }


def _read_multiples(c_alpha: float | Iterable[float] | None, alphabet: Alphabet) -> tuple[float, ...]:
    """Return the candidates for C_α: those that the user gave, or a built-in list."""
    if alphabet.radius == "given":
        if c_alpha is not None:
            raise InvalidInput(f"levels {alphabet.levels!s:.80} are meant as they are: leave out {c_alpha=}")
        return (1.0,)
    if c_alpha is None:
        return MULTIPLES if alphabet.radius == "median" else FRACTIONS_OF_RADIUS
    # A tensor is Iterable, but one of a single number must not be iterated over: it is refused below by its value.
    multiples = tuple(c_alpha) if isinstance(c_alpha, Iterable) and not isinstance(c_alpha, Tensor) else (c_alpha,)
    if not multiples or not all(_is_positive(multiple) for multiple in multiples):
        raise InvalidInput(f"c_alpha={c_alpha!r} must be a positive number, or several to choose from")
    return tuple(float(multiple) for multiple in multiples)


def _is_positive(number: Any) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool) and 0 < float(number) < math.inf
