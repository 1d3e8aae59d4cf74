"""The examples of the pages run, and no page links to a file that is not there."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import tamis.reports.comparison

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "experiments" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))  # run by test_tutorials.py
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# [text](target) and ![text](target), with or without a title; [label]: target; src="target" and href="target".
LINKS = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|^\[[^\]]+\]:\s+(\S+)|(?:src|href)=[\"']([^\"']+)", re.MULTILINE
)


def python_blocks(page: Path) -> list[str]:
    """A page's Python, each block after as many empty lines as stand before it, so that tracebacks point there."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * text.count("\n", 0, match.start(1)) + match[1] for match in PYTHON.finditer(text)]


# Examples that train much, by words in them; what makes the same calls more quickly.
SLOW = {
    "sparsity=0.95": "architecture.md",  # the other examples of the page, and those of `search` and `transfer`
    "train_binary(binary, data": "binary.md",  # the examples of `train_binary` and `pack_network`, and the page's other
    "select_c(score, len(data)": "l1inf.md",  # the example of `select_c`
    "OnlineLearner(space, Prior(tau=0.3)": "online.md",  # the examples of `OnlineLearner`
    "small = tamis.quantize(net, data, levels=3)": "quantization.md",  # quickstart.md
    '"levels": {"choices": [3, 16]}': "sweeps.md",  # the example of `sweep`
}


def is_slow(page: Path, block: str) -> bool:
    return any(words in block and page.name == name for words, name in SLOW.items())


# Blocks that assert nothing are pieces of code to read.
EXAMPLES = [
    pytest.param(
        page,
        block,
        id=f"{page.name}, line {len(block) - len(block.lstrip())}",
        marks=[pytest.mark.slow] if is_slow(page, block) else [],
    )
    for page in PAGES
    if page.name != "your_model.md"  # whose blocks go together: test_your_model.py runs them
    for block in python_blocks(page)
    if "assert " in block
]


def links(page: Path) -> list[str]:
    """Targets of a page's links and images, in order; code is not searched."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    return [next(filter(None, groups)) for groups in LINKS.findall(text)]


def relative_files(page: Path) -> list[str]:
    """The paths among a page's links: no other host, no mere anchor."""
    parts = [urlsplit(link) for link in links(page)]
    return [unquote(part.path) for part in parts if not part.scheme and not part.netloc and part.path]


def test_the_readme_has_examples_that_can_fail() -> None:
    assert any("tamis.trace" in block for block in python_blocks(README))
    assert all("assert " in block for block in python_blocks(README))


def test_every_slow_example_is_on_its_page() -> None:
    assert sum(bool(example.marks) for example in EXAMPLES) == len(SLOW)


@pytest.mark.parametrize(("page", "block"), EXAMPLES)
def test_examples_run(page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for the files that they write
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # their latencies are not what is tested
    exec(compile(block, str(page), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", [*PAGES, *TUTORIALS], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_point_to_files(page: Path) -> None:
    missing = [path for path in relative_files(page) if not (page.parent / path).exists()]
    assert missing == []


def test_every_page_is_reached_from_the_readme() -> None:
    linked = {(ROOT / path).resolve() for path in relative_files(README)}
    assert {*PAGES, *TUTORIALS} - {README} <= linked


def test_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](one.md) ![b\nc](two.svg 'title') [d](https://example.org/x.md) [e](#here) [f](three.md#there)\n"
        '[g]: four.md\n<img src="five.svg">\n```\n[h](six.md)\n```\n',
        encoding="utf-8",
    )
    assert relative_files(page) == ["one.md", "two.svg", "three.md", "four.md", "five.svg"]
