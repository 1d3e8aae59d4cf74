"""The tutorials print what they show: a page's blocks run in order, and the text after each is what it prints.

Words must be the same. Whole numbers are counts, and must be, too. A number with a point, an exponent or a percent sign
is measured, and may be off by 5 %, or by one unit of the last digit shown: other processors round otherwise.

    python tests/test_tutorials.py --write [NAME ...]    # put what the blocks print now into the pages
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
FENCED = re.compile(r"^```(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
NUMBER = re.compile(r"(?<![\w.])[-−+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?%?(?!\w)")
OFF = 0.05
SLOW = {
    "xnor",  # learns online, twice
    "two_temperature",  # trains 17 networks; the examples of docs/architecture.md make the same calls on fewer
}


def pairs(text: str) -> list[tuple[re.Match[str], re.Match[str]]]:
    """A page's blocks of Python, each with the block of text that follows it; there is nothing else in fences."""
    blocks = list(FENCED.finditer(text))
    kinds = [block[1] for block in blocks]
    assert kinds == ["python", "text"] * (len(kinds) // 2), f"a block and then what it prints, in turns, not {kinds}"
    return list(zip(blocks[::2], blocks[1::2], strict=True))


def prints(page: Path) -> Iterator[str]:
    """What each block prints, run one after another in one namespace."""
    text, namespace = page.read_text(encoding="utf-8"), {"__name__": "tutorial"}
    for block, _ in pairs(text):
        above = "\n" * text.count("\n", 0, block.start(2))  # so that tracebacks point into the page
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(above + block[2], str(page), "exec"), namespace)
        yield printed.getvalue()


def words(text: str) -> list[list[str]]:
    """Each line's words, with # in the place of numbers; how far apart they stand does not count."""
    return [NUMBER.sub("#", line).split() for line in text.rstrip().splitlines()]


def is_near(shown: str, printed: str) -> bool:
    """Whether two numbers are the same as far as another processor's rounding lets them be."""
    if shown[-1:] != printed[-1:] and "%" in (shown[-1:], printed[-1:]):
        return False
    plain = [number.rstrip("%").replace(",", "").replace("−", "-") for number in (shown, printed)]
    if not re.search(r"[.eE%]", shown):
        return plain[0] == plain[1]
    digits, _, exponent = plain[0].lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    first, second = map(float, plain)
    return abs(first - second) <= max(OFF * abs(first), unit) * (1 + 1e-9)


def difference(shown: str, printed: str) -> str | None:
    """What is not as it is shown, or None."""
    if words(shown) != words(printed):
        return f"shown are the words\n{shown}\nand printed\n{printed}"
    numbers = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    far = [f"{first} is shown, {second} printed" for first, second in numbers if not is_near(first, second)]
    return "\n".join([*far, printed]) if far else None


def write(page: Path) -> None:
    """Show what the page's blocks print now."""
    text, printed = page.read_text(encoding="utf-8"), list(prints(page))
    for (_, shown), new in reversed(list(zip(pairs(text), printed, strict=True))):
        text = text[: shown.start(2)] + new.rstrip() + "\n" + text[shown.end(2) :]
    page.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else []) for page in PAGES],
)
def test_a_tutorial_prints_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for the files that it writes
    shown = [text[2] for _, text in pairs(page.read_text(encoding="utf-8"))]
    assert shown and all(text.strip() for text in shown)
    wrong = [each for each in map(difference, shown, prints(page)) if each]
    assert not wrong, "\n\n".join(wrong)


def test_there_is_a_tutorial_for_each_paper() -> None:
    keys = {key for page in PAGES for key in re.findall(r"`(\w+)` of\s+`tamis.citations`", page.read_text("utf-8"))}
    assert keys == {
        "gonon2024thesis",
        "lybrand2021gpfq",
        "yang2021l1inf",
        "colombo2021architecture",
        "chee2021xnor",
    }


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("92% of 360 are right", "90% of 360  are right", True),
        ("92% of 360 are right", "92% of 361 are right", False),
        ("92% of 360 are right", "92% of 360 are wrong", False),
        ("92%", "87%", False),
        ("92%", "92", False),
        ("0.03 1.50e+05", "0.04 1.56e+05", True),
        ("0.03", "0.05", False),
        ("1.50e+05", "1.50e+06", False),
        ("-0.40 linear1", "0.40 linear1", False),
        ("1,288 linear1", "1,288 linear2", False),
        ("3\n4", "3 4", False),
    ],
)
def test_numbers_may_be_off_a_little_and_words_not_at_all(shown: str, printed: str, same: bool) -> None:
    assert (difference(shown, printed) is None) == same


@pytest.mark.parametrize(
    "page",
    ["```python\nprint(1)\n```\n", "```text\n1\n```\n", "```python\n1\n```\n```python\n1\n```\n```text\n1\n```\n"],
)
def test_a_block_without_its_output_is_refused(page: str) -> None:
    with pytest.raises(AssertionError, match="in turns"):
        pairs(page)


def test_the_shown_output_can_be_written_anew(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "A\n```python\nx = 2\nprint(x)\n```\nB\n```text\n```\n```python\nprint(x * x)\n```\n```text\n5\n```\n"
    )
    write(page)
    assert page.read_text() == (
        "A\n```python\nx = 2\nprint(x)\n```\nB\n```text\n2\n```\n```python\nprint(x * x)\n```\n```text\n4\n```\n"
    )


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    if sys.argv[1:2] != ["--write"]:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for chosen in PAGES:
            if not sys.argv[2:] or chosen.stem in sys.argv[2:]:
                write(chosen)
