"""Every theorem of `tamis.bounds` can be found: in its docstring, and on the page of the calls."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import isclass
from pathlib import Path

import pytest

from tamis import bounds

# What serves other packages: checks of arguments, arithmetic that rounds up, and kinds of operations.
HELPERS = {
    *("check_count", "check_number", "check_positive", "as_expert_weights", "interval_rule"),
    *("log_rounded_up", "exp_rounded_up", "sum_rounded_up"),
}
THEOREMS = [name for name in bounds.__all__ if name not in HELPERS and not name.isupper()]
PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


@pytest.mark.parametrize("name", THEOREMS)
def test_is_in_the_reference(name: str) -> None:
    kind = "autoclass" if isclass(getattr(bounds, name)) else "autofunction"
    (module,) = re.findall(rf"^\.\. {kind}:: (tamis\.bounds\.\w+)\.{name}$", PAGE, re.M)
    assert getattr(import_module(module), name) is getattr(bounds, name)


def test_the_package_lists_its_theorems() -> None:
    listed = set(re.findall(r"`(\w+)`", bounds.__doc__ or ""))
    functions = {name for name in THEOREMS if not isclass(getattr(bounds, name))}
    assert functions - listed <= {"deviation_at_rank", "price_of_lambda", "smallest_rate", "log_upper_tail"}
