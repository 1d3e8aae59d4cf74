"""The examples in docstrings run and print what they show.

An example that speaks of the reader's own objects (`net`, `model`, `optimizer`) is there to be read, and is not run: it
has a name that neither the example nor its module defines. All others of the packages in RUN must run as they stand.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import io
import pkgutil
from importlib import import_module
from pathlib import Path

import numpy
import pytest
import torch

import tamis

RUN = ("graph", "paths", "recipes", "sweeps", "reports")  # add a package once its examples run
MODULES = [each.name for each in pkgutil.walk_packages(tamis.__path__, "tamis.") if each.name.split(".")[1] in RUN]
GIVEN = {"tamis": tamis, "torch": torch, "np": numpy, "nn": torch.nn}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples_of(module: str) -> list[doctest.DocTest]:
    """List the examples of a module that can run by themselves."""
    found = doctest.DocTestFinder(exclude_empty=True).find(import_module(module), module, extraglobs=GIVEN)
    return [each for each in found if each.examples and not missing_names(each)]


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


@pytest.mark.parametrize("module", MODULES)
def test_examples_run_as_they_are_printed(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for example in examples_of(module):
        runner.run(example, out=said.write)
    assert runner.failures == 0, said.getvalue()


def test_some_examples_run() -> None:
    assert sum(len(examples_of(module)) for module in ("tamis.recipes.quantities", "tamis.sweeps.database")) >= 5


def test_examples_with_the_readers_own_objects_are_told_apart() -> None:
    parse = doctest.DocTestParser().get_doctest
    assert missing_names(parse(">>> tamis.trace(model, x)\n", {"tamis": tamis}, "a", None, 0)) == {"model", "x"}
    assert missing_names(parse(">>> [x for x in range(3)]\n[0, 1, 2]\n", {}, "b", None, 0)) == set()
