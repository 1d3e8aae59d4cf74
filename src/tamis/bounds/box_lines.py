"""Lines bound functions of one neuron here, and how far these take two networks apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from tamis.bounds.directed_rounding import multiply, multiply_up, rounding_of
from tamis.bounds.interval import Interval
from tamis.bounds.interval_pointwise import Pointwise
from tamis.bounds.joint_interval import Joint, find_hull_slopes


@dataclass(frozen=True)
class Line:
    """A line is (z, d) ↦ z_slope · z + d_slope · d + offset, for every neuron; an infinite offset says nothing."""

    z_slope: Tensor
    d_slope: Tensor
    offset: Tensor

    def __neg__(self) -> Line:
        return Line(-self.z_slope, -self.d_slope, -self.offset)

    def at(self, z: Tensor, d: Tensor) -> Tensor:
        return self.z_slope * z + self.d_slope * d + self.offset

    def where(self, chosen: Tensor, otherwise: Line) -> Line:
        """Return this line for the neurons that are chosen, another one for the rest."""
        return Line(
            torch.where(chosen, self.z_slope, otherwise.z_slope),
            torch.where(chosen, self.d_slope, otherwise.d_slope),
            torch.where(chosen, self.offset, otherwise.offset),
        )


@dataclass(frozen=True)
class Lines:
    """`Lines` lie above and below f(z), and above and below f(z') − f(z)."""

    above: Line
    below: Line
    apart_above: Line
    apart_below: Line


def lines(function: Pointwise, x: Joint, result: Joint) -> Lines:
    """Return linear bounds, on the joint interval `x`, of a function of one neuron whose `result` intervals hold.

    Of several lines that hold, each neuron takes the one that is tightest at the centre of its intervals, which is the
    one that is tightest on average.
    """
    above, below = (
        _find_line_above(function, x.mine, result.mine),
        -_find_line_above(function, x.mine, result.mine, -1.0),
    )
    other_above = _find_line_above(function, x.other, result.other)
    other_below = -_find_line_above(function, x.other, result.other, -1.0)
    # None of the three is always the best: the chord sees how steep f is where z and z' lie and is exact for one slope;
    # the constant is the joint interval, which maxima and saturation make narrow; and lines of both networks apart win
    # where they are far from each other, so that d says little.
    apart_above = [
        _draw_chord_of_slopes(function, x),
        _draw_constant(result.apart.high),
        _subtract(other_above, below),
    ]
    apart_below = [  # above f(z) − f(z')
        _draw_chord_of_slopes(function, x, -1.0),
        _draw_constant(-result.apart.low),
        _subtract(-other_below, -above),
    ]
    return Lines(above, below, _choose_lowest(apart_above, x), -_choose_lowest(apart_below, x))


def _find_line_above(function: Pointwise, x: Interval, result: Interval, sign: float = 1.0) -> Line:
    """Return a line above sign · f on an interval."""
    slopes = [sign * slope for slope in function.slopes(x.low, x.high)]
    smallest, largest = torch.minimum(*slopes), torch.maximum(*slopes)
    # Where `run` rounds, f may be a little higher at an end.
    ends = [value + function.rounding(value) for value in (sign * function.run(x.low), sign * function.run(x.high))]
    top = _draw_constant(result.high if sign > 0 else -result.low)
    # −f is convex where f is concave. On a single point the chord would divide by zero.
    convex = function.curvature(x.low, x.high)[0 if sign > 0 else 1] & (x.high > x.low)
    candidates = [
        # f minus its smallest slope rises, and f minus its largest falls: each is largest at one end.
        _draw_line_through(smallest, x.high, ends[1]),
        _draw_line_through(largest, x.low, ends[0]),
        top,
        _draw_chord(x, (ends[0], ends[1])).where(convex, top),
    ]
    nothing = torch.zeros_like(x.low)
    return _choose_lowest(candidates, Joint(x, x, Interval(nothing, nothing)))


def _draw_line_through(slope: Tensor, place: Tensor, value: Tensor) -> Line:
    """Return the line through a point, raised by what its offset may have lost; silent at an infinite place."""
    product = multiply(slope, place)
    # Where both terms are exactly zero nothing is lost, and zero must stay zero: equal networks differ by nothing.
    positive = (value != 0) | ((slope != 0) & (place != 0))
    offset = value - product + rounding_of(value.abs() + product.abs(), positive)
    # `multiply` made 0 · ∞ zero, so a flat line through an infinite place is one that its value alone decides.
    known = offset.isfinite() & (place.isfinite() | (slope == 0))
    nothing = torch.zeros_like(slope)
    return Line(torch.where(known, slope, 0.0), nothing, torch.where(known, offset, torch.inf))


def _draw_constant(value: Tensor) -> Line:
    return Line(torch.zeros_like(value), torch.zeros_like(value), value)


def _draw_chord(x: Interval, ends: tuple[Tensor, Tensor]) -> Line:
    """Return the line through both ends, which is above a convex function."""
    slope = (ends[1] - ends[0]) / (x.high - x.low).clamp(min=torch.finfo(torch.float64).tiny)
    slope = torch.where(slope.isfinite(), slope, 0.0)  # any slope will do, if the line is above both ends
    first, second = (
        _draw_line_through(slope, place, value) for place, value in zip((x.low, x.high), ends, strict=True)
    )
    # Rounding the slope takes the line through one end off the other: the higher of both is above either end.
    known = first.offset.isfinite() & second.offset.isfinite()
    return Line(torch.where(known, slope, 0.0), first.d_slope, torch.maximum(first.offset, second.offset))


def _draw_chord_of_slopes(function: Pointwise, x: Joint, sign: float = 1.0) -> Line:
    """Return a line in d above sign · (f(z') − f(z)): the chord of max(m d, M d) with the extreme slopes m and M."""
    first, second = (sign * slope for slope in find_hull_slopes(function, x))
    d, nothing = x.apart, torch.zeros_like(first)
    # f(z') − f(z) = s d with a slope s between m and M, so it is at most max(m d, M d), which is convex in d: a chord
    # between the ends of d's interval lies above it.
    low, high = (torch.maximum(multiply_up(first, end), multiply_up(second, end)) for end in (d.low, d.high))
    chord = _draw_chord(d, (low, high))
    # `_draw_chord` knows one variable, whose slope it calls that of z; here this variable is d. Where d is a single
    # point, the slope of the chord is 0 / tiny = 0, and it is this constant.
    chord = Line(nothing, chord.z_slope, chord.offset).where(d.high > d.low, _draw_constant(chord.offset))
    # With one slope alone f(z') − f(z) = m d exactly, without an offset that a chord's rounding would bring.
    return Line(nothing, first, nothing).where(first == second, chord)


def _subtract(other_above: Line, below: Line) -> Line:
    """Subtract a line below f(z) from one above f(z'), with z' = z + d."""
    # a (z + d) + b − (a₀ z + b₀) = (a − a₀) z + a d + (b − b₀): the slope of z' counts for z and for d alike.
    offset = other_above.offset - below.offset
    lost = rounding_of(other_above.offset.abs() + below.offset.abs(), offset != 0)
    return Line(other_above.z_slope - below.z_slope, other_above.z_slope, offset + lost)


def _choose_lowest(candidates: list[Line], x: Joint) -> Line:
    """Return for each neuron the line that is lowest at the centre; of equal ones the first."""

    # Any of the candidates holds on the whole interval; only which one is chosen depends on this place.
    z, d = x.mine.centre, x.apart.centre

    def lower(best: Line, line: Line) -> Line:
        # A line that says nothing, or whose value is too large for float64, gives way to any other.
        return line.where((line.at(z, d) < best.at(z, d)) | ~best.at(z, d).isfinite(), best)

    return reduce(lower, candidates)
