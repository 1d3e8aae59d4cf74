"""The paper's experiments on quantization, on a tiny scale: their figures, their tables, what is stored and drawn."""

import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import tamis
from experiments import RESULTS, gpfq, gpfq_accuracy, gpfq_decay
from experiments.gpfq import PAPER_ANALOG, PAPER_C_ALPHAS, PARTS, main, quote_paper_accuracy
from experiments.gpfq_accuracy import (
    FULL_CONVOLUTIONS,
    FULL_PERCEPTRON,
    PAPERS_METHODS,
    RECOMMENDED,
    SHORT_CONVOLUTIONS,
    SHORT_PERCEPTRON,
    Plan,
    load_pixels,
    make_convolutions,
    make_perceptron,
    run_figure_1,
    run_table_1,
)
from experiments.gpfq_decay import (
    GROWING_SAMPLES,
    GROWING_WIDTH,
    DecayPlan,
    bound,
    fit_slope,
    measure_median_errors,
    run_decay,
)
from experiments.record import keep
from tamis.training import Data, Settings, load_data

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

TINY_DECAY = DecayPlan(widths=(32, 128, 512), few_samples=8, samples=(4, 16, 64), wide=256, neurons=6, draws=3)
TINY_PERCEPTRON = Plan(
    Settings(epochs=6, batch=25, optimizer="adamw", learning_rate=0.01, weight_decay=0.0),
    widths=(12, 10),
    train="digits:train[:400]",
    validation="digits:train[400:500]",
    calibration="digits:train[:200]",
    test="digits:test[:200]",
    levels=(3,),
    c_alphas=(1, 2, 3),
)
TINY_CONVOLUTIONS = Plan(
    Settings(epochs=1, batch=20, learning_rate=0.05, augment=True),
    widths=(3, 4, 5),
    train="./images.npz[:60]",
    calibration="./images.npz[:40]",
    test="./images.npz[60:]",
    levels=(3, 16),
    c_alphas=(2, 4),
)
Figures = dict[str, Any]


# -- the paper's numbers -------------------------------------------------------------------------------------------

# As the paper prints them: C_α, analog, GPFQ, MSQ, for 3, 4, 8 and 16 levels.
TABLE_1 = {
    3: """2 0.8922 0.7487 0.1347
          3 0.8922 0.7350 0.1464
          4 0.8922 0.6919 0.0991
          5 0.8922 0.5627 0.1000
          6 0.8922 0.3515 0.1000""",
    4: """2 0.8922 0.7522 0.2209
          3 0.8922 0.8036 0.2800
          4 0.8922 0.7489 0.1742
          5 0.8922 0.6748 0.1835
          6 0.8922 0.5365 0.1390""",
    8: """2 0.8922 0.7942 0.4173
          3 0.8922 0.8670 0.3754
          4 0.8922 0.8710 0.5014
          5 0.8922 0.8567 0.5652
          6 0.8922 0.8600 0.5360""",
    16: """2 0.8922 0.8124 0.4525
           3 0.8922 0.8778 0.7776
           4 0.8922 0.8879 0.8443
           5 0.8922 0.8888 0.8291
           6 0.8922 0.8810 0.7831""",
}


def test_the_papers_numbers_are_those_of_its_table() -> None:
    for levels, block in TABLE_1.items():
        for line in block.splitlines():
            c_alpha, analog, by_gpfq, by_msq = map(float, line.split())
            assert analog == PAPER_ANALOG
            assert quote_paper_accuracy("GPFQ", levels, int(c_alpha)) == by_gpfq
            assert quote_paper_accuracy("MSQ", levels, int(c_alpha)) == by_msq
    assert FULL_CONVOLUTIONS.levels == tuple(TABLE_1) and FULL_CONVOLUTIONS.c_alphas == PAPER_C_ALPHAS


@pytest.mark.parametrize("unknown", [("GPFQ joint", 3, 2), ("GPFQ", 5, 2), ("MSQ", 3, 7)], ids=str)
def test_what_the_paper_did_not_measure_is_not_made_up(unknown: tuple[str, int, int]) -> None:
    assert quote_paper_accuracy(*unknown) is None


# -- networks ------------------------------------------------------------------------------------------------------


