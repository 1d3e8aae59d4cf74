"""A sweep's file: what it may try, and errors that point at the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tamis.recipes import RecipeError
from tamis.sweeps.space import describe_point, encode_point, find_next_untried
from tamis.sweeps.spec import Sweep, read_sweep

GOOD = """name: mine
data: digits
recipe:
  steps:
    - {step: prune, amount: {choices: [50%, 80%]}}
    - step: quantize
      levels: {choices: [3, 4, 8]}
      c_alpha: {choices: [null, 2.0, [1.0, 2.0]]}
objectives: [bytes, accuracy, disagreement]
choose: {best: bytes, within: {disagreement: 5%, bytes: 2KB, accuracy: 0.9, latency: 1}}
trials: 7
"""


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(text: str) -> Sweep:
    Path("s.yaml").write_text(text)
    return read_sweep("s.yaml")


def test_what_a_file_says() -> None:
    found = read(GOOD)
    said = found.spec
    assert (said.data.train, said.data.test) == ("digits:train", "digits:test")
    assert (said.data.held_out, said.data.held_out_from) == (0.2, "train")  # never the test data
    assert said.choose is not None
    assert said.choose.within == {"disagreement": 0.05, "bytes": 2000, "accuracy": 0.9, "latency": 1.0}
    assert said.measured == ("bytes", "accuracy", "disagreement", "latency")
    assert (found.space.size, found.candidates) == (18, 7)


def test_every_point_is_a_recipe() -> None:
    space = read(GOOD).space
    points = [*space.points()]
    assert len({encode_point(point) for point in points}) == 18
    settings = [space.recipe(point).as_plain_data()["steps"] for point in points]
    assert {(one["amount"], two["levels"], str(two.get("c_alpha"))) for one, two in settings} == {
        (amount, levels, c_alpha)
        for amount in (0.5, 0.8)
        for levels in (3, 4, 8)
        for c_alpha in ("None", "2.0", "[1.0, 2.0]")
    }
    assert describe_point(points[0]) == "amount 50%, levels 3, c_alpha None"
    tried = {encode_point(point) for point in points[:5]}
    assert (
        find_next_untried(space, tried) == points[5] and find_next_untried(space, {*map(encode_point, points)}) is None
    )
    assert space.recipe(points[0]).data.test == "digits:test"


def test_several_recipes_each_with_its_own_ranges() -> None:
    Path("mine.yaml").write_text("name: own\nsteps: [{step: quantize, levels: {low: 3, high: 5}}]\n")
    third = "{steps: [{step: prune, amount: {low: 0.1, high: 0.9, step: 0.2}}]}"
    found = read(f"{{data: digits, trials: 99, recipe: {{choices: [ternary, mine.yaml, {third}]}}}}")
    assert [each.name for each in found.space.alternatives] == ["ternary", "own", "recipe 2"]
    assert found.candidates == 1 + 3 + 5
    points = [*found.space.points()]
    assert [describe_point(point) for point in points[:3]] == ["ternary", "own, levels 3", "own, levels 4"]
    assert found.space.recipe(points[-1]).as_plain_data()["steps"][0]["amount"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("data: digits\n", "", "s.yaml:1:1: 'data' is missing; keys of a sweep are name, model"),
        ("data: digits", "data: {train: digits:train}", "s.yaml:2:7: data: data has no 'test'"),
        ("data: digits", "data: {trian: digits}", "s.yaml:2:8: data.trian: there is no key 'trian' here; did you mean"),
        ("data: digits", "data: {held_out: 7}", "s.yaml:2:18: data.held_out: it must be a fraction"),
        ("trials: 7", "trials: 0", "s.yaml:11:9: trials: it should be greater than or equal to 1; got 0"),
        ("trials: 7", "many: 7", "s.yaml:1:1: 'trials' is missing"),
        ("trials: 7", "trails: 7", "s.yaml:11:1: trails: there is no key 'trails' here; did you mean trials?"),
        ("objectives: [bytes", "objectives: [size", "s.yaml:9:14: objectives[0]: it should be 'bytes', 'accuracy'"),
        ("objectives: [bytes, ", "objectives: [accuracy, ", "s.yaml:9:13: objectives: objectives name one twice"),
        ("best: bytes", "best: size", "s.yaml:10:16: choose.best: it should be 'bytes', 'accuracy'"),
        ("best: bytes, ", "", "s.yaml:10:9: choose: 'best' is missing; keys of choose are best, within"),
        ("accuracy: 0.9", "accuracy: 9", "choose.within.accuracy: accuracy has no such limit: it must be a fraction"),
        ("latency: 1", "latency: 0", "choose.within.latency: latency has no such limit: it must be a number of sec"),
        ("latency: 1", "latency: .nan", "latency has no such limit: it must be a number of seconds above 0, got nan"),
        ("latency: 1", "latency: .inf", "latency has no such limit: it must be a number of seconds above 0, got inf"),
        ("latency: 1", "speed: 1", "s.yaml:10:84: choose.within.speed: speed is not an objective"),
        ("[3, 4, 8]", "[3, 4, 1]", "s.yaml:7:15: steps[1].levels: it should be greater than or equal to 2"),
        ("[50%, 80%]", "[50%, 180%]", "s.yaml:5:29: steps[0].amount: it must be a fraction"),
        ("step: quantize", "step: quantise", "s.yaml:6:13: steps[1].step: there is no step 'quantise'; did you mean"),
        (
            "    - step: quantize",
            "    - {step: retrain, epochs: 1}\n    - step: binarize",
            "s.yaml:7:7: steps[2]: 'epochs' is missing; keys of a binarize step are",
        ),
        ("  steps:", "  data: {train: digits:train}\n  steps:", "s.yaml:4:3: data: the sweep itself names the data"),
        ("name: mine", "name: mine\nname: yours", "s.yaml:2:1: name: this key is here twice"),
    ],
)
def test_errors_point_at_the_line(old: str, new: str, message: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(RecipeError, match=re.escape(message)):
        read(GOOD.replace(old, new))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("ternery", "s.yaml:1:35: recipe: there is no recipe 'ternery'; did you mean ternary"),
        ("3", "s.yaml:1:35: a recipe is a mapping with steps, or the name of one; got 3"),
        ("{choices: []}", "s.yaml:1:45: recipe.choices: choices are a list of recipes, got []"),
        ("{choices: [ternary, ternary]}", "recipe.choices[1]: there are two recipes 'ternary'"),
        ("{steps: []}", "a recipe needs steps or a budget"),
    ],
)
def test_recipes_that_are_none(recipe: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        read(f"{{data: digits, trials: 9, recipe: {recipe}}}")


@pytest.mark.parametrize("text", ["", "[]", "just words"])
def test_a_sweep_is_a_mapping(text: str) -> None:
    with pytest.raises(RecipeError, match="a sweep is a mapping with a recipe"):
        read(text)


def test_plain_data() -> None:
    plain: dict[str, Any] = {"data": "digits", "recipe": "ternary", "trials": 3}
    assert read_sweep(plain).candidates == 1
    with pytest.raises(RecipeError, match="sweep: 'trials' is missing"):
        read_sweep({"data": "digits", "recipe": "ternary"})
