"""The examples in docstrings run and print what they show.

Each defines what it uses: one that speaks of the reader's own objects (`net`, `model`, `optimizer`) could not be run.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import io
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import numpy
import pytest
import torch

import tamis
import tamis.reports.comparison
from tamis.graph.ops import REGISTRY

SOURCE = Path(tamis.__file__).parent
RUN = sorted(each.stem for each in SOURCE.iterdir() if not each.stem.startswith("_") and each.suffix in ("", ".py"))
# The checks of tamis.testing take a second each; tests/contracts/ runs them on everything that is registered.
SLOW = {"testing"}
GIVEN = {"tamis": tamis, "torch": torch, "np": numpy, "nn": torch.nn}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def modules_of(package: str) -> list[str]:
    """List a package and all modules in it that have examples, or the module of this name."""
    files = [SOURCE / f"{package}.py", *(SOURCE / package).rglob("*.py")]
    found = [path for path in files if path.exists() and ">>> " in path.read_text()]
    names = (".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in found)
    return sorted(name.removesuffix(".__init__") for name in names)


def examples_of(package: str) -> list[doctest.DocTest]:
    """List the examples of a package; those of modules that need what is not installed are left out."""
    found: list[doctest.DocTest] = []
    for name in modules_of(package):
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("tamis"):
                raise
            continue
        found += doctest.DocTestFinder(exclude_empty=True).find(module, name, extraglobs=GIVEN)
    return [each for each in found if each.examples]


def missing_names(example: doctest.DocTest) -> set[str]:
    """Return the names that an example uses and nobody defines: the reader's own objects."""
    tree = ast.parse("\n".join(each.source for each in example.examples))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    defined = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    defined |= {alias.asname or alias.name for node in ast.walk(tree) for alias in getattr(node, "names", ())}
    defined |= {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    defined |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return used - defined - set(example.globs) - set(dir(builtins))


@pytest.mark.parametrize(
    "package", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in RUN]
)
def test_examples_run_as_they_are_printed(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # latencies are not what is tested
    said = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    with patch.dict(REGISTRY):  # operations that an example registers are forgotten after it
        for example in examples_of(package):
            torch.manual_seed(0)
            runner.run(example, out=said.write)
    assert runner.failures == 0, said.getvalue()


@pytest.mark.parametrize("package", RUN)
def test_examples_define_what_they_use(package: str) -> None:
    wanting = {each.name: missing for each in examples_of(package) if (missing := missing_names(each))}
    assert not wanting, f"define these in the examples: {wanting}"


def test_every_package_is_known() -> None:
    assert {"graph", "cli", "errors"} < set(RUN)
    assert len(examples_of("recipes")) >= 10 and len(examples_of("sweeps")) >= 5


def test_examples_with_the_readers_own_objects_are_told_apart() -> None:
    parse = doctest.DocTestParser().get_doctest
    assert missing_names(parse(">>> tamis.trace(model, x)\n", {"tamis": tamis}, "a", None, 0)) == {"model", "x"}
    assert missing_names(parse(">>> [x for x in range(3)]\n[0, 1, 2]\n", {}, "b", None, 0)) == set()
