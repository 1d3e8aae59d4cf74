"""What a recipe may say, and how it is told what it may not."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tamis.recipes.schema import STEPS, Recipe, json_schema, read_recipe, recipe_of
from tamis.recipes.yaml_document import Document, RecipeError
from tamis.training import Settings

# The least that each step needs.
LEAST: dict[str, dict[str, Any]] = {
    "normalize": {},
    "prune": {"amount": 0.5},
    "retrain": {"epochs": 1},
    "l1inf": {"epochs": 1, "c": 0.1},
    "search": {"epochs": 1, "sparsity": 0.5},
    "quantize": {},
    "repair": {},
    "binarize": {"epochs": 1},
    "kronecker": {},
}


def chain(*names: str) -> dict[str, Any]:
    return {"steps": [{"step": name, **LEAST[name]} for name in names]}


def refusal(text: str) -> RecipeError:
    with pytest.raises(RecipeError) as raised:
        recipe_of(Document(text, "my.yaml"))
    assert "\n" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps:\n- step: prune\n  much: 1\n", "my.yaml:2:3: steps[0]: 'amount' is missing; keys of a prune step are"),
        (
            "steps:\n- step: prune\n  amount: 1\n  bye: phi\n",
            "my.yaml:4:3: steps[0].bye: there is no key 'bye' here; did you mean by?",
        ),
        (
            "steps:\n- step: prune\n  amont: 0.5\n",  # more to the point than that amount is missing
            "my.yaml:3:3: steps[0].amont: there is no key 'amont' here; did you mean amount? (1 more after this one)",
        ),
        (
            "budget: {target_bytes: 9, starts: []}\n",
            "my.yaml:1:35: budget.starts: it should be at least 1 item; got []",
        ),
        ("stepps: []\n", "my.yaml:1:1: stepps: there is no key 'stepps' here; did you mean steps?"),
        (
            "data: {trian: digits}\nsteps: [{step: normalize}]\n",
            "my.yaml:1:8: data.trian: there is no key 'trian' here; did you mean train?",
        ),
        (
            "steps:\n- step: quantize\n  levels: three\n",
            "my.yaml:3:11: steps[0].levels: it should be a valid integer or a valid list; got 'three'",
        ),
        (
            "steps:\n- step: retrain\n  epochs: 2.5\n",
            "my.yaml:3:11: steps[0].epochs: it should be a valid integer; got 2.5",
        ),
        (
            "steps:\n- step: retrain\n  epochs: '2'\n",
            "my.yaml:3:11: steps[0].epochs: it should be a valid integer; got",
        ),
        (
            "steps:\n- step: retrain\n  epochs: 0\n",
            "my.yaml:3:11: steps[0].epochs: epochs must be a whole number ≥ 1, got 0",
        ),
        (
            "steps:\n- {step: retrain, epochs: 2, learning_rate: -1e-3}\n",
            "my.yaml:2:45: steps[0].learning_rate: learning_rate must be a number > 0, got -0.001",
        ),
        (
            "steps:\n- step: prune\n  amount: 1.5\n",
            "my.yaml:3:11: steps[0].amount: it must be a fraction (0.8), a percentage (80%) or a count (1000), got 1.5",
        ),
        (
            "steps:\n- step: prune\n  amount: 0.5\n  by: fi\n",
            "my.yaml:4:7: steps[0].by: it should be 'phi', 'magnitude', 'random' or 'obs'; got 'fi'",
        ),
        (
            "steps:\n- step: quantise\n",
            "my.yaml:2:9: steps[0].step: there is no step 'quantise'; did you mean quantize? steps are normalize,",
        ),
        ("steps:\n- amount: 0.5\n", "my.yaml:2:3: steps[0]: 'step' is missing, which says what to do: normalize,"),
        ("steps:\n- prune\n", "my.yaml:2:3: steps[0]: a step is a mapping, as {step: prune, amount: 0.8}; got 'prune'"),
        (
            "budget:\n  target_bytes: 9KB\n  starts: [[], [{step: quantise}]]\n",
            "my.yaml:3:24: budget.starts[1][0].step: there is no step 'quantise'; did you mean quantize?",
        ),
        (
            "budget:\n  target_bytes: 9KB\n  starts: [[], [{step: prune, much: 1}]]\n",
            "my.yaml:3:17: budget.starts[1][0]: 'amount' is missing; keys of a prune step are",
        ),
        (
            "budget: {target_bytes: 9KB, starts: []}\n",
            "my.yaml:1:37: budget.starts: it should be",
        ),
        (
            "steps: [{step: prune, amount: 0.5}]\nbudget:\n  target_bytes: 9KB\n"
            "  starts: [[{step: search, epochs: 1, sparsity: 0.5}]]\n",
            "my.yaml:4:13: budget.starts[0][0]: search cannot come after prune (steps[0])",
        ),
        (
            "budget: {target_bytes: 9KB, starts: [[{step: quantize}]]}\n",
            "my.yaml:1:9: budget: budget cannot come after quantize (budget.starts[0][0])",
        ),
        ("steps: prune\n", "my.yaml:1:8: steps: it should be a valid list; got 'prune'"),
        (
            "steps:\n- {step: quantize, levels: 3, bits: 2}\n",
            "my.yaml:2:37: steps[0].bits: bits or levels, not both; got bits 2 and levels 3",
        ),
        ("name: nothing\n", "my.yaml:1:1: a recipe needs steps or a budget, or both"),
        ("- step: prune\n", "my.yaml:1:1: a recipe is a mapping with steps, not list"),
        ("", "my.yaml: a recipe is a mapping with steps, and this is empty"),
        (
            "budget: {target_bytes: many}\n",
            "my.yaml:1:24: budget.target_bytes: it must be a number of bytes, as 200KB, 1.5MB or 4096; got 'many'",
        ),
        ("budget: {}\n", "my.yaml:1:9: budget: a budget is either target_bytes or max_disagreement"),
        (
            "budget: {target_bytes: 1KB, max_disagreement: 1%}\n",
            "my.yaml:1:9: budget: a budget is either target_bytes or max_disagreement",
        ),
        (
            "data: {held_out: 3}\nsteps: [{step: normalize}]\n",
            "my.yaml:1:18: data.held_out: it must be a fraction above 0 and below 1, as 0.01 or 1%; got 3",
        ),
    ],
)
def test_errors_say_where_and_what(text: str, message: str) -> None:
    assert str(refusal(text)).startswith(message), str(refusal(text))


def test_further_errors_are_counted() -> None:
    error = refusal("steps:\n- {step: prune, amount: 0.5, by: fi, scope: all}\n- {step: quantise}\n")
    assert str(error).endswith("(2 more after this one)")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("quantize", "binarize"), "steps[1]: binarize cannot come after quantize (steps[0]): weights would leave"),
        (("prune", "search", "retrain"), "steps[1]: search cannot come after prune (steps[0]): it chooses among all"),
        (
            ("prune", "binarize"),
            "steps[1]: binarize cannot come after prune (steps[0]): pruned weights would come back",
        ),
        (
            ("normalize", "quantize", "retrain"),
            "steps[2]: retrain cannot come after quantize (steps[1]): weights would",
        ),
        (
            ("binarize", "quantize"),
            "steps[1]: quantize cannot come after binarize (steps[0]): binary weights are signs",
        ),
        (("kronecker", "prune"), "steps[1]: prune cannot come after kronecker (steps[0]): the factors of Kronecker"),
        (("repair",), "steps[0]: repair needs one of these before it: prune, l1inf, search, quantize"),
        (("search", "quantize"), "steps[0]: search needs a retrain step after it: it finds connections, and"),
    ],
)
def test_impossible_orders(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        recipe_of(chain(*names))
    assert str(raised.value).startswith(f"recipe: {message}")


def test_an_impossible_order_is_placed() -> None:
    error = refusal("steps:\n- step: quantize\n- step: retrain\n  epochs: 2\n")
    assert (error.line, error.column, error.path) == (3, 3, "steps[1]")


def test_obs_after_quantize_and_a_budget_after_it() -> None:
    obs = {"step": "prune", "amount": 0.5, "by": "obs"}
    with pytest.raises(RecipeError, match=r"steps\[1\]: prune by obs cannot come after quantize"):
        recipe_of({"steps": [{"step": "quantize"}, obs]})
    with pytest.raises(RecipeError, match=r"budget: budget cannot come after quantize \(steps\[0\]\)"):
        recipe_of({**chain("quantize"), "budget": {"target_bytes": "1KB"}})


def test_every_pair_is_decided_with_a_reason() -> None:
    """No order is refused without saying why, and what is refused stays refused whatever stands between."""
    for first, second in product(STEPS, STEPS):
        reason = STEPS[second].not_after.get(first)
        if reason is None:
            continue
        assert len(reason) > 20
        between = ["normalize"] if "normalize" not in (first, second) and first not in ("quantize", "binarize") else []
        with pytest.raises(RecipeError):
            recipe_of(chain(first, *between, second))


def test_the_chains_of_the_design_are_possible() -> None:
    for names in (
        ("prune", "retrain", "quantize", "repair"),
        ("normalize", "prune", "repair", "quantize"),
        ("retrain", "binarize"),
        ("kronecker", "retrain"),
        ("l1inf", "quantize"),
        ("search", "retrain", "quantize"),
        ("quantize", "quantize"),
        ("quantize", "prune"),
    ):
        assert [step.step for step in recipe_of(chain(*names)).steps] == list(names)


def test_what_is_left_out_is_resolved() -> None:
    recipe = recipe_of({"steps": [{"step": "prune", "amount": "80%"}], "budget": {"target_bytes": "2KB"}})
    plain = recipe.as_plain_data()
    assert plain["steps"][0]["amount"] == 0.8 and plain["steps"][0]["by"] == "phi"
    assert plain["budget"] == {"step": "budget", "target_bytes": 2000}
    assert recipe_of(plain) == recipe
    assert [step.step for step in recipe.plan] == ["prune", "budget"]


def test_amounts() -> None:
    def amount(given: Any) -> Any:
        step: Any = recipe_of({"steps": [{"step": "prune", "amount": given}]}).steps[0]
        return step.amount

    assert amount("80%") == 0.8 and amount(0.5) == 0.5
    assert amount(100) == 100 and type(amount(100)) is int
    assert amount({"conv1": "50%", "fc": 3}) == {"conv1": 0.5, "fc": 3}


def test_training_steps_know_all_settings() -> None:
    for name in ("retrain", "l1inf", "search", "binarize"):
        step: Any = recipe_of(chain(name, *(["retrain"] if name == "search" else []))).steps[0]
        assert step.settings() == Settings(epochs=1)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("steps:\n- step: quantize\n  levels: [-1, 0, 1]\n", encoding="utf-8")
    step: Any = read_recipe(path).steps[0]
    assert step.levels == [-1.0, 0.0, 1.0]
    path.write_text("steps: {}\n")
    with pytest.raises(RecipeError, match=rf"^{path}:1:8: steps: "):
        read_recipe(path)


def test_the_schema_knows_what_people_write() -> None:
    schema = json_schema()
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["properties"].keys() == Recipe.model_fields.keys()
    kinds = schema["properties"]["steps"]["items"]
    assert kinds["discriminator"]["mapping"].keys() == STEPS.keys()
    amount = schema["$defs"]["Prune"]["properties"]["amount"]["anyOf"]
    assert {"type": "string"} in amount and {"type": "number"} in amount
    assert all(each["additionalProperties"] is False for each in schema["$defs"].values())
