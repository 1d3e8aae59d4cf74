"""The examples in docstrings run and print what they show.

An example that speaks of the reader's own objects (`net`, `model`, `optimizer`) has a name that neither the example nor
its module defines. It cannot run, and must be named in READ.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import io
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy
import pytest
import torch
from traces import TraceMemory

import tamis
import tamis.reports.comparison

SOURCE = Path(tamis.__file__).parent
RUN = sorted(each.stem for each in SOURCE.iterdir() if not each.stem.startswith("_") and each.suffix in ("", ".py"))
# Examples to be read, and not run, because they need what cannot be there.
READ = {
    "tamis.architecture.architecture.Architecture",
    "tamis.architecture.baselines.magnitude_architecture",
    "tamis.architecture.search.search",
    "tamis.architecture.transfer.transfer",
    "tamis.architecture.two_temperature.TwoTemperature",
    "tamis.artifact.seen_filter.encode",
    "tamis.bayes.journal.RoundJournal",
    "tamis.bayes.offline_training.train_offline",
    "tamis.bayes.online.OnlineLearner",
    "tamis.bayes.online.OnlineLearner.architectures",
    "tamis.bounds.cross_entropy_gap.cross_entropy_gap",
    "tamis.bounds.interval.interval",
    "tamis.bounds.layer_product.layer_product",
    "tamis.bounds.lipschitz_input.lipschitz_input",
    "tamis.bounds.lipschitz_parameters.lipschitz_parameters",
    "tamis.bounds.margin.margin_bound",
    "tamis.bounds.rademacher_covering.rademacher_covering",
    "tamis.bounds.rademacher_predecessors.rademacher_predecessors",
    "tamis.bounds.sufficient_bits.sufficient_bits",
    "tamis.bounds.sufficient_bits.sufficient_bits_by_paths",
    "tamis.certificates.issuing.certify",
    "tamis.cli.command_line.as_written",
    "tamis.cli.image_options.with_images",
    "tamis.cli.option_groups.with_groups",
    "tamis.cli.registration.command",
    "tamis.graph.ops.register_op",
    "tamis.kernels.energy.measure_energy",
    "tamis.kernels.timing.time_in_turns",
    "tamis.kronecker.conv.KroneckerConv2d",
    "tamis.kronecker.factorize.factorize",
    "tamis.kronecker.families.bit_reversal",
    "tamis.kronecker.inference_cache.InferenceCache",
    "tamis.kronecker.layer.KroneckerLinear",
    "tamis.kronecker.replace.patterns_of",
    "tamis.l1inf.constraint.L1InfConstraint",
    "tamis.l1inf.optimizer.L1Inf",
    "tamis.l1inf.select_c.select_c",
    "tamis.l1inf.statistics.statistics",
    "tamis.verification.certificate.Certificate",
    "tamis.verification.shares.share_out",
    "tamis.verification.verifier.verify",
    "tamis.reports.figures.magnitude_against_cost",
    "tamis.reports.layers.layers_of",
    "tamis.reports.page.report",
}
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


@pytest.fixture(scope="module")
def traces() -> Iterator[TraceMemory]:
    with TraceMemory().in_use() as memory:
        yield memory


@pytest.mark.parametrize("package", RUN)
def test_examples_run_as_they_are_printed(
    package: str, tmp_path: Path, traces: TraceMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)  # latencies are not what is tested
    said = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=OPTIONS)
    for example in examples_of(package):
        if not missing_names(example):
            torch.manual_seed(0)
            runner.run(example, out=said.write)
    assert runner.failures == 0, said.getvalue()


@pytest.mark.parametrize("package", RUN)
def test_examples_define_what_they_use(package: str) -> None:
    wanting = {each.name: missing for each in examples_of(package) if (missing := missing_names(each))}
    unknown = {name: missing for name, missing in wanting.items() if name not in READ}
    assert not unknown, f"define these in the examples, or name the examples in READ: {unknown}"


def test_what_is_only_read_is_there() -> None:
    assert {each.name for name in RUN for each in examples_of(name) if missing_names(each)} >= READ


def test_every_package_is_known() -> None:
    assert {"graph", "cli", "errors"} < set(RUN)
    assert len(examples_of("recipes")) >= 10 and len(examples_of("sweeps")) >= 5


def test_examples_with_the_readers_own_objects_are_told_apart() -> None:
    parse = doctest.DocTestParser().get_doctest
    assert missing_names(parse(">>> tamis.trace(model, x)\n", {"tamis": tamis}, "a", None, 0)) == {"model", "x"}
    assert missing_names(parse(">>> [x for x in range(3)]\n[0, 1, 2]\n", {}, "b", None, 0)) == set()
