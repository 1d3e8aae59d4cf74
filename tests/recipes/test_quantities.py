"""80% and 200KB, as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from tamis.recipes.quantities import as_bytes, as_fraction, without_percent


@pytest.mark.parametrize(
    ("given", "count"),
    [("200KB", 200_000), ("1.5 MiB", 3 * 2**19), ("4096", 4096), (4096, 4096), ("2gb", 2 * 10**9), ("10B", 10)],
)
def test_bytes(given: Any, count: int) -> None:
    assert as_bytes(given) == count


@pytest.mark.parametrize("given", ["", "KB", "200 kilo", "-3KB", 0, -1, 2.5, True, None, "0", "9" * 400, 10**400])
def test_what_is_no_number_of_bytes(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^it must be a number of bytes, as 200KB, .*; got "):
        as_bytes(given)


def test_fractions() -> None:
    assert [as_fraction(given) for given in ("1%", " 2.5 % ", 0.3, ".5%")] == [0.01, 0.025, 0.3, 0.005]
    assert [as_fraction(given) for given in ("0.02", " .5 ", "1e-3")] == [
        0.02,
        0.5,
        0.001,
    ]  # as the command line has it
    assert without_percent("80%") == 0.8 and without_percent("eighty") == "eighty" and without_percent(3) == 3


@pytest.mark.parametrize("given", ["0%", "100%", "150%", 0, 1, 2.0, -0.1, "x", "0", "1.0", "nan", "-0.1", None, True])
def test_what_is_no_fraction(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^it must be a fraction above 0 and below 1, .*; got "):
        as_fraction(given)
