"""Pictures of stored figures are small, and show what matplotlib's own do."""

import re
import sys
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from experiments.pictures import COLOURS, draw, draw_panels, shorten
from tamis.reports import line_panels
from tamis.reports.figures import Panel

PANELS = [
    Panel({"GPFQ": [(64, 0.33), (256, 0.18)], "MSQ": [(64, 0.5), (256, 0.4)]}, "N₀", "error", "a title", points=True)
]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("drawn") / "errors.svg"
    draw_panels(PANELS, path)
    return path.read_text(encoding="utf-8")


def test_a_picture_has_its_words_as_letters(picture: str) -> None:
    words = {"".join(text.itertext()).strip() for text in ElementTree.fromstring(picture).iter(f"{SVG}text")}
    assert {"GPFQ", "MSQ", "N₀", "error", "a title"} <= words


def test_a_picture_has_every_line_and_every_point(picture: str) -> None:
    lines = [path.get("style", "") for path in ElementTree.fromstring(picture).iter(f"{SVG}path")]
    for colour in ("#1f77b4", "#ff7f0e"):
        assert any(f"stroke: {colour}" in style and "fill: none" in style for style in lines)
        marker = re.search(rf'<path id="(\w+)"[^>]*fill: {colour}|<path id="(\w+)"[^>]*stroke: {colour}', picture)
        assert marker and picture.count(f'"#{marker[1] or marker[2]}"') >= 2


def test_a_picture_is_less_than_half_of_matplotlibs(picture: str, tmp_path: Path) -> None:
    line_panels(PANELS, tmp_path / "whole.svg")
    whole = (tmp_path / "whole.svg").read_text(encoding="utf-8")
    assert len(picture) < len(whole) / 2 and picture.count("\n") < whole.count("\n") / 4
    assert not re.search(r"<metadata|<!--|\d\.\d{3}", picture)


def test_numbers_are_rounded_where_they_are_places_alone() -> None:
    svg = '<g id="line2d_1">\n  <path d="M 1.23456 -7.00001 \nL 10.5 20 \n" style="stroke-width: 0.123456"/>\n</g>\n'
    assert shorten(svg) == '<g><path d="M 1.23 -7 L 10.5 20" style="stroke-width: 0.123456"/></g>\n'


def test_a_style_stays_where_it_is_not_that_of_the_marker() -> None:
    marker = '<path id="m1" d="M 0 0 L 0 3.5" style="stroke: #000000"/>\n'
    same, other = (f'<use xlink:href="#m1" x="1" y="2" style="stroke: {each}"/>\n' for each in ("#000000", "#ff0000"))
    assert shorten(marker + same + other) == marker + '<use xlink:href="#m1" x="1" y="2"/>\n' + other


def test_pixels_have_a_palette() -> None:
    image, whole = Image.new("RGBA", (40, 30), (0, 0, 0, 0)), BytesIO()
    for shade in range(20):
        image.putpixel((shade, shade), (31, 59, 87, 10 * shade))
    image.save(whole, "PNG")
    encoded = re.sub(r"(.{76})", r"\1\n", b64encode(whole.getvalue()).decode())
    shortened = shorten(f'<image xlink:href="data:image/png;base64,\n{encoded}" id="image1"/>')
    found = re.search(r'base64,([^"]*)"', shortened)
    assert found
    smaller = Image.open(BytesIO(b64decode(found[1])))
    assert smaller.mode == "P" and smaller.size == image.size
    assert len(set(smaller.convert("RGBA").get_flattened_data())) <= COLOURS


def test_without_matplotlib_there_is_a_word_instead_of_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # makes importing it raise
    draw_panels(PANELS, tmp_path / "errors.svg")
    assert "no picture was drawn: figures need matplotlib" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_drawing_of_any_kind(tmp_path: Path) -> None:
    draw(lambda path: path.write_text("<svg>\n  <!-- seen by nobody -->\n  <g/>\n</svg>\n"), tmp_path / "any.svg")
    assert (tmp_path / "any.svg").read_text() == "<svg>\n<g/>\n</svg>\n"
