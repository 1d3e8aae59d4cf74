"""What is stored is little, is named by a page, and is of full runs."""

from pathlib import Path

import pytest

from experiments import RESULTS

ROOT = RESULTS.parents[1]
FOLDERS = (ROOT / "docs" / "results", RESULTS)
PAGES = [ROOT / "README.md", RESULTS.parent / "README.md", *(ROOT / "docs").glob("*.md")]
MOST_BYTES, MOST_LINES = 1_200_000, 15_000


def files(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def test_stored_results_are_small() -> None:
    contents = [path.read_bytes() for path in files(*FOLDERS)]
    assert sum(map(len, contents)) <= MOST_BYTES
    assert sum(content.count(b"\n") for content in contents) <= MOST_LINES


def test_every_stored_result_is_named_by_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    unnamed = [path.name for path in files(RESULTS) if path.relative_to(RESULTS).as_posix() not in text]
    assert unnamed == []


@pytest.mark.parametrize("folder", FOLDERS, ids=["docs", "experiments"])
def test_short_runs_are_not_stored(folder: Path) -> None:
    assert not [path.name for path in files(folder) if "_short" in path.name]
