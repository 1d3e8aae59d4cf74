"""A rate is a number with a source, and no bound."""

import dataclasses

import pytest

from tamis.bounds.bound import Bound
from tamis.bounds.rate import Rate
from tamis.errors import InvalidInput

HALF = Rate(0.5, "1/n", "lybrand2021gpfq, Theorem 2", terms={"n": 2.0})


def test_a_rate_is_no_bound() -> None:
    assert not isinstance(HALF, Bound)
    assert not {"informative", "log_value"} & {field.name for field in dataclasses.fields(Rate)}


def test_it_names_its_source_and_does_not_change() -> None:
    assert HALF.citation == "lybrand2021gpfq"
    with pytest.raises(dataclasses.FrozenInstanceError):
        HALF.value = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        HALF.terms["n"] = 3.0  # type: ignore[index]


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(InvalidInput, match="finite"):
        Rate(value, "1/n", "lybrand2021gpfq, Theorem 2")


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nobody"):
        Rate(1.0, "1/n", "nobody, Theorem 2")
