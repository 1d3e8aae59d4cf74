"""Ranges in place of values: which there are, what they hold, and what is refused, at its line."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.recipes import Document, RecipeError
from tamis.sweeps.ranges import CONTINUOUS, Between, Choices, fill_ranges, find_ranges


def found(text: str) -> dict[Any, Any]:
    return find_ranges(Document(text, "my.yaml"))


def test_ranges_are_found_where_they_stand() -> None:
    text = "steps:\n- {step: prune, amount: {low: 50%, high: 90%}}\n- {step: quantize, levels: {choices: [3, 4]}}\n"
    assert found(text) == {
        ("steps", 0, "amount"): Between(low=0.5, high=0.9),
        ("steps", 1, "levels"): Choices(choices=[3, 4]),
    }
    assert found("steps: [{step: prune, amount: {conv1: 0.5}}]") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {choices: []}", "my.yaml:1:14: a.choices: it should be"),
        ("a: {choices: 3}", "my.yaml:1:14: a.choices: it should be a valid list; got 3"),
        ("a: {choices: [3, 4, 3]}", "my.yaml:1:14: a.choices: choices name 3 twice"),
        ("a: {choices: [[1], [1]]}", "choices name [1] twice"),
        (
            "a: {choices: [3], log: true}",
            "my.yaml:1:19: a.log: there is no key 'log' here; keys of a range are choices",
        ),
        ("a: {low: 3}", "my.yaml:1:4: a: 'high' is missing; keys of a range are low, high, step, log"),
        ("a: {low: 3, high: x}", "my.yaml:1:19: a.high: it should be a valid integer or a valid number; got 'x'"),
        ("a: {low: 1.0, high: .inf}", "my.yaml:1:21: a.high: it should be a valid integer or a finite number; got inf"),
        ("a: {low: .nan, high: 1.0}", "my.yaml:1:10: a.low: it should be a valid integer or a finite number; got nan"),
        ("a: {low: 3, high: 3}", "my.yaml:1:19: a.high: high must be above low; got low 3 and high 3"),
        ("a: {low: 0, high: 3, log: true}", "a.log: log needs a low above 0 and no step"),
        ("a: {low: 0, high: 3, step: 2}", "a.step: step must lead from low to high; got 2 from 0 to 3"),
        ("a: {low: 0, high: 3, step: 0.5}", "a.step: step must be a whole number between whole numbers, got 0.5"),
        ("a: {low: 0, high: 3, stp: 1}", "a.stp: there is no key 'stp' here; did you mean step?"),
    ],
)
def test_what_is_no_range_is_refused_at_its_place(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        found(text)


def test_how_many_values_there_are() -> None:
    assert Between(low=2, high=5).labels == [2, 3, 4, 5]
    assert Between(low=2, high=8, step=3).labels == [2, 5, 8]
    assert Between(low=0.1, high=0.9, step=0.2).labels == [0.1, 0.3, 0.5, 0.7, 0.9]
    assert Between(low=0.1, high=0.3, step=0.1).labels == [0.1, 0.2, 0.3]  # in binary, the last would be above 0.3
    assert Between(low=0.5, high=0.9).size == CONTINUOUS
    assert Between(low=1, high=2.5).extremes() == [1.0, 2.5]


@settings(max_examples=40)
@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.integers())), min_size=1))
def test_every_label_stands_for_its_value(values: list[Any]) -> None:
    distinct = [v for i, v in enumerate(values) if repr(v) not in map(repr, values[:i])]
    try:
        choices = Choices(choices=distinct)
    except ValueError as error:  # as "true" and true, which look the same in a study
        assert "twice" in str(error) and any(isinstance(each, str) for each in distinct)
        return
    assert [repr(choices.value(label)) for label in choices.labels] == [repr(value) for value in distinct]
    assert all(label is None or type(label) in (int, str) for label in choices.labels)


def test_what_is_drawn_is_one_of_the_labels() -> None:
    optuna = pytest.importorskip("optuna")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    between = Between(low=0.1, high=0.3, step=0.1)
    for label in between.labels:
        study.enqueue_trial({"a": label})
    drawn = [between.suggest(study.ask(), "a") for _ in range(40)]
    assert drawn[:3] == between.labels and set(drawn[3:]) == set(between.labels)


def test_what_stands_twice_is_fill_ranges_in_twice() -> None:
    document = Document("steps: [&a {step: prune, amount: {choices: [0.1, 0.5]}}, *a]", "my.yaml")
    one, two = find_ranges(document)
    assert [step["amount"] for step in fill_ranges(document.data, {one: 0.1, two: 0.5})["steps"]] == [0.1, 0.5]


def test_filling_in_changes_nothing_else() -> None:
    data = {"steps": [{"step": "prune", "amount": {"low": 0, "high": 1}}, {"step": "repair"}]}
    assert fill_ranges(data, {("steps", 0, "amount"): 0.5}) == {
        "steps": [{"step": "prune", "amount": 0.5}, {"step": "repair"}]
    }
    assert data["steps"][0]["amount"] == {"low": 0, "high": 1}
    assert fill_ranges({"choices": [1]}, {(): 7}) == 7
