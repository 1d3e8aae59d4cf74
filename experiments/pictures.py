"""Pictures of stored figures: SVG files that are small, since a repository carries them for ever.

Letters are letters, not outlines of letters, and nothing is written that no viewer shows.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from io import BytesIO
from pathlib import Path

from tamis.artifact import replace_file
from tamis.errors import InvalidInput
from tamis.reports import line_panels
from tamis.reports.figures import Panel

# Of an SVG file as matplotlib writes it:
NUMBER = re.compile(r"-?\d+\.\d+")
COORDINATES = re.compile(r'\b(?:d|x|y|width|height|transform)="[^"]*"')
MARKER = re.compile(r'<path id="(\w+)" [^>]*style="([^"]*)"/>')
PIXELS = re.compile(r"(?<=data:image/png;base64,)[^\"]*")
USE = re.compile(r'(<use xlink:href="#(\w+)"[^>]*?) style="([^"]*)"(?=/>)')
UNSEEN = (
    re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL),
    re.compile(r"<!--.*?-->\s*", re.DOTALL),
    re.compile(r'(?<=<g) id="[^"]*"'),
    re.compile(r"^ +", re.MULTILINE),
    re.compile(r"(?<=<g>)\n|(?<=<text>)\n|(?<=</tspan>)\n|\n(?=</g>)"),
    re.compile(r"; font-family: [^\";]*"),
    re.compile(r' transform="rotate\(-0 [^"]*"'),
)
COLOURS = 32
FONTS = "text{font-family: 'DejaVu Sans', Verdana, sans-serif}"


def draw(drawing: Callable[[Path], object], path: Path) -> None:
    """Have a picture drawn as a small SVG file; without matplotlib there is none, and the figures in numbers are safe.

    Args:
        drawing: writes the picture to the path that it is given.
        path: of the picture.
    """
    try:
        with _write_letters_as_text():
            drawing(path)
    except InvalidInput as error:
        print(f"no picture was drawn: {error}")
        return
    text = path.read_text(encoding="utf-8")
    with replace_file(path) as part:
        part.write_text(shorten(text), encoding="utf-8")


def draw_panels(panels: Sequence[Panel], path: Path) -> None:
    """Have panels of lines drawn, as `draw` does."""
    draw(lambda place: line_panels(panels, place), path)


def shorten(svg: str) -> str:
    """Return the same picture in less text.

    Coordinates go to a hundredth of a point, paths and groups into few lines, and pixels to a palette. What matplotlib
    writes and nothing refers to goes: metadata, comments, names of groups, indentation, turns by 0°, and a style at
    each use of a marker that has this style itself. Fonts are named once for all letters.
    """
    for pattern in UNSEEN:
        svg = pattern.sub("", svg)
    svg = COORDINATES.sub(lambda match: _round_numbers(match[0]), svg).replace("</style>", f"{FONTS}</style>", 1)
    svg = PIXELS.sub(lambda match: _apply_palette(match[0]), svg)
    styles = dict(MARKER.findall(svg))
    return USE.sub(lambda use: use[1] if styles.get(use[2]) == use[3] else use[0], svg)


def _round_numbers(coordinates: str) -> str:
    rounded = NUMBER.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), coordinates)
    return " ".join(rounded.split()).replace(' "', '"')


def _apply_palette(encoded: str) -> str:
    """Return a PNG image of few colours, such as dots of one ink, with a byte a pixel instead of four."""
    from PIL import Image  # there with matplotlib, which drew the image

    image, smaller = Image.open(BytesIO(b64decode(encoded))), BytesIO()
    image.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(smaller, "PNG", optimize=True)
    return b64encode(smaller.getvalue()).decode()


def _write_letters_as_text() -> AbstractContextManager[None]:
    """Let matplotlib write letters; without it `drawing` is what says that it is missing."""
    try:
        from matplotlib import rc_context
    except ImportError:
        return nullcontext()
    return rc_context({"svg.fonttype": "none"})
