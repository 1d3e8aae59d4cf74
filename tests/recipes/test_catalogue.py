"""The recipes that ship: found by name, described on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.errors import InvalidInput
from tamis.recipes.catalogue import SHIPPED, list_shipped, recipe_path
from tamis.recipes.schema import STEPS, read_recipe

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_names_and_paths() -> None:
    assert recipe_path("ternary") == SHIPPED / "ternary.yaml"
    assert recipe_path("mine.yaml") == Path("mine.yaml") and recipe_path("./mine") == Path("mine")
    with pytest.raises(InvalidInput, match=r"^there is no recipe 'xyzzy'; these ship: architecture, binary, .*\.yaml$"):
        recipe_path("xyzzy")


def test_a_dozen_recipes_ship_and_are_sound() -> None:
    assert len(list_shipped()) >= 12
    for entry in list_shipped():
        assert read_recipe(entry.path).name == entry.name
        assert 20 < len(entry.headline) < 125 and " For " in entry.comment
    used = {step.step for entry in list_shipped() for step in read_recipe(entry.path).plan}
    assert used == {*STEPS, "budget"}


def test_the_page_lists_every_recipe_and_every_step() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"| `{entry.name}` |" in page for entry in list_shipped())
    for name, step in STEPS.items():
        row = next(
            line for line in page.splitlines() if line.startswith(f"| `{name}` | `tamis") or f"| `{name}` | the" in line
        )
        own = step.model_fields.keys() - {"step"}
        if step.trains:
            own -= STEPS["retrain"].model_fields.keys() - {"epochs", "fresh"}
            assert "how to train" in row
        assert all(f"`{field}`" in row for field in own), (name, own)
