"""`compress`: what a run leaves, that it goes on after whatever broke it off, and what it refuses."""

from __future__ import annotations

import html
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pretrained import pretrained
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tamis
import tamis.recipes.compression
import tamis.recipes.output_folder
from tamis.errors import AssumptionViolated, CorruptArtifact, DataNotFound, InvalidInput, TamisError
from tamis.layerwise.journal import LayerJournal
from tamis.recipes.catalogue import list_shipped, recipe_path
from tamis.recipes.compression import compress
from tamis.recipes.lock import Lock
from tamis.recipes.output_folder import CERTIFICATE, LOCK, REPORT, SMALL
from tamis.recipes.request import GivenData, resolve_request
from tamis.recipes.schema import Recipe, read_recipe, recipe_of
from tamis.recipes.splits import Splits
from tamis.recipes.workspace import WORK_FOLDER, Workspace
from tamis.recipes.yaml_document import RecipeError
from tamis.training import as_data, load_data
from tamis.training.checkpoint import RunDirectory as Checkpoints
from tamis.training.models import digits_cnn, mlp
from tamis.verification import Certificate

CHAIN: dict[str, Any] = {
    "steps": [
        {"step": "prune", "amount": "50%"},
        {"step": "retrain", "epochs": 2, "batch": 64},
        {"step": "quantize", "levels": 3, "c_alpha": 2.0},
        {"step": "repair"},
    ]
}
SHORT: dict[str, Any] = {"steps": [{"step": "prune", "amount": 0.5, "by": "magnitude"}]}
PRUNED_BY_MAGNITUDE: dict[str, Any] = {"steps": [{"step": "prune", "amount": 0.9, "by": "magnitude"}]}
DATA, TEST = "digits:train[:200]", "digits:test[:100]"
FILES = sorted([CERTIFICATE, LOCK, REPORT, SMALL])


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def content(folder: str, name: str) -> bytes:
    return Path(folder, name).read_bytes()


def certified(folder: str) -> dict[str, Any]:
    """What a certificate says, but for the day."""
    said = json.loads(content(folder, CERTIFICATE))
    return {name: value for name, value in said.items() if name not in ("date", "digest")}


