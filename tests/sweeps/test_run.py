"""`sweep`: what it leaves, who sees the test data, that it goes on after whatever broke it off, and what it refuses."""

from __future__ import annotations

import html
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tamis
import tamis.sweeps.run
from tamis.errors import InvalidInput
from tamis.recipes import compress, load_splits
from tamis.sweeps.evaluator import Evaluator
from tamis.sweeps.pareto_front import find_front
from tamis.sweeps.results import SweepResult, as_plain_data
from tamis.sweeps.run import sweep
from tamis.sweeps.study import Study
from tamis.verification import Certificate

TRAIN, TEST = "digits:train[:200]", "digits:test[:100]"
SPEC: dict[str, Any] = {
    "data": {"train": TRAIN, "test": TEST},
    "recipe": {
        "steps": [
            {"step": "prune", "amount": {"low": 0.1, "high": 0.9}, "seed": {"choices": [0, 1]}, "by": "random"},
            {"step": "quantize", "method": "msq", "levels": {"choices": [3, 4, 8]}, "c_alpha": 2.0},
        ]
    },
    "trials": 3,
}


def tried(found: SweepResult) -> set[tuple[str, str]]:
    """What was tried, and what came out."""
    return {(json.dumps(row.point, sort_keys=True), row.figures["sha256"]) for row in found.rows}


