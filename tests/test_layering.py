"""Imports go one way, through each package's face: from packages that come before, and only what they export."""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

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


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return the imports of a file, inside functions too, and its conditions, under which it may import types alone."""
    tree = ast.walk(ast.parse(path.read_text()))
    return tuple(node for node in tree if isinstance(node, (ast.Import, ast.ImportFrom, ast.If)))


def own_package(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for everything of tamis that a file imports, inside functions too."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.startswith("tamis."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.name == "__init__.py", f"{path}: relative imports hide what is imported"
            if node.level == 0 and (node.module or "").split(".")[0] == "tamis":
                yield from ((node.module or "", alias.name) for alias in node.names)


@cache
def exports(package: str) -> set[str]:
    """Return the names in a package's `__all__`, read from its source."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"there is no {package}"
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_modules(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules that a file imports when it runs, inside functions too; not for the types alone."""
    found: set[str] = set()
    for_types = {
        id(inner)
        for node in nodes_of(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in nodes_of(path):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # A relative import stands in the __init__.py of a package only, and names what is in that package.
            home = node.module or "" if node.level == 0 else ".".join(filter(None, (module_name(path), node.module)))
            # from a.b import c: of a.b, unless c is a module itself.
            names = {f"{home}.{alias.name}" for alias in node.names}
            found |= (names & set(modules)) or {home}
    return found & set(modules) - {module_name(path)}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that all lead to each other, found by Tarjan's algorithm."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in order:
            visit(module)
    return sorted(found)


def test_imports_point_backwards_and_go_through_faces() -> None:
    assert FILES
    for path in FILES:
        assert_imports_what_it_may(path)


def assert_imports_what_it_may(path: Path) -> None:
    own = own_package(path)
    assert own in RANK, f"{own} has no place in the order of packages: add it to ORDER"
    for module, name in imports(path):
        if module == "tamis":
            assert name == "__version__", f"{path} imports {name} from tamis: import it from the package it lives in"
            continue
        package = module.split(".")[1]
        if package == own:
            continue
        assert RANK[package] < RANK[own], f"{path} of {own} imports {module}, which comes later"
        if (SOURCE / package).is_dir():
            assert (SOURCE.parent / module.replace(".", "/")).is_dir(), (
                f"{path} imports {module} past its package's face"
            )
            assert name in exports(module), f"{path} imports {name} from {module}, whose __all__ does not have it"


def test_no_modules_import_each_other() -> None:
    """Not even inside functions: of two modules, one can be read and tested without the other."""
    files = {module_name(path): path for path in SOURCE.rglob("*.py")}
    assert cycles({name: imported_modules(path, files) for name, path in files.items()}) == []


def test_cycles_are_found() -> None:
    line = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"a"}}
    assert cycles(line) == []
    assert cycles({**line, "c": {"a"}, "e": {"f"}, "f": {"e"}}) == [["a", "b", "c"], ["e", "f"]]


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