def kinds(model: nn.Sequential) -> str:
    return " ".join(type(module).__name__ for module in model)


def shapes(model: nn.Sequential) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in model.parameters() if value.dim() > 1]


def test_the_perceptron_is_the_papers() -> None:
    model = make_perceptron(FULL_PERCEPTRON.widths)
    assert kinds(model) == "Flatten Linear ReLU BatchNorm1d Linear ReLU BatchNorm1d Linear"
    assert shapes(model) == [(500, 784), (300, 500), (10, 300)]
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_the_convolutional_network_is_the_papers() -> None:
    model = make_convolutions(FULL_CONVOLUTIONS.widths)
    convolution, pool = "Conv2d ReLU BatchNorm2d Conv2d ReLU BatchNorm2d ", "MaxPool2d Dropout "
    dense = "Flatten Linear ReLU BatchNorm1d Dropout Linear"
    assert kinds(model) == convolution + pool + convolution + pool + convolution + dense
    assert shapes(model) == [
        *[(32, 3, 3, 3), (32, 32, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (128, 64, 3, 3), (128, 128, 3, 3)],
        *[(128, 128 * 8 * 8), (10, 128)],
    ]
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_pixels_are_on_the_scale_from_0_to_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    stored = Data(images, torch.zeros(1, dtype=torch.int64), "mnist:train", (0.1307,), (0.3081,))
    monkeypatch.setattr(gpfq_accuracy, "load_data", lambda spec: stored)
    assert torch.equal(load_pixels("mnist:train").normalised().flatten() * 255, torch.arange(256.0))


def test_the_plans_keep_validation_and_test_apart_from_training() -> None:
    for plan in (FULL_PERCEPTRON, SHORT_PERCEPTRON):
        trained_to, validated_from = (int(re.findall(r"\d+", spec)[-1]) for spec in (plan.train, plan.validation))
        assert trained_to <= validated_from
        assert plan.test.startswith("mnist:test") and plan.validation.startswith("mnist:train")
    assert FULL_CONVOLUTIONS.calibration == "cifar10:train[:5000]"
    assert FULL_PERCEPTRON.calibration == "mnist:train[:25000]"
    assert SHORT_CONVOLUTIONS.test.startswith("cifar10:test")


# -- decay ---------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_the_definition() -> None:
    """Iteration (2) of the paper, neuron by neuron, weight by weight."""
    width, samples, neurons, draws = 20, 5, 3, 3
    found: dict[str, list[float]] = {"GPFQ": [], "MSQ": []}
    for seed in range(draws):
        weights, data = gpfq_decay._draw(width, samples, neurons, seed)
        for w in weights:
            state = torch.zeros(samples, dtype=torch.float64)
            for t in range(width):
                choices = [state + (w[t] - p) * data[:, t] for p in (-1.0, 0.0, 1.0)]
                state = min(choices, key=lambda choice: float(choice.norm()))
            whole = float((data @ w).norm())
            found["GPFQ"].append(float(state.norm()) / whole)
            found["MSQ"].append(float((data @ (w - w.round())).norm()) / whole)
    errors = measure_median_errors(width, samples, neurons, draws)
    assert errors == {name: pytest.approx(sorted(values)[draws * neurons // 2]) for name, values in found.items()}


@pytest.fixture(scope="module")
def decaying() -> Figures:
    return run_decay(TINY_DECAY)


def test_gpfq_falls_with_width_and_rises_with_samples_and_msq_does_neither(decaying: Figures) -> None:
    by_width, by_samples = decaying[GROWING_WIDTH], decaying[GROWING_SAMPLES]
    assert [(point["N₀"], point["m"]) for point in by_width] == [(32, 8), (128, 8), (512, 8)]
    assert [(point["N₀"], point["m"]) for point in by_samples] == [(256, 4), (256, 16), (256, 64)]
    falling, rising = ([point["GPFQ"] for point in points] for points in (by_width, by_samples))
    assert falling == sorted(falling, reverse=True) and rising == sorted(rising)
    for point in (*by_width, *by_samples):
        assert point["GPFQ"] < point["MSQ"] and 0.3 < point["MSQ"] < 0.7  # ½ in the limit
    assert decaying["slopes"][GROWING_WIDTH] == pytest.approx(-0.5, abs=0.2)
    assert decaying["slopes"][GROWING_SAMPLES] == pytest.approx(0.5, abs=0.2)


def test_the_bound_begins_where_the_errors_do(decaying: Figures) -> None:
    for series in (GROWING_WIDTH, GROWING_SAMPLES):
        points = decaying[series]
        assert points[0]["scaled bound"] == pytest.approx(points[0]["GPFQ"])
        for point in points:
            shape = math.log(point["N₀"]) * (point["m"] / point["N₀"]) ** 0.5
            assert bound(point["N₀"], point["m"]) == pytest.approx(shape)
            first = bound(points[0]["N₀"], points[0]["m"])
            assert point["scaled bound"] / points[0]["scaled bound"] == pytest.approx(shape / first)


def test_the_slope_of_a_power_is_its_exponent() -> None:
    assert fit_slope((2, 8, 64), [3 * size**-0.5 for size in (2, 8, 64)]) == pytest.approx(-0.5)


# -- accuracies ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpfq")


@pytest.fixture(scope="module")
def drawn_perceptron(root: Path) -> Figures:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpfq_accuracy, "make_perceptron", lambda widths: make_perceptron(widths, inputs=64))
        return run_figure_1(TINY_PERCEPTRON, root / "short" / "perceptron", "cpu")


def test_figure_1_has_every_accuracy(drawn_perceptron: Figures) -> None:
    figures = drawn_perceptron
    assert figures["plan"] == asdict(TINY_PERCEPTRON)
    assert list(figures["by C_α"]) == ["GPFQ", "MSQ"]
    for points in figures["by C_α"].values():
        assert [point["C_α"] for point in points] == [1, 2, 3]
        assert all(0 <= point[data] <= 1 for point in points for data in ("validation", "test"))
    assert list(figures["by layers quantized"]) == ["GPFQ", "MSQ", *RECOMMENDED]
    for accuracies in figures["by layers quantized"].values():
        assert len(accuracies) == 4 and accuracies[0] == figures["analog"]
    assert figures["analog"] > 0.6 and figures["by layers quantized"]["optq"][-1] > 0.5
    assert list(figures["seconds"]) == ["training", "quantization"]


def test_c_alpha_is_chosen_on_the_validation_data_alone(drawn_perceptron: Figures) -> None:
    for name, points in drawn_perceptron["by C_α"].items():
        best = drawn_perceptron["C_α best on validation"][name]
        (chosen,) = [point for point in points if point["C_α"] == best]
        assert chosen["validation"] == max(point["validation"] for point in points)
        assert drawn_perceptron["by layers quantized"][name][-1] == chosen["test"]


def test_msq_sees_few_images_because_it_looks_at_none(root: Path) -> None:
    """What is left out of its calibration data changes nothing."""
    torch.manual_seed(0)
    model = make_perceptron((8,), inputs=64).eval()
    net = tamis.trace(model, load_data("digits:train").example)
    sizes = (gpfq_accuracy.UNUSED_DATA, 500)
    codes = [
        tamis.quantize(net, load_data(f"digits:train[:{size}]"), 3, c_alpha=2, progress=False, **PAPERS_METHODS["MSQ"])
        for size in sizes
    ]
    for name in codes[0].codes:
        assert torch.equal(codes[0].codes[name].indices, codes[1].codes[name].indices)


@pytest.fixture(scope="module")
def images(root: Path) -> Path:
    """Eighty random images of 32×32 in a file."""
    import numpy as np

    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (80, 32, 32, 3), dtype=np.uint8), generator.integers(0, 10, 80)
    y[:10] = y[60:70] = range(10)
    np.savez(root / "images.npz", x=x, y=y)
    return root


@pytest.fixture(scope="module")
def tabulated(images: Path) -> Figures:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(images)
        return run_table_1(TINY_CONVOLUTIONS, images / "short" / "convolutions", "cpu")


@pytest.mark.slow
def test_table_1_has_a_row_for_each_number_of_levels_and_c_alpha(tabulated: Figures) -> None:
    assert [(row["levels"], row["C_α"]) for row in tabulated["rows"]] == [(3, 2), (3, 4), (16, 2), (16, 4)]
    assert [row["levels"] for row in tabulated["searched"]] == [3, 16]
    for rows, methods in ((tabulated["rows"], PAPERS_METHODS), (tabulated["searched"], ["optq"])):
        assert all(0 <= row[method] <= 1 for row in rows for method in methods)
    assert 0 <= tabulated["analog"] <= 1


# -- the program ---------------------------------------------------------------------------------------------------

# As a run might give it, but for the paper's own numbers in the place of ours.
TABLE: Figures = {
    "plan": asdict(FULL_CONVOLUTIONS),
    "analog": 0.9,
    "rows": [
        {"levels": levels, "C_α": c_alpha, "GPFQ": 0.8, "MSQ": 0.125}
        for levels in FULL_CONVOLUTIONS.levels
        for c_alpha in FULL_CONVOLUTIONS.c_alphas
    ],
    "searched": [{"levels": levels, "optq": 0.88} for levels in FULL_CONVOLUTIONS.levels],
    "seconds": {"training": 1.0, "quantization": 1.0},
}


@pytest.fixture
def program(
    root: Path, drawn_perceptron: Figures, decaying: Figures, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """The program with its parts done."""
    found = {"figure-1": drawn_perceptron, "table-1": TABLE, "decay": decaying}
    monkeypatch.setattr(gpfq, "run", lambda part, *_: found[part])

    def started(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["gpfq.py", *map(str, arguments)])
        main()

    return started


def test_the_tables_show_the_paper_beside_ours(
    program: Callable[..., None], drawn_perceptron: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    program()
    shown = capsys.readouterr().out
    assert shown.startswith("\nThis is the short mode")
    assert "analog: 90.0 (89.2); in parentheses the paper's" in shown
    rows = [line.split() for line in shown.splitlines()]
    for levels in FULL_CONVOLUTIONS.levels:
        for c_alpha in FULL_CONVOLUTIONS.c_alphas:
            theirs = [
                f"({100 * float(quote_paper_accuracy(name, levels, c_alpha) or 0):.1f})" for name in ("GPFQ", "MSQ")
            ]
            assert [str(levels), str(c_alpha), "80.0", theirs[0], "12.5", theirs[1]] in rows
        assert [str(levels), "88.0"] in rows
    tests = [f"{100 * point['test']:.1f}" for point in drawn_perceptron["by C_α"]["MSQ"]]
    assert ["MSQ", *tests] in rows
    assert "C_α chosen on digits:train[400:500]" in shown
    assert "slope -0.5" in shown or "slope -0.4" in shown


def test_full_figures_say_nothing_of_a_short_mode(
    program: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    program("--full", "--only", "decay")
    shown = capsys.readouterr().out
    assert "short mode" not in shown and "Theorem 2" in shown and "Table 1" not in shown


def test_figures_are_stored_part_by_part_and_drawn(program: Callable[..., None], tmp_path: Path) -> None:
    program("--only", "table-1", "--results", tmp_path)
    program("--only", "decay", "--results", tmp_path)
    program("--only", "figure-1", "--results", tmp_path)
    stored = json.loads((tmp_path / "gpfq_short.json").read_text())["figures"]
    assert list(stored) == list(PARTS)
    for part, figures in stored.items():
        assert f"--only {part}" in figures["environment"]["command"]
    assert {name: stored["table-1"][name] for name in TABLE} == json.loads(json.dumps(TABLE))
    names = ["gpfq_short.json", *(f"gpfq_short_{part}.svg" for part in ("decay", "figure_1", "table_1"))]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names[1:]:
        assert ElementTree.parse(tmp_path / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.usefixtures("unrendered_pictures")
def test_full_figures_have_a_file_of_their_own(program: Callable[..., None], tmp_path: Path) -> None:
    program("--full", "--only", "decay", "--results", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gpfq.json", "gpfq_decay.svg"]


def test_a_part_that_is_measured_again_replaces_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "gpfq.json"
    for part, value in (("decay", 1), ("figure-1", 2), ("decay", 3)):
        keep(path, part, {"value": value}, PARTS)
    stored = json.loads(path.read_text())["figures"]
    assert {part: figures["value"] for part, figures in stored.items()} == {"figure-1": 2, "decay": 3}


def test_without_matplotlib_the_figures_are_stored_all_the_same(
    program: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # makes importing it raise
    program("--only", "decay", "--results", tmp_path)
    assert capsys.readouterr().out.startswith("no picture was drawn: figures need matplotlib: pip install")
    assert [path.name for path in tmp_path.iterdir()] == ["gpfq_short.json"]


def test_lines_that_do_not_depend_on_c_alpha_are_flat(drawn_perceptron: Figures) -> None:
    first, second = gpfq.make_panels_of_figure_1(drawn_perceptron)
    analog = 100 * drawn_perceptron["analog"]
    assert first.curves["analog"] == [(1, analog), (3, analog)]
    assert set(first.curves) == {"GPFQ", "MSQ", "analog", *RECOMMENDED}
    assert all(curve[0] == (0, analog) for curve in second.curves.values())


def test_a_panel_of_the_table_has_the_papers_curves() -> None:
    panels = gpfq.make_panels_of_table_1(TABLE)
    assert [panel.title for panel in panels] == [f"CIFAR-10, {levels} levels" for levels in (3, 4, 8, 16)]
    theirs = panels[0].curves["GPFQ, the paper's"]
    assert theirs[0] == (2, pytest.approx(74.87)) and "GPFQ, the paper's" in panels[0].dashed


def test_missing_data_ends_the_program_with_one_line(failing_program: Callable[..., tuple[object, str, str]]) -> None:
    status, _, said = failing_program("gpfq", "--only", "table-1")
    assert status == 1
    assert said.startswith("error: there is no dataset 'cifar10:train'") and said.count("\n") == 1


@pytest.mark.slow
def test_the_whole_program_runs_and_does_not_train_twice(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(images)
    monkeypatch.setattr(gpfq, "SHORT_PERCEPTRON", replace(TINY_PERCEPTRON, c_alphas=(2,)))
    monkeypatch.setattr(gpfq, "SHORT_CONVOLUTIONS", replace(TINY_CONVOLUTIONS, levels=(3,), c_alphas=(2,)))
    monkeypatch.setattr(gpfq_decay, "SHORT", TINY_DECAY)
    monkeypatch.setattr(gpfq_accuracy, "make_perceptron", lambda widths: make_perceptron(widths, inputs=64))
    monkeypatch.setattr(sys, "argv", ["gpfq.py", "--directory", str(tmp_path), "--results", str(tmp_path / "results")])
    outputs = []
    for _ in range(2):
        main()
        outputs.append(capsys.readouterr())
    assert "training" in outputs[0].err and "training" not in outputs[1].err
    assert outputs[0].out == outputs[1].out
    assert len(list((tmp_path / "results").iterdir())) == 4


# -- what was stored -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored() -> Figures:
    figures: Figures = json.loads((RESULTS / "gpfq.json").read_text())["figures"]
    return figures


def test_the_stored_figures_are_those_of_the_full_plans(stored: Figures) -> None:
    plans = {"figure-1": FULL_PERCEPTRON, "table-1": FULL_CONVOLUTIONS, "decay": gpfq_decay.FULL}
    assert list(stored) == list(plans) == list(PARTS)
    for part in stored:
        assert stored[part]["plan"] == json.loads(json.dumps(asdict(plans[part])))
        assert "experiments gpfq --full" in stored[part]["environment"]["command"]
        assert ElementTree.parse(RESULTS / f"gpfq_{part.replace('-', '_')}.svg").getroot().tag.endswith("svg")


def test_the_stored_figures_say_what_the_paper_says(stored: Figures) -> None:
    points = stored["figure-1"]["by C_α"]
    worst = {name: min(point["test"] for point in points[name]) for name in points}
    assert worst["GPFQ"] - worst["MSQ"] > 0.1
    rows = stored["table-1"]["rows"]
    assert len(rows) == len(FULL_CONVOLUTIONS.levels) * len(PAPER_C_ALPHAS)
    assert sum(row["GPFQ"] - row["MSQ"] for row in rows) / len(rows) > 0.1
    assert stored["decay"]["slopes"][GROWING_WIDTH] == pytest.approx(-0.5, abs=0.05)