@pytest.fixture(scope="module")
def whole(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    """A sweep that nothing broke off."""
    return sweep(model, SPEC, tmp_path_factory.mktemp("whole") / "out", progress=False)


def test_what_a_sweep_leaves(model: nn.Module, whole: SweepResult) -> None:
    assert len(whole.rows) == 3 and not whole.failed
    assert [row.figures["bytes"] for row in whole.rows] == sorted(row.figures["bytes"] for row in whole.rows)
    figures = [row.figures for row in whole.rows]
    assert [row.front for row in whole.rows] == find_front(figures, ["bytes", "accuracy"])
    assert json.loads((whole.folder / "results.json").read_text()) == as_plain_data(whole)
    page = (whole.folder / "report.html").read_text()
    assert "What was tried" in page and "3 networks, of which" in page
    net = tamis.trace(model, torch.zeros(1, 1, 8, 8))
    for row in whole.certified:
        assert row.front and row.folder is not None
        assert tamis.verify(row.folder / "certificate.json", row.folder / "small.tamis", net, inputs=TEST).ok
        assert (row.folder / "small.tamis").stat().st_size == row.figures["bytes"]


def test_figures_are_of_the_held_out_training_data(model: nn.Module, whole: SweepResult) -> None:
    splits = load_splits(TRAIN, TEST, 0.2, "train", 1000, 0)
    row = whole.certified[0]
    assert row.folder is not None
    small = tamis.load(row.folder / "small.tamis", model).network
    with torch.no_grad():
        before, after = (each(splits.held_out.normalised()).argmax(1) for each in (model, small))
    assert row.figures["samples"] == 40
    assert row.figures["different"] == int((before != after).sum())
    assert row.figures["accuracy"] == pytest.approx(float((after == splits.held_out.labels).double().mean()))


@pytest.mark.slow
def test_a_candidate_can_be_made_by_its_recipe(model: nn.Module, whole: SweepResult) -> None:
    row = whole.certified[0]
    assert row.folder is not None
    done = compress(model, row.folder / "recipe.yaml", out="again", progress=False)
    again, small = (tamis.load(folder / "small.tamis", model) for folder in (done.folder, row.folder))
    assert again.recipe == small.recipe and again.codes.keys() == small.codes.keys()
    assert all(torch.equal(value, small.params[name]) for name, value in again.params.items())
    # Whoever runs the recipe chooses nothing, so that its file need not remember what the sweep compared networks on.
    assert set(small.seen.purposes) - set(again.seen.purposes) == {"search"}


def test_every_network_that_saw_the_test_data_is_paid_for(
    model: nn.Module, whole: SweepResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole.compared == len(whole.certified)
    for row in whole.certified:
        content = Certificate.load(row.folder / "certificate.json").content  # type: ignore[operator]
        assert content["settings"]["candidates"] == whole.compared
        alone = tamis.certify(model, row.folder / "small.tamis", TEST)  # type: ignore[operator]
        assert alone["disagreement"].delta / whole.compared == pytest.approx(content["claims"][0]["delta"])
    # More trials go on with the same study, and pay for those that were certified before, too. In a copy: other tests
    # read what the sweep left.
    made: list[Any] = []
    make = Evaluator._make
    monkeypatch.setattr(Evaluator, "_make", lambda *given: (made.append(given), make(*given))[1])
    more = sweep(model, {**SPEC, "trials": 5}, copy_sweep(whole).folder, progress=False)
    assert len(made) == 2 and tried(whole) < tried(more)
    files = {row.figures["sha256"] for row in (*whole.certified, *more.certified)}
    assert more.compared == len(files)
    assert all(row.certificate.content["settings"]["candidates"] == len(files) for row in more.certified)  # type: ignore[union-attr]


class Broken(BaseException):
    """As a kill, no handler of errors catches it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Evaluator, "_compare"),
        (Study, "_make_sampler"),
        (tamis.Compressed, "save"),
        (Study, "tell"),
        (tamis.sweeps.run, "report"),
    ],
)
def test_it_goes_on_from_every_moment(
    model: nn.Module, whole: SweepResult, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, calls = getattr(owner, name), iter([False, True])

    def breaking(*given: Any, **options: Any) -> Any:
        if next(calls):
            raise Broken
        return before(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, breaking)
        with pytest.raises(Broken):
            sweep(model, SPEC, "out", progress=False)
    found = sweep(model, SPEC, "out", progress=False)
    assert len(found.rows) == 3 and tried(found) == tried(whole)
    assert not found.failed and not [*Path("out").glob("candidates/*/.tamis-compress")]


@pytest.mark.slow
def test_one_is_chosen(model: nn.Module) -> None:
    spec = {**SPEC, "recipe": {"choices": ["nearest", "ternary"]}, "objectives": ["bytes"]}
    choose = {"best": "disagreement", "within": {"bytes": "1MB"}}
    found = sweep(model, {**spec, "choose": choose, "trials": 9}, "out", progress=False)
    assert [row.point for row in found.rows] == [{"recipe": "ternary"}, {"recipe": "nearest"}]
    (row,) = found.certified
    assert row.figures["different"] == min(row.figures["different"] for row in found.rows)
    assert row.certificate is not None and row.certificate.content["settings"]["candidates"] == found.compared == 1
    none = sweep(model, {**spec, "choose": {**choose, "within": {"bytes": 3}}, "trials": 9}, "out", progress=False)
    assert none.certified == [] and none.compared == 1 and len(none.rows) == 2


@pytest.mark.slow
def test_what_cannot_be_made_is_said(model: nn.Module) -> None:
    quantize = {"step": "quantize", "method": "msq", "c_alpha": 2.0, "levels": 3}
    include = {"choices": [["linear1"], ["no_such_layer"]]}
    found = sweep(model, {**SPEC, "recipe": {"steps": [{**quantize, "include": include}]}}, "out", progress=False)
    ((point, why),) = found.failed
    assert "no_such_layer" in json.dumps(point) and "no_such_layer" in why and len(found.rows) == 1
    with pytest.raises(InvalidInput, match=r"none of 1 candidates could be made; the first, as it is: .*no_such_layer"):
        alone = {**SPEC, "recipe": {"steps": [{**quantize, "include": ["no_such_layer"]}]}}
        sweep(model, alone, "other", progress=False)


@pytest.mark.slow
def test_without_labels(model: nn.Module) -> None:
    draw = np.random.default_rng(0)
    np.savez("plain.npz", x=draw.random((50, 1, 8, 8), dtype=np.float32))
    spec = {**SPEC, "data": {"train": "plain.npz", "test": TEST}, "recipe": "ternary", "trials": 1}
    with pytest.raises(InvalidInput, match=r"'plain\.npz.*' has no labels, which accuracy needs; ask for disagreement"):
        sweep(model, spec, "out", progress=False)
    with pytest.raises(InvalidInput, match=r"'plain\.npz' has no labels, which the step 'retrain' needs"):
        retrain = {"steps": [{"step": "retrain", "epochs": 1}]}
        sweep(model, {**spec, "objectives": ["disagreement"], "recipe": retrain}, "out", progress=False)
    assert not Path("out").exists()
    found = sweep(model, {**spec, "objectives": ["disagreement", "latency"]}, "out", progress=False)
    assert "accuracy" not in found.rows[0].figures and found.rows[0].figures["latency"] > 0


TWO: dict[str, Any] = {
    **SPEC,
    "recipe": {"name": "né", "steps": [{"step": "prune", "amount": {"choices": [0.2, 0.5]}}]},
    "objectives": ["bytes"],
    "trials": 2,
}


def folder_of(found: SweepResult, sha256: str) -> Path:
    (figures,) = [each for each in found.folder.glob("candidates/*/figures.json") if sha256 in each.read_text()]
    return figures.parent


@pytest.fixture(scope="module")
def of_two(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    """A sweep of two candidates, for tests that change a copy of it."""
    return sweep(model, TWO, tmp_path_factory.mktemp("two") / "out", progress=False)


def copy_sweep(found: SweepResult) -> SweepResult:
    return replace(found, folder=Path(shutil.copytree(found.folder, "out")))


@pytest.mark.parametrize("damage", ["another's file", "no file", "other figures"])
def test_a_file_that_is_not_the_one_measured_is_made_again(model: nn.Module, of_two: SweepResult, damage: str) -> None:
    found = copy_sweep(of_two)
    best, other = (folder_of(found, row.figures["sha256"]) for row in found.rows)
    sound = (best / "small.tamis").read_bytes()
    if damage == "another's file":
        (best / "small.tamis").write_bytes((other / "small.tamis").read_bytes())
    elif damage == "no file":
        (best / "small.tamis").unlink()
    else:
        (best / "figures.json").write_text("{")
    (row,) = sweep(model, TWO, "out", progress=False).certified
    assert (best / "small.tamis").read_bytes() == sound and row.certificate is not None
    assert row.certificate.content["file"]["sha256"] == row.figures["sha256"]


def test_what_is_asked_for_later_is_measured_then(
    model: nn.Module, of_two: SweepResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_sweep(of_two)
    monkeypatch.setattr(Evaluator, "_make", lambda *_: pytest.fail("a network was made again"))
    found = sweep(model, {**TWO, "choose": {"best": "latency"}}, "out", progress=False)
    assert all(row.figures["latency"] > 0 for row in found.rows)
    (row,) = found.certified
    assert row.figures["latency"] == min(each.figures["latency"] for each in found.rows)


def test_steps_that_are_one_object_have_ranges_of_their_own(model: nn.Module) -> None:
    step = {"step": "prune", "amount": {"choices": [0.2, 0.5]}}
    found = sweep(model, {**TWO, "recipe": {"steps": [step, step]}, "trials": 4}, "out", progress=False)
    made = {tuple(row.point.values()): row.figures["sha256"] for row in found.rows}
    assert len(made) == len(set(made.values())) == 4


def test_names_that_are_not_plain(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def in_ascii_by_default(path: Path, text: str, encoding: str = "ascii") -> int:
        return write(path, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", in_ascii_by_default)  # as where the system writes no UTF-8
    found = sweep(model, TWO, "my sweep", command="tamis sweep run", progress=False)
    (row,) = found.certified
    assert row.folder is not None and "name: né\n" in (row.folder / "recipe.yaml").read_text(encoding="utf-8")
    page = html.unescape((found.folder / "report.html").read_text(encoding="utf-8"))
    assert f"--recipe '{row.folder}/recipe.yaml' -o again" in page


def test_without_optuna(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        InvalidInput, match=r"a sweep needs optuna, which is not installed: pip install 'tamis\[sweep\]'"
    ):
        sweep(model, SPEC, "out", progress=False)
