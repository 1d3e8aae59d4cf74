"""The page for newcomers: its files, its Python and its commands work, one after the other in one folder."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tamis.reports.comparison
from tamis.cli.main import app

PAGE = Path(__file__).parents[1] / "docs" / "your_model.md"
FENCED = re.compile(r"^```(\w+)\n((?:.*\n)*?)```$", re.MULTILINE)
FILE = re.compile(r"# (\w+)\.py\n")


def run_command(line: str) -> None:
    """A line of a console."""
    words = shlex.split(line.removeprefix("$ "))
    if words[0] == "python":
        runpy.run_path(words[1], run_name="__main__")
        return
    assert words[0] == "tamis"
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, words[1:], catch_exceptions=False)
    assert result.exit_code == 0, f"{line}\n{result.stderr}"


@pytest.mark.slow
def test_everything_on_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # latencies are not what is tested
    text, files = PAGE.read_text(encoding="utf-8"), []
    blocks = list(FENCED.finditer(text))
    for block in blocks:
        if named := FILE.match(block[2]):
            (tmp_path / f"{named[1]}.py").write_text(block[2])
            files.append(named[1])
    try:
        for block in blocks:
            if block[1] == "console":
                for line in block[2].splitlines():
                    run_command(line)
            elif FILE.match(block[2]) is None:
                above = "\n" * text.count("\n", 0, block.start(2))  # so that tracebacks point into the page
                exec(compile(above + block[2], str(PAGE), "exec"), {"__name__": "page"})
    finally:
        for name in files:
            sys.modules.pop(name, None)
    assert {block[1] for block in blocks} == {"python", "console"} and len(files) == 3
