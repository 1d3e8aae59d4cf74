"""Imports go one way: a room may import from the rooms before it, never from those after it."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tamis"
ORDER = [
    {"errors", "citations", "progress", "rates", "rooms"},
    {"imports"},
    {"graph"},
    {"paths"},
    {"bounds"},
    {"kernels"},
    {"artifact"},
    {"train"},
    {"layerwise"},
    {"prune", "quantize", "binary", "kronecker", "l1inf", "bayes"},
    {"architecture"},
    {"certify"},
    {"report"},
    {"recipe"},
    {"sweep"},
    {"cli"},
    {"__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def room(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Rooms of tamis that a file imports anywhere, inside functions too."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.name == "__init__.py", f"{path}: relative imports hide what is imported"
            whole = node.module == "tamis" and [alias.name for alias in node.names] != ["__version__"]
            assert not whole, f"{path}: import from the room itself, which says where a name lives"
            names += [] if node.level else [node.module or ""]
    return {name.split(".")[1] for name in names if name.startswith("tamis.") and name.split(".")[1] in RANK}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_backwards(path: Path) -> None:
    own = room(path.relative_to(SOURCE).parts)
    if own not in RANK:
        pytest.fail(f"{own} has no place in the order of rooms: add it to ORDER")
    forward = {other for other in imported_rooms(path) if other != own and RANK[other] >= RANK[own]}
    assert not forward, f"{own} imports {forward}, which come later"


def test_no_file_of_the_package_names_the_experiments() -> None:
    """They are of a clone: an installed tamis has none, so that neither an import nor a path may lead there."""
    naming = re.compile(r"\b(?:from|import|-m) experiments\b|\bexperiments[./]\w")
    assert not [path for path in [*FILES, SOURCE / "__init__.py"] if naming.search(path.read_text())]


def test_no_file_is_called_utils() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "util", "helpers", "common", "misc")]
