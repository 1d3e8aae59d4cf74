"""The front against the definition as Optuna has it, and the choice of one."""

from __future__ import annotations

from typing import Any

import optuna
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.sweeps.pareto_front import choose_candidate, find_front
from tamis.sweeps.spec import DIRECTIONS, Choose

OBJECTIVES = ["bytes", "accuracy", "disagreement"]
Few = st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=12)


@settings(max_examples=30)
@given(Few)
def test_the_front_is_optunas(values: list[tuple[int, ...]]) -> None:
    candidates = [dict(zip(OBJECTIVES, each, strict=True)) for each in values]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=[DIRECTIONS[name] for name in OBJECTIVES])
    for each in values:
        study.add_trial(optuna.create_trial(values=list(each)))
    expected = {trial.number for trial in study.best_trials}
    assert {place for place, best in enumerate(find_front(candidates, OBJECTIVES)) if best} == expected


@given(Few, st.integers(0, 4), st.integers(0, 4))
def test_the_chosen_one_is_within_and_the_best(values: list[tuple[int, ...]], least: int, most: int) -> None:
    candidates: list[dict[str, Any]] = [dict(zip(OBJECTIVES, each, strict=True)) for each in values]
    choose = Choose.model_construct(best="bytes", within={"accuracy": least, "disagreement": most})
    place = choose_candidate(candidates, choose)
    fit = [each for each in candidates if each["accuracy"] >= least and each["disagreement"] <= most]
    assert (place is None) == (not fit)
    if place is not None:
        assert candidates[place] in fit and candidates[place]["bytes"] == min(each["bytes"] for each in fit)
