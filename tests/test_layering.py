"""Imports go one way, through each package's face: from packages that come before, and only what they export."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tamis"
ORDER = [
    {"errors", "citations", "progress", "rates"},
    {"imports", "settings"},
    {"graph"},
    {"paths"},
    {"bounds"},
    {"kernels"},
    {"artifact"},
    {"training"},
    {"layerwise"},
    {"pruning", "quantization", "binary", "kronecker", "l1inf", "bayes"},
    {"architecture"},
    {"verification"},
    {"certificates"},
    {"reports"},
    {"recipes"},
    {"sweeps"},
    {"testing"},
    {"cli"},
    {"__main__"},
]
RANK = {package: rank for rank, packages in enumerate(ORDER) for package in packages}
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def own_package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for everything of tamis that a file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("tamis."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.name == "__init__.py", f"{path}: relative imports hide what is imported"
            if node.level == 0 and (node.module or "").split(".")[0] == "tamis":
                yield from ((node.module or "", alias.name) for alias in node.names)


def exports(package: str) -> set[str]:
    """Return the names in a package's `__all__`, read from its source."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"there is no {package}"
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_backwards_and_go_through_faces(path: Path) -> None:
    own = own_package(path)
    assert own in RANK, f"{own} has no place in the order of packages: add it to ORDER"
    for module, name in imports(path):
        if module == "tamis":
            assert name == "__version__", f"{path} imports {name} from tamis: import it from the package it lives in"
            continue
        package = module.split(".")[1]
        if package == own:
            continue
        assert RANK[package] < RANK[own], f"{own} imports {module}, which comes later"
        if (SOURCE / package).is_dir():
            assert (SOURCE.parent / module.replace(".", "/")).is_dir(), (
                f"{path} imports {module} past its package's face"
            )
            assert name in exports(module), f"{path} imports {name} from {module}, whose __all__ does not have it"


def test_what_a_face_names_is_there() -> None:
    for path in SOURCE.rglob("__init__.py"):
        package = ".".join(path.relative_to(SOURCE.parent).parent.parts)
        home = import_module(package)
        missing = [name for name in home.__all__ if not hasattr(home, name)] if hasattr(home, "__all__") else []
        missing = [name for name in missing if not find_spec(f"{package}.{name}")]  # submodules, imported on first use
        assert not missing, f"{package}.__all__ names what is not there: {missing}"


def test_no_file_of_the_package_names_the_experiments() -> None:
    """They are of a clone: an installed tamis has none, so that neither an import nor a path may lead there."""
    naming = re.compile(r"\b(?:from|import|-m) experiments\b|\bexperiments[./]\w")
    assert not [path for path in [*FILES, SOURCE / "__init__.py"] if naming.search(path.read_text())]


def test_no_file_is_called_utils() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "util", "helpers", "common", "misc")]