@pytest.fixture(scope="module")
def whole(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that nothing broke off."""
    out = tmp_path_factory.mktemp("whole") / "out"
    compress(model, CHAIN, "digits:train[:200]", out, test="digits:test[:100]", progress=False)
    return str(out)


def test_what_its_steps_have_seen_cannot_certify_a_file(quick: dict[str, Any]) -> None:
    """Training and calibration go into the file, as far as there is room: this one is large enough for a few."""
    steps = [{"step": "retrain", "epochs": 1, "batch": 64}, {"step": "quantize", "levels": 3, "c_alpha": 2.0}]
    model = mlp((64, 128, 10))
    compress(model, {"steps": steps}, out="out", **quick)
    assert tamis.load("out/small.tamis", model).seen.purposes == ("training", "calibration")
    with pytest.raises(AssumptionViolated, match=r"about \d+ of 200 held-out samples were used to make 'small\.tamis'"):
        tamis.certify(model, "out/small.tamis", DATA)


def test_what_a_run_leaves(model: nn.Module, whole: str) -> None:
    assert names(whole) == FILES
    small = tamis.load(f"{whole}/{SMALL}", model)
    assert [step["step"] for step in small.recipe] == ["prune", "train", "quantize", "repair"]
    assert small.masks.sparsity == pytest.approx(0.5, abs=1e-3)
    assert all(len(small.params[name][0].unique()) <= 3 for name in small.codes)
    net = tamis.trace(model, load_data("digits:test").example)
    assert tamis.verify(f"{whole}/{CERTIFICATE}", f"{whole}/{SMALL}", net, inputs="digits:test[:100]").ok
    lock = Lock.read(Path(whole, LOCK)).content
    assert lock["recipe"]["steps"][0]["amount"] == 0.5 and lock["recipe"]["steps"][0]["by"] == "phi"
    assert lock["result"]["bytes"] == len(content(whole, SMALL))
    assert lock["data"]["test"]["samples"] == 100 and lock["versions"]["tamis"] == tamis.__version__
    assert SMALL.encode() in content(whole, REPORT)


@pytest.mark.slow
def test_steps_are_the_librarys_own_calls(model: nn.Module, quick: dict[str, Any]) -> None:
    recipe = {"steps": [{"step": "prune", "amount": 0.5, "by": "magnitude"}, {"step": "quantize", "c_alpha": 2.0}]}
    done = compress(model, recipe, out="out", **quick)
    parts = GivenData(None, None).load(Recipe.model_validate(done.lock.content["recipe"]).data)
    net = tamis.trace(model, parts.train.example)
    pruned = tamis.prune(net, 0.5, by="magnitude")
    expected = tamis.quantize(net, parts.calibration, c_alpha=2.0, pruned=pruned, progress=False)
    assert all(torch.equal(value, expected.params[name]) for name, value in done.small.params.items())


def parts_of(recipe: dict[str, Any], data: Any, test: Any) -> Splits:
    given = GivenData.of(data, test)
    return given.load(resolve_request(recipe, given, None, None).recipe.data)


def test_data_in_python_is_what_its_name_gives() -> None:
    train, test = load_data(DATA), load_data(TEST)
    loader = DataLoader(TensorDataset(train.normalised(), train.labels), 64, shuffle=True)
    given = as_data(loader, "mine"), as_data((test.normalised(), test.labels), "yours")
    named, other = parts_of(SHORT, DATA, TEST), parts_of(SHORT, *given)
    for one, two in ((named.train, other.train), (named.calibration, other.calibration), (named.test, other.test)):
        assert torch.equal(one.normalised(), two.normalised()) and torch.equal(one.labels, two.labels)


def test_a_run_on_data_in_python_is_repeated_with_the_same_data(model: nn.Module) -> None:
    train, test = load_data(DATA), load_data(TEST)
    given = {"data": (train.normalised(), train.labels), "test": test, "progress": False}
    done = compress(model, SHORT, out="out", **given)
    assert done.lock.content["recipe"]["data"]["train"] == "given in Python"
    page = html.unescape(content("out", REPORT).decode())
    assert "tamis.compress(model, 'out/recipe.lock.yaml', data=data, test=test, out='again')" in page
    with pytest.raises(RecipeError, match="the training data was given in Python, and no file has it: pass data="):
        compress(model, Path("out", LOCK), out="other", progress=False)
    with pytest.raises(InvalidInput, match="the data train is not that of"):
        compress(model, Path("out", LOCK), out="other", **{**given, "data": train[:150]})
    compress(model, Path("out", LOCK), out="again", **given)
    assert content("again", SMALL) == content("out", SMALL)


def test_a_fixed_recipe_holds_nothing_out_and_a_budget_half_of_the_test_data() -> None:
    def parts(recipe: dict[str, Any]) -> tuple[int, int, int]:
        found = parts_of(recipe, DATA, TEST)
        return len(found.train), 0 if found.held_out is None else len(found.held_out), len(found.test)

    assert parts(SHORT) == (200, 0, 100)
    assert parts({**SHORT, "data": {"held_out": 0.25}}) == (150, 50, 100)
    assert parts({"budget": {"target_bytes": 5000}}) == (200, 50, 50)


def test_code_is_not_run_because_a_file_names_it(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mine.yaml").write_text(
        "data: {train: yourdata:loader, test: digits:test}\nsteps: [{step: prune, amount: 0.5}]\n"
    )
    Path("yourdata.py").write_text(
        "from pathlib import Path\nfrom tamis.training import load_data\n"
        "Path('ran').touch()\nloader = load_data('digits:train[:50]')\n"
    )
    with pytest.raises(
        RecipeError, match=r"mine\.yaml:1:15: data\.train: 'yourdata:loader' is Python code, .* data=yourdata:loader"
    ):
        compress(model, "mine.yaml", out="out", progress=False)
    assert not Path("ran").exists()
    compress(model, "mine.yaml", "yourdata:loader", out="out", progress=False)
    assert Path("ran").exists()
    sys.modules.pop("yourdata", None)


def test_a_finished_folder_is_overwritten_only_by_force(model: nn.Module, quick: dict[str, Any]) -> None:
    compress(model, SHORT, out="out", **quick)
    before = {name: content("out", name) for name in FILES}
    message = (
        r"'out' holds the finished run of something else: recipe\.steps\[0\]\.amount was 0\.5, now it is 0\.9\. Name"
    )
    with pytest.raises(InvalidInput, match=message):
        compress(model, PRUNED_BY_MAGNITUDE, out="out", **quick)
    assert {name: content("out", name) for name in names("out")} == before
    Path("out", SMALL).unlink()  # what is left still belongs to the other run
    with pytest.raises(InvalidInput, match="pass force=True to write over it"):
        compress(model, PRUNED_BY_MAGNITUDE, out="out", **quick)
    done = compress(model, PRUNED_BY_MAGNITUDE, out="out", force=True, **quick)
    assert done.small.masks.sparsity == pytest.approx(0.9, abs=1e-3) and names("out") == FILES


@pytest.mark.parametrize("name", [SMALL, CERTIFICATE, REPORT])
def test_files_of_the_user_are_overwritten_only_by_force(model: nn.Module, quick: dict[str, Any], name: str) -> None:
    Path("out").mkdir()
    Path("out", name).write_text("mine")
    message = (
        rf"'out' holds {re.escape(name)}, and no recipe\.lock\.yaml says what they are\. Name another folder as out="
    )
    with pytest.raises(InvalidInput, match=message):
        compress(model, SHORT, out="out", **quick)
    assert names("out") == [name] and Path("out", name).read_text() == "mine"
    compress(model, SHORT, out="out", force=True, **quick)
    assert names("out") == FILES and b"mine" not in content("out", name)[:4]


def test_a_run_broken_off_as_it_certifies_leaves_nothing_of_another_beside_its_file(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compress(model, SHORT, out="out", **quick)
    other = content("out", SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(tamis.recipes.output_folder, "certify", broken)
        with pytest.raises(Broken):
            compress(model, PRUNED_BY_MAGNITUDE, out="out", force=True, **quick)
    assert content("out", SMALL) != other and names("out") == [WORK_FOLDER, SMALL]
    with pytest.raises(InvalidInput, match=r"'out' holds small\.tamis, and no"):
        compress(model, SHORT, out="out", **quick)
    compress(model, PRUNED_BY_MAGNITUDE, out="out", **quick)  # it is this run's own, and it goes on
    assert names("out") == FILES


def test_a_report_is_never_beside_the_certificate_of_another(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compress(model, SHORT, out="out", **quick)
    with monkeypatch.context() as patch:
        patch.setattr(tamis.recipes.output_folder, "report", broken)
        with pytest.raises(Broken):
            compress(model, SHORT, out="out", max_accuracy_drop="1%", **quick)
    assert REPORT not in names("out")
    compress(model, SHORT, out="out", max_accuracy_drop="1%", **quick)
    assert names("out") == FILES and b"FAIL" in content("out", REPORT)


def test_what_is_known_of_the_weights_goes_into_the_certificate(model: nn.Module, quick: dict[str, Any]) -> None:
    for drawn in (False, True):  # the second time nothing is made but the certificate
        done = compress(model, SHORT, out="out", just_initialised=drawn, **quick)
        assert done.certificate.content["network"]["just_initialised"] is drawn
        assert certified("out")["network"]["just_initialised"] is drawn


def test_a_lock_repeats_the_run(model: nn.Module, whole: str) -> None:
    before = torch.get_num_threads()
    done = compress(model, f"{whole}/{LOCK}", out="again", progress=False)
    assert content("again", SMALL) == content(whole, SMALL) and content("again", LOCK) == content(whole, LOCK)
    assert certified("again") == certified(whole)
    assert done.met is None and done.module is None and torch.get_num_threads() == before


def test_a_finished_run_is_not_repeated(
    model: nn.Module, whole: str, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tamis.recipes.compression, "run_plan", lambda *_: pytest.fail("a step was run"))
    done = compress(model, CHAIN, out=whole, **quick)
    assert done.small.masks.sparsity == pytest.approx(0.5, abs=1e-3)
    assert done.certificate.content == Certificate.load(f"{whole}/{CERTIFICATE}").content


@pytest.mark.slow
def test_a_changed_file_is_made_again(model: nn.Module, quick: dict[str, Any]) -> None:
    recipe = {"steps": [{"step": "prune", "amount": 0.5}]}
    compress(model, recipe, out="out", **quick)
    sound = content("out", SMALL)
    Path("out", SMALL).write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    compress(model, recipe, out="out", **quick)
    assert content("out", SMALL) == sound
    other = {"steps": [{"step": "prune", "amount": 0.6}]}
    compress(model, other, out="out", force=True, **quick)  # another one replaces it
    assert content("out", SMALL) != sound and names("out") == FILES


class Broken(BaseException):
    """As a kill, no handler of errors catches it."""


def broken(*_: Any, **__: Any) -> None:
    raise Broken


def _break_off_at(moments: list[int], moment: int) -> None:
    if moment in moments:
        raise Broken


def broken_off_at(moments: list[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Everything that is written counts as a moment, before and after; at the given ones the run breaks off."""
    count = iter(range(10**6))

    def around(original: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            _break_off_at(moments, next(count))
            result = original(*arguments, **options)
            _break_off_at(moments, next(count))
            return result

        return wrapped

    for owner, name in (
        (Checkpoints, "write"),
        (LayerJournal, "record"),
        (tamis.Compressed, "save"),
        (Certificate, "save"),
        (Lock, "write"),
    ):
        monkeypatch.setattr(owner, name, around(getattr(owner, name)))
    return count


def test_it_goes_on_from_every_moment(
    model: nn.Module, whole: str, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        count = broken_off_at([], patch)
        compress(model, CHAIN, out="counted", **quick)
        total = next(count)
    assert total > 30
    # In one folder, one break after the other, as far apart as they fall.
    moments = sorted(random.Random(0).sample(range(total), 4))
    breaks = 0
    for moment in moments:
        with monkeypatch.context() as patch:
            broken_off_at([moment], patch)
            try:
                compress(model, CHAIN, out="out", **quick)
            except Broken:
                breaks += 1
    done = compress(model, CHAIN, out="out", **quick)
    assert breaks >= 2
    assert names("out") == FILES and content("out", SMALL) == content(whole, SMALL)
    assert certified("out") == certified(whole) and done.lock.content == Lock.read(Path(whole, LOCK)).content


def broken_off(model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in the folder out that ended in the middle."""
    with monkeypatch.context() as patch:
        broken_off_at([4], patch)
        with pytest.raises(Broken):
            compress(model, CHAIN, out="out", **quick)


def test_another_run_that_is_not_finished_is_overwritten_only_by_force(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(model, quick, monkeypatch)
    (Path("out") / WORK_FOLDER / "of the user").touch()
    before = sorted(Path("out").rglob("*"))
    with pytest.raises(
        InvalidInput, match=r"not finished: recipe\.steps.*, or pass force=True to write over it, to begin"
    ):
        compress(model, SHORT, out="out", **quick)
    assert sorted(Path("out").rglob("*")) == before
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "remove", lambda _: None)
        done = compress(model, SHORT, out="out", force=True, **quick)
    assert done.small.masks.sparsity == pytest.approx(0.5, abs=1e-3)
    left = sorted(path.name for path in (Path("out") / WORK_FOLDER).iterdir())
    assert left == ["held", "lock.yaml", "of the user", "step_01_prune.tamis"]  # none of the other's steps
    assert Lock.read(Path("out") / WORK_FOLDER / "lock.yaml").content["recipe"] == done.lock.content["recipe"]


@pytest.mark.slow
def test_another_run_does_not_go_on_there(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(model, quick, monkeypatch)
    assert names("out") == [WORK_FOLDER]
    other = {"steps": [{"step": "prune", "amount": 0.6}]}
    with pytest.raises(
        InvalidInput, match=r"'out/\.tamis-compress' holds another run that is not finished: recipe\.st"
    ):
        compress(model, other, out="out", **quick)
    compress(model, CHAIN, out="out", **quick)
    assert names("out") == FILES


def test_two_at_once_do_not_get_in_each_others_way(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(model, quick, monkeypatch)
    with Workspace(Path("out")).only_process():
        before = sorted(Path("out").rglob("*"))
        with pytest.raises(InvalidInput, match=r"^another process is at work in 'out/\.tamis-compress': wait for it"):
            compress(model, CHAIN, out="out", **quick)
        assert sorted(Path("out").rglob("*")) == before
    compress(model, CHAIN, out="out", **quick)
    assert names("out") == FILES


PRUNED: dict[str, Any] = {"steps": [{"step": "prune", "amount": 0.5}]}
PRUNED_MORE: dict[str, Any] = {"steps": [{"step": "prune", "amount": 0.9}]}


def test_steps_without_their_lock_are_not_taken_for_those_of_another_run(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "remove", lambda _: None)  # a kill just before
        compress(model, PRUNED, out="out", **quick)
    (Path("out") / WORK_FOLDER / "lock.yaml").unlink()
    (Path("out") / WORK_FOLDER / "of the user").touch()
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "remove", lambda _: None)
        done = compress(model, PRUNED_MORE, out="out", force=True, **quick)
    assert done.small.masks.sparsity == pytest.approx(0.9, abs=1e-3)
    assert (Path("out") / WORK_FOLDER / "of the user").exists()


def test_a_kill_while_a_run_is_removed_leaves_its_lock_to_the_end(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    locks: list[bool] = []
    unlink = Path.unlink

    def watched(path: Path, missing_ok: bool = False) -> None:
        if path.name == "step_01_prune.tamis":
            locks.append((path.parent / "lock.yaml").exists())
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    compress(model, PRUNED, out="out", **quick)
    assert locks == [True] and names("out") == FILES


def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tamis.recipes.compression, "run_plan", lambda *_: pytest.fail("a step was run"))


def test_a_report_that_is_gone_is_written_again(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compress(model, PRUNED, out="out", **quick)
    Path("out", REPORT).unlink()
    no_step(monkeypatch)
    compress(model, PRUNED, out="out", **quick)
    assert names("out") == FILES and SMALL.encode() in content("out", REPORT)


def test_a_certificate_of_another_run_is_replaced(
    model: nn.Module, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for out, recipe in (("out", PRUNED), ("other", PRUNED_MORE)):
        compress(model, recipe, out=out, **quick)
    own = certified("out")
    no_step(monkeypatch)
    for wrong in (content("other", CERTIFICATE), b"{"):
        Path("out", CERTIFICATE).write_bytes(wrong)
        done = compress(model, PRUNED, out="out", **quick)
        assert certified("out") == own and done.certificate.content["file"] == own["file"]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (None, {}, "compress needs a recipe or a budget"),
        ("ternery", {}, "there is no recipe 'ternery'; did you mean ternary"),
        ("none.yaml", {}, "No such file"),
        ("order.yaml", {}, "order.yaml:3:3: steps[1]: retrain cannot come after quantize (steps[0])"),
        ("empty.yaml", {}, "empty.yaml: a recipe is a mapping with steps, and this is empty"),
        ("latin.yaml", {}, "latin.yaml:1:10: this is not UTF-8, as YAML must be: byte 0xe9"),
        ("folder.yaml", {}, "Is a directory: 'folder.yaml'"),
        ("key.yaml", {}, "key.yaml:1:1: stepps: there is no key 'stepps' here; did you mean steps?"),
        ("ok.yaml", {"data": None, "test": None}, "ok.yaml:1:1: data.train: no training data is named: write it here"),
        ("ok.yaml", {"test": None}, "ok.yaml:1:1: data.test: no test data is named: write it here, or pass test=NAME"),
        ("half.yaml", {"data": None}, "half.yaml:1:7: data.train: no training data is named"),
        ("ok.yaml", {"data": "no_such_data"}, "there is no dataset 'no_such_data:train'"),
        ("ok.yaml", {"test": "digits:train[:50]"}, "have 50 of 50 samples in common"),
        ("ok.yaml", {"data": "small.npz"}, "Sequential does not take inputs as those of 'small.npz"),
        ("trains.yaml", {"data": "plain.npz"}, "'plain.npz' has no labels, which the step 'retrain' needs to train"),
        ("trains.yaml", {"data": "many.npz"}, "a score for each class of 'many.npz"),
        ("ok.yaml", {"target_bytes": "lots"}, "budget.target_bytes: it must be a number of bytes"),
        ("ok.yaml", {"target_bytes": "1KB"}, "budget: budget cannot come after quantize"),
        ("ok.yaml", {"max_disagreement": "2"}, "max_disagreement must be a rate from 0 to 1"),
        (
            "ok.yaml",
            {"test": "plain.npz", "max_accuracy_drop": "1pt"},
            "no labels, which max_accuracy_drop='1pt' needs",
        ),
        (None, {"max_disagreement": "0%"}, "budget.max_disagreement: it must be a fraction above 0 and below 1"),
    ],
)
def test_errors_leave_nothing(
    model: nn.Module, quick: dict[str, Any], recipe: str | None, options: dict[str, Any], message: str
) -> None:
    Path("order.yaml").write_text("steps:\n- step: quantize\n- {step: retrain, epochs: 1}\n")
    Path("key.yaml").write_text("stepps: []\n")
    Path("empty.yaml").touch()
    Path("latin.yaml").write_bytes(b"name: caf\xe9\n")
    Path("folder.yaml").mkdir()
    Path("ok.yaml").write_text("steps: [{step: quantize}]\n")
    Path("half.yaml").write_text("data: {test: digits:test}\nsteps: [{step: quantize}]\n")
    Path("trains.yaml").write_text("steps: [{step: retrain, epochs: 1}]\n")
    draw = np.random.default_rng(0)
    np.savez("small.npz", x=draw.random((9, 1, 3, 3), dtype=np.float32), y=np.arange(9))
    np.savez("plain.npz", x=draw.random((9, 1, 8, 8), dtype=np.float32))
    np.savez("many.npz", x=draw.random((50, 1, 8, 8), dtype=np.float32), y=np.arange(50))
    with pytest.raises((TamisError, FileNotFoundError, IsADirectoryError)) as raised:
        compress(model, recipe, out="out", **{**quick, **options})
    assert message in str(raised.value) and not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"test": 7},
            "the test data must be a tensor of inputs, a pair (inputs, labels), a torch Dataset, or a DataLoader",
        ),
        ({"device": "nonsense"}, "device must be cpu, cuda or another one of torch, got 'nonsense'"),
        ({"model": nn.Flatten()}, "Flatten has no parameters: there is nothing to make smaller"),
        ({"recipe": {"data": {"seed": 2**64}, **PRUNED}}, "data.seed: it should be less than 9223372036854775808"),
        ({"recipe": None, "target_bytes": "9" * 400}, "budget.target_bytes: it must be a number of bytes"),
    ],
)
def test_arguments_that_cannot_be(
    model: nn.Module, quick: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        compress(**{"model": model, "recipe": PRUNED, "out": "out", **quick, **options})
    assert not Path("out").exists()


def test_a_step_that_fails_leaves_nothing_before_one_is_finished(model: nn.Module, quick: dict[str, Any]) -> None:
    wrong, right = {"step": "prune", "amount": 0.5, "exclude": ["conv9"]}, {"step": "prune", "amount": 0.5}
    with pytest.raises(InvalidInput, match=r"^steps\[0\] \(prune\): 'conv9' matches no parameter that can"):
        compress(model, {"steps": [wrong]}, out="out", **quick)
    assert not Path("out").exists()
    with pytest.raises(InvalidInput, match=r"^steps\[1\] \(prune\): 'conv9' matches no parameter"):
        compress(model, {"steps": [right, wrong]}, out="out", **quick)
    assert (Path("out") / WORK_FOLDER / "step_01_prune.tamis").exists()  # what was made is not thrown away
    with pytest.raises(InvalidInput, match=r"^budget\.starts\[1\]\[0\] \(prune\): 'conv9' matches no parameter"):
        compress(model, {"budget": {"target_bytes": "9KB", "starts": [[], [wrong]]}}, out="other", **quick)


def test_a_finished_step_that_was_damaged(model: nn.Module, quick: dict[str, Any]) -> None:
    wrong, right = {"step": "prune", "amount": 0.5, "exclude": ["conv9"]}, {"step": "prune", "amount": 0.5}
    with pytest.raises(InvalidInput):
        compress(model, {"steps": [right, wrong]}, out="out", **quick)
    (Path("out") / WORK_FOLDER / "step_01_prune.tamis").write_bytes(b"x")
    with pytest.raises(CorruptArtifact, match=r"step_01_prune\.tamis .*; delete it to have it made again$"):
        compress(model, {"steps": [right, wrong]}, out="out", **quick)


@pytest.mark.parametrize(("old", "new"), [("threads: ", "threads: 9999999"), ("lock: ", "lock: 7"), ("threads: ", "")])
def test_a_lock_that_was_changed(model: nn.Module, whole: str, old: str, new: str) -> None:
    lines = Path(whole, LOCK).read_text().splitlines()
    Path("mine.yaml").write_text("\n".join(new if line.startswith(old) else line for line in lines))
    with pytest.raises(
        RecipeError, match=r"^mine\.yaml:\d+:\d+: lock: this is no lock file that can be repeated: one of"
    ):
        compress(model, "mine.yaml", out="out", progress=False)
    assert not Path("out").exists()


def test_a_program_cannot_be_trained(model: nn.Module, quick: dict[str, Any]) -> None:
    net = tamis.trace(model, torch.zeros(1, 1, 8, 8))
    with pytest.raises(
        InvalidInput, match="the step 'retrain' needs a module, and Network is an exported program without one"
    ):
        compress(net, CHAIN, out="out", **quick)
    done = compress(net, {"steps": [{"step": "prune", "amount": 0.5}]}, out="out", **quick)
    assert done.small.masks.sparsity == 0.5


def test_a_lock_is_for_one_model_and_its_data(model: nn.Module, whole: str) -> None:
    other = tamis.trace(model, torch.zeros(1, 1, 8, 8))
    module = tamis.prune(other, 0.5).apply_to(model)
    with pytest.raises(InvalidInput, match=r"the model is not that of '.*recipe\.lock\.yaml': its values is"):
        compress(module, f"{whole}/{LOCK}", out="out", progress=False)
    with pytest.raises(
        InvalidInput, match="is a lock file, which already fixes the data and the budget: do not pass them"
    ):
        compress(model, f"{whole}/{LOCK}", "digits", out="out", progress=False)
    assert not Path("out").exists()


# -- the recipes that ship ---------------------------------------------------------------------------------------------


def quickly(path: Path) -> Recipe:
    """A recipe with one epoch wherever it trains."""
    recipe = read_recipe(path)
    plain = recipe.as_plain_data()
    for step in [*plain["steps"], *(step for start in plain.get("budget", {}).get("starts", ()) for step in start)]:
        step |= {"epochs": 1} if "epochs" in step else {}
    return recipe_of(plain)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:after 1 epochs the masks are at a sparsity:UserWarning")
@pytest.mark.parametrize("entry", list_shipped(), ids=lambda entry: entry.name)
def test_every_recipe_runs_on_the_digits(entry: Any) -> None:
    torch.manual_seed(0)
    network, recipe = digits_cnn(8), quickly(entry.path)
    done = compress(network, recipe, "digits", "out", progress=False)
    assert names("out") == FILES
    inputs = GivenData(None, None).load(Recipe.model_validate(done.lock.content["recipe"]).data).test
    assert tamis.verify("out/certificate.json", "out/small.tamis", network, inputs=inputs).ok
    assert tamis.load("out/small.tamis", network).nbytes == len(content("out", SMALL))
    again = compress(network, "out/recipe.lock.yaml", out="again", progress=False)
    assert content("again", SMALL) == content("out", SMALL)
    assert again.small.nbytes < tamis.Compressed(tamis.trace(network, inputs.example)).nbytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recipe", "most", "smaller"), [("resnet20", "ternary", 0.15, 11), ("resnet32", "sparse-four-bit", 0.06, 7)]
)
def test_recipes_on_published_networks(name: str, recipe: str, most: float, smaller: float) -> None:
    network = pretrained(name)
    try:
        load_data("cifar10:test[:1]")
    except DataNotFound:
        pytest.skip("CIFAR-10 is not at hand")
    plain = {**read_recipe(recipe_path(recipe)).as_plain_data(), "data": {"calibration": 500}}
    done = compress(network, plain, "cifar10:train[:1000]", "out", test="cifar10:test[:1000]", progress=False)
    assert done.certificate["disagreement"].bound.value < most
    floats = sum(value.nbytes for value in network.state_dict().values())
    assert done.small.nbytes * smaller < floats
