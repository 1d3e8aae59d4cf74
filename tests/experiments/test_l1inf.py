"""The synthetic experiments on L1,∞ normalization: the recipe against single networks, tables, what is stored."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments import RESULTS, l1inf, l1inf_comparison, l1inf_folds, l1inf_stack, l1inf_synthetic
from experiments.bounds_l1inf import draw_classified_samples
from experiments.bounds_training import make_perceptron
from experiments.l1inf import (
    PAPER_BY_DEPTH,
    PAPER_BY_SIZE,
    PAPER_DEPTHS,
    PAPER_REGULARIZERS,
    PAPER_SIZES,
    PARTS,
    main,
    quote_paper,
)
from experiments.l1inf_comparison import OURS, add_dropout, make_regularizers, run_comparison
from experiments.l1inf_folds import FoldScores, FoldsPlan, run_folds
from experiments.l1inf_stack import Recipe, Regularizer, Stack, Task, measure, train
from experiments.l1inf_synthetic import (
    FULL_CLASSIFICATION,
    ClassificationPlan,
    ColumnsPlan,
    Draws,
    RegressionPlan,
    draw_linear,
    run_classification,
    run_columns,
    run_regression,
    train_networks,
)
from tamis.errors import InvalidInput
from tamis.l1inf import L1Inf, project
from tamis.l1inf.select_c import deal_folds

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

STORED = RESULTS / "l1inf.json"
FEW = Recipe(steps=4, batch=10)
TINY_REGRESSION = RegressionPlan(cs=(None, 0.5), draws=2, train=20, test=10, recipe=FEW)
TINY_CLASSIFICATION = ClassificationPlan(
    cs=(None, 0.5),
    depths=((5, 3), (6, 4, 3), (4, 4, 4, 3)),
    sizes=(20, 30),
    controls=(0.5,),
    draws=2,
    test=10,
    recipe=FEW,
)
TINY_COLUMNS = ColumnsPlan(hidden=(6, 4), train=20, recipe=FEW)
TINY_FOLDS = FoldsPlan(
    classification=(0.5, 0.1), regression=(1.0,), folds=3, samples=20, hidden=(4,), classification_recipe=FEW,
    regression_recipe=FEW,
)  # fmt: skip
TINY_COMPARISON = replace(
    l1inf_comparison.SHORT,
    draws=1,
    train=20,
    test=10,
    hidden=(6, 4),
    recipe=FEW,
    images="digits:train[:200]",
    test_images="digits:test[:100]",
    images_hidden=(8,),
    epochs=1,
)


# -- the paper's numbers -----------------------------------------------------------------------------------------------

BY_DEPTH = """
∞ 1.535/70.30 1.674/69.90 1.510/69.10
0.50 0.461/83.14 0.478/84.78 0.542/82.42
0.16 0.351/84.67 0.441/87.03 0.456/84.41
0.13 0.322/85.35 0.376/87.23 0.431/84.89
0.10 0.312/86.10 0.324/87.78 0.383/86.03
0.07 0.245/88.42 0.260/88.34 0.274/87.98
0.04 0.103/89.12 0.134/89.57 0.131/88.33
0.01 0.072/87.74 0.068/88.48 -"""
BY_SIZE = """
∞ 1.674/69.90 1.576/71.00 1.528/72.20 1.508/75.70 1.489/76.60
0.16 0.441/87.03 0.343/88.10 0.258/89.30 0.208/91.50 0.199/92.74
0.13 0.376/87.23 0.334/87.80 0.252/89.47 0.171/91.76 0.171/92.80
0.10 0.324/87.78 0.280/87.60 0.223/90.30 0.176/90.70 0.169/90.80
0.07 0.260/88.34 0.241/87.80 0.189/90.80 0.162/91.21 0.133/91.86
0.04 0.134/89.57 0.112/89.94 0.102/91.31 0.084/91.72 0.073/92.24
0.01 0.068/88.48 0.079/89.15 0.034/90.30 0.036/91.00 0.024/91.47"""


@pytest.mark.parametrize(
    ("text", "table", "titles"), [(BY_DEPTH, PAPER_BY_DEPTH, PAPER_DEPTHS), (BY_SIZE, PAPER_BY_SIZE, PAPER_SIZES)]
)
def test_the_papers_numbers_are_those_of_its_tables(text: str, table: Any, titles: tuple[Any, ...]) -> None:
    lines = [line.split() for line in text.strip().splitlines()]
    assert [None if c == "∞" else float(c) for c, *_ in lines] == list(table)
    for c, *cells in lines:
        for title, cell in zip(titles, cells, strict=True):
            wanted = None if cell == "-" else tuple(float(number) for number in cell.split("/"))
            assert quote_paper(table, titles, None if c == "∞" else float(c), title) == wanted


def test_what_the_paper_does_not_print_is_not_made_up() -> None:
    assert quote_paper(PAPER_BY_SIZE, PAPER_SIZES, 0.5, 500) is None
    assert quote_paper(PAPER_BY_SIZE, PAPER_SIZES, 0.1, 600) is None


def test_the_full_plan_has_what_the_paper_prints() -> None:
    plan = FULL_CLASSIFICATION
    assert (plan.cs, plan.depths, plan.sizes) == (tuple(PAPER_BY_DEPTH), PAPER_DEPTHS, PAPER_SIZES)
    assert list(make_regularizers(0.1)) == list(PAPER_REGULARIZERS)


# -- many networks at once ---------------------------------------------------------------------------------------------


def alone(seed: int, widths: tuple[int, ...]) -> nn.Sequential:
    torch.manual_seed(seed)
    return make_perceptron(widths)


def test_a_stack_computes_what_its_networks_do() -> None:
    stack = Stack((7, 5, 4, 2), (3, 1))
    inputs = torch.randn(2, 6, 7)
    for number, seed in enumerate((3, 1)):
        wanted = alone(seed, (7, 5, 4, 2))(inputs[number])
        torch.testing.assert_close(stack(inputs)[number], wanted)
        torch.testing.assert_close(stack.outputs(number, inputs[number]), wanted.detach())


def test_a_stack_is_projected_as_single_layers_are() -> None:
    stack = Stack((7, 5, 4, 2), (0, 1))
    stack.project(0.3)
    for number in range(2):
        for layer, weight, bias in zip(alone(number, (7, 5, 4, 2))[:-1:2], stack.weights, stack.biases, strict=False):
            wanted = project(layer.weight, 0.3, layer.bias)
            torch.testing.assert_close((weight[number], bias[number]), wanted)
    assert torch.equal(stack.weights[-1][1], alone(1, (7, 5, 4, 2))[-1].weight), "the output layer is free"


def trained_alone(seed: int, x: Tensor, y: Tensor, batches: list[Tensor], c: float, recipe: Recipe) -> nn.Sequential:
    """The recipe for one network, in plain words of torch and by `L1Inf`."""
    model = alone(seed, (7, 5, 4, 2))
    hidden = [model[0], model[2]]
    groups = []
    for number, layer in enumerate(hidden, 1):
        layer.bias.data.zero_()
        groups += [
            {"params": [layer.weight], "lr": recipe.hidden * c * len(layer.weight) ** 0.5},
            {"params": [layer.bias], "lr": recipe.hidden * c**number},
        ]
    inner = torch.optim.SGD(groups, momentum=recipe.momentum)
    optimizer = L1Inf(inner, model, c)
    optimizer.project()
    step = recipe.output * c**recipe.exponent / c**2
    output = torch.optim.Adam(
        [{"params": [model[4].weight], "lr": step}, {"params": [model[4].bias], "lr": recipe.free}], eps=1e-20
    )
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(each, recipe.steps) for each in (inner, output)]
    for batch in batches:
        model.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        for layer in hidden:
            for parameter in layer.parameters():
                assert parameter.grad is not None
                parameter.grad /= parameter.grad.norm()
        optimizer.step()
        output.step()
        for schedule in schedules:
            schedule.step()
    last = L1Inf(inner, model, c * l1inf_stack.LAST_RADIUS)
    last.project()
    return model


def test_a_stack_is_trained_as_its_networks_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, c = Recipe(steps=6, batch=8), 0.4
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 7, generator=generator), torch.randint(2, (40,), generator=generator)
    batches = [torch.randint(40, (2, 8), generator=generator) for _ in range(recipe.steps)]
    left = iter(batches)
    monkeypatch.setattr(l1inf_stack, "_make_draws", lambda *arguments: lambda: next(left))
    stack = Stack((7, 5, 4, 2), (0, 1))
    train(stack, Task(x, y), [torch.arange(40)] * 2, Regularizer(c), recipe)
    for number in range(2):
        model = trained_alone(number, x, y, [batch[number] for batch in batches], c, recipe)
        for layer, weight, bias in zip(model[::2], stack.weights, stack.biases, strict=True):
            torch.testing.assert_close(weight[number], layer.weight)
            torch.testing.assert_close(bias[number], layer.bias)


@pytest.mark.parametrize("c", [0.5, 0.01])
def test_trained_networks_are_within_the_ball_and_have_zeros(c: float) -> None:
    draws = Draws.of(draw_classified_samples, 2, 50, 10, "cpu")
    stack, _ = l1inf_synthetic.train_stack_on_draws((500, 10, 5, 2), draws, Regularizer(c), Recipe(steps=20))
    assert max(max(norms) for norms in stack.norms()) <= c
    assert min(stack.sparsity()) > 0


def test_batches_are_of_a_networks_own_samples() -> None:
    samples = [torch.tensor([3]), torch.tensor([5, 9, 4])]
    draw = l1inf_stack._make_draws(samples, 50, 0, torch.device("cpu"))
    first, second = draw()
    assert set(first.tolist()) == {3} and set(second.tolist()) == {5, 9, 4}


def test_a_stack_needs_samples_for_every_network() -> None:
    task = Task(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="2 networks need the places of their samples each, got 1"):
        train(Stack((3, 2, 2), (0, 1)), task, [torch.arange(4)], Regularizer(), FEW)


def test_penalties_shrink_weights_and_dropout_leaves_the_test_alone() -> None:
    draws = Draws.of(draw_classified_samples, 1, 50, 10, "cpu")
    recipe = Recipe(steps=30)

    def size(regularizer: Regularizer) -> float:
        stack, _ = l1inf_synthetic.train_stack_on_draws((500, 8, 2), draws, regularizer, recipe)
        return float(sum(weight.detach().abs().sum() for weight in stack.weights))

    free = size(Regularizer())
    assert size(Regularizer(l1=0.1)) < free and size(Regularizer(l2=0.1)) < free
    stack = Stack((500, 8, 2), (0,))
    train(stack, draws.task, draws.train, Regularizer(dropout=0.5), recipe)
    assert measure(stack, draws.task, 0, draws.train[0], draws.test[0]) == measure(
        stack, draws.task, 0, draws.train[0], draws.test[0]
    )


def test_figures_are_those_of_the_definitions() -> None:
    draws = Draws.of(draw_linear, 1, 6, 5, "cpu")
    stack = Stack((1000, 3, 1), (0,))
    found = measure(stack, draws.task, 0, draws.train[0], draws.test[0])
    outputs = alone(0, (1000, 3, 1))(draws.task.inputs)[:, 0].detach()
    errors = (outputs - draws.task.targets).square() / 2
    assert found["train loss"] == pytest.approx(float(errors[:6].mean()), rel=1e-5)
    assert found["gap"] == pytest.approx(float(errors[6:].mean() - errors[:6].mean()), rel=1e-4)


def test_draws_are_those_of_their_seeds_however_many_there_are() -> None:
    one, two = (Draws.of(draw_classified_samples, count, 8, 4, "cpu") for count in (1, 2))
    assert torch.equal(one.task.inputs, two.task.inputs[:12])
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(two.task.inputs[two.train[1]], draw_classified_samples(8, generator)[0])
    later = Draws.of(draw_classified_samples, 1, 8, 4, "cpu", first=1)
    assert torch.equal(later.task.inputs, two.task.inputs[12:])
    assert torch.equal(two.task.targets[two.test[1]], draw_classified_samples(4, generator)[1])


# -- what the paper claims ---------------------------------------------------------------------------------------------


def test_on_a_small_scale_the_gap_falls_with_c_and_the_accuracy_rises() -> None:
    draws = Draws.of(draw_classified_samples, 1, 500, 1000, "cpu")
    free, half, small = (
        train_networks((500, 100, 20, 2), draws, Regularizer(c), Recipe(steps=250))[0] for c in (None, 0.5, 0.04)
    )
    assert free["gap"] > half["gap"] > small["gap"]
    assert half["zeros"] < small["zeros"]
    assert small["test accuracy"] > free["test accuracy"] + 0.10


def stored(part: str) -> Any:
    figures = json.loads(STORED.read_text())["figures"]
    if part not in figures:
        pytest.skip(f"{part} is not stored")
    return figures[part]


def test_as_stored_the_gap_falls_with_c_at_every_depth_and_size() -> None:
    rows, plan = stored("classification")["rows"], FULL_CLASSIFICATION
    settings = [(depth, 500) for depth in plan.depths] + [(plan.depths[1], size) for size in plan.sizes]
    for depth, size in settings:
        gaps = {row["c"]: row["gap"] for row in rows if row["hidden"] == list(depth) and row["size"] == size}
        assert all(gaps[larger] > gaps[smaller] for larger, smaller in pairwise(plan.cs)), (depth, size, gaps)


def test_as_stored_the_constraint_gains_ten_points_of_accuracy_at_every_depth_and_size() -> None:
    for row in (rows := stored("classification")["rows"]):
        same = [other for other in rows if (other["hidden"], other["size"]) == (row["hidden"], row["size"])]
        (free,) = (other["test accuracy"] for other in same if other["c"] is None)
        assert max(other["test accuracy"] for other in same) >= free + 0.10
        if row["c"] is not None and row["size"] == 500:
            assert row["test accuracy"] >= free + 0.10, row


def test_as_stored_draws_that_had_no_part_in_the_recipe_tell_the_same() -> None:
    free, *constrained = stored("fresh")["rows"]
    assert all(one["gap"] > other["gap"] for one, other in pairwise([free, *constrained]))
    assert all(row["test accuracy"] >= free["test accuracy"] + 0.10 for row in constrained)


def test_as_stored_the_fall_of_the_gap_is_the_outputs_steps_doing() -> None:
    large, small = stored("classification")["controls"]
    assert abs(large["gap"] - small["gap"]) < 0.05 and large["c"] > 10 * small["c"]


def test_as_stored_regressions_gap_falls_and_its_zeros_grow() -> None:
    rows = stored("regression")["rows"]
    assert all(one["zeros"] <= other["zeros"] for one, other in pairwise(rows))
    fitting = [row for row in rows if row["c"] is None or row["c"] >= 0.1]  # below, networks are far from learning it
    assert all(one["gap"] > other["gap"] for one, other in pairwise(fitting))


def test_as_stored_the_constraint_finds_the_inputs_that_matter() -> None:
    free, constrained = (network["share of the inputs that matter"] for network in stored("columns")["networks"])
    assert constrained > 10 * free


def test_as_stored_ours_is_the_best_regularizer_of_the_synthetic_data() -> None:
    accuracy = {row["regularizer"]: row["synthetic"] for row in stored("regularizers")["rows"]}
    assert max(accuracy, key=accuracy.__getitem__) == OURS


# -- parts -------------------------------------------------------------------------------------------------------------


def test_regression_has_a_row_for_every_c() -> None:
    figures = run_regression(TINY_REGRESSION, "cpu")
    assert [row["c"] for row in figures["rows"]] == [None, 0.5]
    for row in figures["rows"]:
        assert row["gap"] == pytest.approx(row["test loss"] - row["train loss"]) and len(row["gaps"]) == 2


def test_classification_has_both_tables_and_the_controls() -> None:
    figures = run_classification(TINY_CLASSIFICATION, "cpu")
    places = [(tuple(row["hidden"]), row["size"], row["c"]) for row in figures["rows"]]
    depths = TINY_CLASSIFICATION.depths
    assert sorted(places, key=str) == sorted(
        [(depth, 20, c) for depth in depths for c in (None, 0.5)] + [(depths[1], 30, c) for c in (None, 0.5)], key=str
    )
    assert [row["c"] for row in figures["controls"]] == [0.5]
    for row in figures["rows"]:
        assert row["test accuracy"] == pytest.approx(sum(row["test accuracies"]) / 2)


def test_scores_of_folds_are_those_of_networks_trained_without_them() -> None:
    inputs, targets = draw_classified_samples(20, torch.Generator().manual_seed(0))
    score = FoldScores(Task(inputs, targets), (500, 4, 2), 4, FEW)
    parts = deal_folds(20, 4, 0)
    rests = [torch.cat([*parts[:n], *parts[n + 1 :]]).sort().values for n in range(4)]
    found = [score(0.3, rest, part) for rest, part in zip(rests, parts, strict=True)]
    stack = Stack((500, 4, 2), [0] * 4)
    train(stack, Task(inputs, targets), rests, Regularizer(0.3), FEW)
    for number, part in enumerate(parts):
        right = stack.outputs(number, inputs[part]).argmax(1) == targets[part]
        assert found[number] == pytest.approx(float(right.double().mean()))
    assert list(score.known) == [0.3], "all folds of a c are trained at once"


def test_folds_choose_the_best_mean() -> None:
    figures = run_folds(TINY_FOLDS, "cpu")
    for name, candidates in (("classification", (0.5, 0.1)), ("regression", (1.0,))):
        rows = figures[name]["rows"]
        assert [row["c"] for row in rows] == list(candidates) and all(len(row["scores"]) == 3 for row in rows)
        assert max(row["mean"] for row in rows) == next(r["mean"] for r in rows if r["c"] == figures[name]["c"])


def test_dropout_shares_the_weights_and_comes_after_every_relu() -> None:
    model = make_perceptron((4, 3, 3, 2))
    dropping = add_dropout(model, 0.5)
    assert [type(layer).__name__ for layer in dropping.children()] == [*["Linear", "ReLU", "Dropout"] * 2, "Linear"]
    assert next(iter(dropping.parameters())) is next(model.parameters())
    assert add_dropout(model, 0.0) is model


def test_the_comparison_has_the_papers_rows_and_ours_has_zeros() -> None:
    rows = run_comparison(TINY_COMPARISON, "cpu")["rows"]
    assert [row["regularizer"] for row in rows] == list(PAPER_REGULARIZERS)
    assert rows[-1]["zeros"]["synthetic"] > 0 and rows[0]["zeros"] == {"synthetic": 0, "images": 0}


def test_columns_share_out_the_whole_norm() -> None:
    figures, pictures = run_columns(TINY_COLUMNS, "cpu")
    assert list(pictures) == ["no constraint", "c = 0.04"]
    for network, shares in zip(figures["networks"], pictures.values(), strict=True):
        assert shares.shape == (6, 20) and float(shares.max()) <= 1
        first = network["share by input"]
        assert network["share of the inputs that matter"] == pytest.approx(sum(first[:4]), abs=1e-4)
        assert sum(first) <= 1 + 1e-4


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(l1inf, "SHORT_REGRESSION", TINY_REGRESSION)
    monkeypatch.setattr(l1inf, "SHORT_CLASSIFICATION", TINY_CLASSIFICATION)
    monkeypatch.setattr(l1inf, "SHORT_COLUMNS", TINY_COLUMNS)
    monkeypatch.setattr(l1inf_folds, "SHORT", TINY_FOLDS)
    monkeypatch.setattr(l1inf_comparison, "SHORT", TINY_COMPARISON)


def test_each_part_is_shown_and_stored(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    for part in ("columns", "classification", "fresh", "regression", "regularizers", "folds"):
        monkeypatch.setattr(sys, "argv", ["l1inf", "--only", part, "--results", str(tmp_path)])
        main()
    shown = capsys.readouterr().out
    for text in ("short mode", "Depth, 20 samples", "cross-validation", "Regression, 20 samples", "(91.00)"):
        assert text in shown
    figures = json.loads((tmp_path / "l1inf_short.json").read_text())["figures"]
    assert list(figures) == [part for part in PARTS if part != "cifar"]
    assert all("environment" in part and "plan" in part for part in figures.values())
    assert (tmp_path / "l1inf_short_columns.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_figures_are_stored_all_the_same(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    l1inf.run("columns", False, "cpu", tmp_path / "l1inf")
    assert "tamis[plots]" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["l1inf.json"]
