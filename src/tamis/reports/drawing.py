"""Drawings are inline SVG that takes its colours from the page.

Each has a title and a description for screen readers. Drawing needs no other package, and a drawing takes a few
kilobytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 22, 40  # around the panel: room for labels
MOST_TICKS = 6


@dataclass(frozen=True)
class Axis:
    """An axis maps numbers to places between two ends of a line.

    Attributes:
        low, high: the numbers at the ends; for logarithms, their powers of ten.
        start, end: the ends, in the drawing's own units.
        logarithmic: whether equal distances are equal ratios.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    @classmethod
    def around(
        cls, values: Sequence[float], start: float, end: float, logarithmic: bool = False, from_zero: bool = False
    ) -> Axis:
        """Make an axis on which all these values lie, with a little room beside them."""
        plain = [math.log10(value) for value in values] if logarithmic else list(values)
        low, high = min([*plain, 0.0] if from_zero else plain), max(plain)
        # A little room at both ends. Where all values are equal, an axis still needs a length.
        room = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
        # Bars stand on the line of 0, without room below it.
        return cls(0.0 if from_zero and low == 0 else low - room, high + room, start, end, logarithmic)

    def at(self, value: float) -> float:
        """Return the place of a number."""
        plain = math.log10(value) if self.logarithmic else value
        return self.start + (plain - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """List round numbers on the axis, each with its label."""
        step = _choose_round_step((self.high - self.low) / MOST_TICKS, whole=self.logarithmic)
        # 1e-9 forgives the rounding of the division, which could lose a tick at an end.
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        steps = [number * step for number in range(first, last + 1)]
        if self.logarithmic:
            return [(10.0**power, _format_power_of_ten(round(power))) for power in steps]
        # Rounded, so that three steps of 0.1 read 0.3, and what should be 0 does not read 1e-17.
        return [(value, f"{round(value, 12):,g}") for value in steps]


def _choose_round_step(least: float, whole: bool) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least this large; at least 1 if `whole`."""
    # For a span of 37 and six ticks: at least 6.2 apart, so a power of 1, and the step 10.
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    return max(step, 1.0) if whole else step


def _format_power_of_ten(power: int) -> str:
    raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return {0: "1", 1: "10", 2: "100", 3: "1,000"}.get(power, f"10{raised}")


@dataclass(frozen=True)
class Point:
    """A point has a name, which appears under the pointer; `kind` is the class that colours it."""

    x: float
    y: float
    name: str
    kind: str = "point"


@dataclass(frozen=True)
class Bars:
    """A strip of a chart has a bar for each layer.

    Attributes:
        title: what the bars show, with the unit.
        values: one for each layer; None where there is nothing to show.
        written: the same as they are written for people.
        ghosts: taller bars behind them, as what was there before; or nothing.
    """

    title: str
    values: Sequence[float | None]
    written: Sequence[str]
    ghosts: Sequence[float] = ()


def draw_bar_strips(names: Sequence[str], strips: Sequence[Bars], title: str, description: str) -> str:
    """Draw strips of bars, one below the other, which share one place for each name."""
    each, gap = 84, 30
    height = len(strips) * (each + gap) + 20
    parts = []
    for number, strip in enumerate(strips):
        top = number * (each + gap) + gap
        parts.append(_draw_strip(names, strip, top, top + each))
    parts.append(_draw_text(LEFT, height - 4, f"layers, from {names[0]} to {names[-1]}" if names else "", "start"))
    return _wrap_svg(height, title, description, parts)


def _draw_strip(names: Sequence[str], strip: Bars, top: float, bottom: float) -> str:
    # Those before are part of the scale: a bar is to be compared with the one behind it.
    heights = [value for value in [*strip.values, *strip.ghosts] if value is not None]
    axis = Axis.around(heights or [0.0], bottom, top, from_zero=True)
    width = (WIDTH - LEFT - RIGHT) / max(len(names), 1)
    parts = [_draw_text(LEFT, top - 8, strip.title, "start", "heading")]
    # Two lines are enough: the bars themselves say their numbers under the pointer.
    for level in (0.0, max(heights, default=0.0)):
        parts.append(_draw_text(LEFT - 6, axis.at(level) + 4, _shorten(level), "end"))
        parts.append(_draw_line(LEFT, axis.at(level), WIDTH - RIGHT, axis.at(level)))
    for place, name in enumerate(names):
        # A little room on both sides of a bar, also where there are hundreds of them.
        x, wide = LEFT + (place + 0.12) * width, 0.76 * width
        if strip.ghosts:
            parts.append(_draw_rectangle(x, axis.at(strip.ghosts[place]), wide, bottom, "ghost"))
        value = strip.values[place]
        if value is not None:
            label = f"{name}: {strip.written[place]}"
            parts.append(_draw_rectangle(x, axis.at(value), wide, bottom, "bar", label))
    return "".join(parts)


def draw_cloud(x: Sequence[float], y: Sequence[float], xlabel: str, ylabel: str, title: str, description: str) -> str:
    """Draw many points without names, on logarithmic axes."""
    height = 360
    across, up = _make_axes(x, y, height, True, True)
    # Lines without length, which round ends make dots: far fewer bytes than a circle for each.
    dots = "".join(f"M{across.at(a):.1f} {up.at(b):.1f}h0" for a, b in zip(x, y, strict=True))
    return _wrap_svg(
        height, title, description, [_draw_frame(across, up, xlabel, ylabel), f'<path class="cloud" d="{dots}"/>']
    )


def draw_named_points(
    points: Sequence[Point], xlabel: str, ylabel: str, title: str, description: str, logarithmic_x: bool = False
) -> str:
    """Draw points with names, and a line through those of the kind "front", from left to right."""
    height = 360
    across, up = _make_axes([p.x for p in points], [p.y for p in points], height, logarithmic_x, False)
    # From left to right, or the line would go to and fro.
    front = sorted((p.x, p.y) for p in points if "front" in p.kind)
    way = "L".join(f"{across.at(x):.1f} {up.at(y):.1f}" for x, y in front)
    parts = [_draw_frame(across, up, xlabel, ylabel), f'<path class="front" d="M{way}"/>' if len(front) > 1 else ""]
    for point in points:
        # A tenth of a unit is less than a pixel; more digits would only make the page larger.
        place = f'cx="{across.at(point.x):.1f}" cy="{up.at(point.y):.1f}"'
        parts.append(f'<circle class="{point.kind}" {place} r="4"><title>{escape(point.name)}</title></circle>')
    return _wrap_svg(height, title, description, parts)


# -- pieces ------------------------------------------------------------------------------------------------------------


def _make_axes(x: Sequence[float], y: Sequence[float], height: float, log_x: bool, log_y: bool) -> tuple[Axis, Axis]:
    return (
        Axis.around(x, LEFT, WIDTH - RIGHT, logarithmic=log_x),
        Axis.around(y, height - BOTTOM, TOP, logarithmic=log_y),
    )


def _draw_frame(across: Axis, up: Axis, xlabel: str, ylabel: str) -> str:
    parts = [_draw_text((across.start + across.end) / 2, up.start + 34, xlabel, "middle")]
    # Above the axis and not turned by 90°, where people read it more easily.
    parts.append(_draw_text(LEFT - 58, TOP - 8, ylabel, "start"))
    for value, written in across.ticks():
        parts.append(_draw_line(across.at(value), up.start, across.at(value), up.end))
        parts.append(_draw_text(across.at(value), up.start + 16, written, "middle"))
    for value, written in up.ticks():
        parts.append(_draw_line(across.start, up.at(value), across.end, up.at(value)))
        parts.append(_draw_text(across.start - 6, up.at(value) + 4, written, "end"))
    return "".join(parts)


def _wrap_svg(height: float, title: str, description: str, parts: Sequence[str]) -> str:
    """Wrap the parts into one drawing; a screen reader reads its title and description, not the numbers at the axes."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(f"{title}. {description}")}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _draw_text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _draw_line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="grid" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def _draw_rectangle(x: float, top: float, width: float, bottom: float, kind: str, name: str = "") -> str:
    title = f"<title>{escape(name)}</title>" if name else ""
    # A bar of height 0 still has a line to point at, which shows its number.
    size = f'x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{max(bottom - top, 0.5):.1f}"'
    return f'<rect class="{kind}" {size}>{title}</rect>'


def _shorten(value: float) -> str:
    """Write a number at an axis with three digits, and a letter for thousands and more."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"
