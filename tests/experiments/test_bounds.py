"""The experiments on bounds, on a tiny scale: their figures, their tables, what is stored and drawn."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pretrained import FOLDER, pretrained
from safetensors.torch import save_file
from torch import nn

import tamis
from experiments import RESULTS, bounds, bounds_l1inf, bounds_predecessors
from experiments.bounds import PAPER_CONSTANTS, PARTS, main, run
from experiments.bounds_l1inf import (
    LARGEST_TARGET,
    L1InfPlan,
    bound_output_norm,
    draw_classified_samples,
    draw_linear_samples,
    guess_of_classes,
    make_classification,
    make_regression,
    run_l1inf,
    scale_back,
    train_network,
)
from experiments.bounds_predecessors import PredecessorPlan, run_table_4_1
from experiments.bounds_resnets import (
    FULL_IMAGENET,
    FULL_PATH_NORMS,
    SHORT_IMAGENET,
    ImageNetPlan,
    PathNormPlan,
    compute_constants,
    compute_figures,
    compute_radius,
    load_published,
    run_table_7_1,
    run_table_7_2,
)
from experiments.bounds_training import Batches, compute_margins, compute_outputs, fit, make_perceptron
from experiments.record import keep
from tamis.bounds.shape import GraphShape
from tamis.errors import DataNotFound, InvalidInput
from tamis.training import Data
from tamis.training.models import MODELS

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

Figures = dict[str, Any]
DEPTHS = {"resnet18": 18, "resnet34": 34, "resnet50": 50, "resnet101": 101, "resnet152": 152}  # Table E.1
TINY_L1INF = L1InfPlan(sizes=((60, 4),), classification=(None, 0.5), regression=(1.0,), batch=20, test=200)
TINY_PREDECESSORS = PredecessorPlan(depths=(1, 3), width=4, epochs=1, data="digits:train[:200]")


def two_digits(value: float) -> str:
    return f"{value:#.2g}"


@pytest.fixture(scope="module")
def stored() -> Figures:
    found: Figures = json.loads((RESULTS / "bounds.json").read_text())["figures"]
    return found


# -- Table 7.1 -----------------------------------------------------------------------------------------------------


def resnet_shape(name: str) -> GraphShape:
    """The graph of a ResNet for 3×224×224 as the thesis describes it."""
    size = {"d_in": 3 * 224 * 224, "d_out": 1000, "params": 1, "rescalings": 0}
    pooling = {"kernel": 9, "pool_kinds": 1, "pool_layers": 1}
    return GraphShape(depth=DEPTHS[name], biases=True, pooling_in_layers=True, **size, **pooling)


def printed_constants(depth: int) -> list[float]:
    """4BC/√n of Theorem 4.4.1 and of Remark 4.4.1, transcribed for P = 1, K = 9 and M = 1."""
    ends = (3 * 224 * 224 + 1) * 1000
    general = depth * math.log((3 + 2) * 9) + math.log((3 + 2) / (1 + 1) * ends)
    sharpened = depth * math.log(3) + math.log(9) + math.log(ends)
    return [4 * 2.64 * math.sqrt(squared) / math.sqrt(1_268_355) for squared in (general, sharpened)]


@pytest.mark.parametrize("name", DEPTHS)
def test_the_ten_numbers_of_table_7_1_follow_from_the_described_graphs(name: str) -> None:
    found = compute_constants(resnet_shape(name), FULL_IMAGENET)
    general, sharpened = printed_constants(DEPTHS[name])
    assert found == {"general": pytest.approx(general), "sharpened": pytest.approx(sharpened)}
    for row, value in found.items():
        assert two_digits(value) == two_digits(PAPER_CONSTANTS[row][name])


def test_the_ten_numbers_of_table_7_1_are_stored(stored: Figures) -> None:
    rows = {row["model"]: row for row in stored["table-7.1"]["rows"]}
    assert list(rows) == list(DEPTHS)
    for name, row in rows.items():
        shape = row["shape"]
        assert (shape["depth"], shape["kernel"], shape["pool_kinds"], shape["pool_layers"]) == (DEPTHS[name], 9, 1, 1)
        for which in ("general", "sharpened"):
            assert two_digits(row[which]) == two_digits(PAPER_CONSTANTS[which][name])


def test_a_row_of_table_7_1_is_read_off_the_graph() -> None:
    row = run_table_7_1(ImageNetPlan(models=("mlp",), n=10_000, radius=2.0))["rows"][0]
    squared = 3 * math.log(3) + math.log((8 * 8 + 1) * 10)  # no pooling
    assert row["sharpened"] == pytest.approx(4 * 2.0 * math.sqrt(squared) / 100)
    assert row["shape"]["depth"] == 3


@pytest.mark.slow
def test_table_7_1_in_full_is_as_stored(stored: Figures) -> None:
    assert run_table_7_1(FULL_IMAGENET)["rows"] == [
        {**row, **{which: pytest.approx(row[which]) for which in ("general", "sharpened")}}
        for row in stored["table-7.1"]["rows"]
    ]


# -- Table 7.2 -----------------------------------------------------------------------------------------------------


def images(count: int, name: str, mean: tuple[float, ...] = (0.5, 0.25)) -> Data:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.randint(0, 256, (count, 2, 4, 4), dtype=torch.uint8, generator=generator)
    return Data(inputs, torch.arange(count) % 3, name, mean, (0.5, 0.25)[: len(mean)], classes=3)


def tiny_network() -> tamis.Network:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)]
    return tamis.trace(nn.Sequential(*layers).eval(), torch.zeros(1, 2, 4, 4))


def test_the_figures_of_a_network_are_what_they_say() -> None:
    net, plan = tiny_network(), PathNormPlan(n=400, delta=0.1)
    train, test = images(30, "train"), images(20, "test")
    found = compute_figures(net, plan, train, test)
    for q, log10 in found["log10 ‖Φ‖_q"].items():
        assert 10**log10 == pytest.approx(tamis.path_norm(net, float(q), float(q)))
    assert found["log10 Π"] >= found["log10 ‖Φ‖_q"]["1"]
    constant = math.sqrt(2 * math.log(3) + math.log(33 * 3))  # two neurons deep, 32 inputs and one for the biases
    factor = 4 * math.sqrt(2) * 3.0 * constant / math.sqrt(400)  # 4 L B C / √n
    for name, log10 in (("peeling", found["log10 ‖Φ‖_q"]["1"]), ("peeling, by Π", found["log10 Π"])):
        assert found["gap"][name]["log10"] == pytest.approx(math.log10(factor) + log10)
    logits = net(train.normalised())
    right = [int(row.argmax()) == int(label) for row, label in zip(logits, train.labels, strict=True)]
    assert found["train"]["error"] == pytest.approx(1 - sum(right) / 30)
    margin = found["margin"]
    parts = [margin[name] for name in ("margin_loss", "complexity", "confidence")]
    assert margin["value"] == pytest.approx(sum(parts)) and margin["informative"] == (margin["value"] < 1)
    assert margin["largest margin"] == pytest.approx(float(compute_margins(logits, train.labels).max()), abs=1e-5)


def test_the_radius_holds_for_every_image() -> None:
    data = images(2, "images")
    assert compute_radius(data) == 3.0  # (1 − 0.25) / 0.25
    for fill in (0, 255):
        extreme = replace(data, inputs=torch.full_like(data.inputs, fill))
        assert float(extreme.normalised().abs().max()) <= compute_radius(data) + 1e-6


def test_data_without_a_mean_has_no_radius() -> None:
    with pytest.raises(InvalidInput, match="'plain' needs a mean and a std"):
        compute_radius(images(2, "plain", mean=()))


def test_a_folder_without_the_networks_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=r"no 'resnet20_cifar10.safetensors' in .*--models"):
        load_published("resnet20", tmp_path)


def test_pruning_lowers_every_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.bounds_resnets.load_published", lambda *_: tiny_network())
    monkeypatch.setattr("experiments.bounds_resnets.load_data", lambda spec: images(20, spec))
    plan = PathNormPlan(models=("tiny",), amounts=(0.0, 0.5, 0.9), n=100, train="train", test="test")
    rows = run_table_7_2(plan, Path())["rows"]
    assert [(row["model"], row["pruned"]) for row in rows] == [("tiny", amount) for amount in plan.amounts]
    for q in ("1", "2", "4"):
        norms = [row["log10 ‖Φ‖_q"][q] for row in rows]
        assert norms == sorted(norms, reverse=True) and norms[0] > norms[-1]


@pytest.mark.slow
def test_the_stored_path_norms_are_those_of_the_published_networks(stored: Figures) -> None:
    dense = {row["model"]: row for row in stored["table-7.2"]["rows"] if row["pruned"] == 0}
    for name, row in dense.items():
        pretrained(name)  # skips where it is not at hand
        net = load_published(name, FOLDER)
        assert tamis.path_norm(net, log=True) / math.log(10) == pytest.approx(row["log10 ‖Φ‖_q"]["1"])


# -- Table 4.1 -----------------------------------------------------------------------------------------------------


def test_table_4_1_has_the_bounds_that_apply() -> None:
    found = run_table_4_1(TINY_PREDECESSORS)
    assert found == run_table_4_1(TINY_PREDECESSORS)
    linear, deep = found["rows"]
    assert "kakade" in linear["R/(n‖Φ‖₁)"] and "kakade" not in deep["R/(n‖Φ‖₁)"]
    for row in (linear, deep):
        ratios, root = row["R/(n‖Φ‖₁)"], math.sqrt(row["n"])
        assert ratios["barron_klusowski"] == pytest.approx(math.sqrt(row["depth"] + math.log(64)) / root)
        assert ratios["neyshabur"] == pytest.approx(2 ** row["depth"] * math.sqrt(math.log(64)) / root)
        constant = math.sqrt(row["depth"] * math.log(3) + math.log(64))
        assert ratios["peeling"] == pytest.approx(math.sqrt(2) * constant / root)
        excess = 10 ** (row["log10 Π"] - row["log10 ‖Φ‖₁"])
        assert ratios["golowich"] == pytest.approx(ratios["barron_klusowski"] * excess)
        assert row["informative"] == ["peeling"]


# -- L1,∞ ----------------------------------------------------------------------------------------------------------


def test_classified_samples_are_the_papers() -> None:
    inputs, labels = draw_classified_samples(4000, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    zeta = torch.randn(4000, 1, generator=generator)
    x = zeta / 2 + torch.randn(4000, 500, generator=generator) / 2
    assert torch.equal(inputs, x.clamp(-1, 1))
    for i in range(0, 4000, 40):
        a, b, c, d = (float(value) for value in x[i, :4])
        assert int(labels[i]) == (math.exp(a) + b**2 + 5 * math.sin(c * d) - 3 > 0)
    assert float(labels.double().mean()) == pytest.approx(0.342, abs=0.03)  # so 65.8% is the majority


def test_linear_samples_are_the_papers() -> None:
    beta = torch.tensor([10.0, 100.0, 1000.0])
    inputs, targets = draw_linear_samples(9, beta, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(9, 1001, generator=generator)
    noise = torch.randn(9, generator=generator)
    for i in range(9):
        x = [float(z[i, 0])] + [float(z[i, j] + 0.2 * (z[i, j + 1] + z[i, j - 1])) for j in range(1, 1000)]
        assert inputs[i].tolist() == pytest.approx([min(1, max(-1, value)) for value in x], abs=1e-6)
        y = (10 * x[0] + 100 * x[1] + 1000 * x[2] + float(noise[i])) / 1000
        assert float(targets[i]) == pytest.approx(min(LARGEST_TARGET, max(-LARGEST_TARGET, y)), abs=1e-5)


@given(st.integers(0, 2**31), st.floats(0.01, 10.0))
def test_scaling_back_ends_in_the_ball_and_keeps_directions(seed: int, c: float) -> None:
    torch.manual_seed(seed)
    layer = nn.Linear(5, 4)
    before = torch.cat([layer.weight.detach().clone(), layer.bias.detach().clone()[:, None]], 1)
    scale_back([layer], c)
    after = torch.cat([layer.weight.detach(), layer.bias.detach()[:, None]], 1)
    norms = before.abs().sum(1)
    assert bool((after.double().abs().sum(1) <= c).all())
    for row in range(4):
        factor = 1.0 if float(norms[row]) <= c * (1 - 2e-6) else c / float(norms[row])
        assert torch.allclose(after[row], factor * before[row], rtol=1e-5, atol=1e-9)


@given(st.floats(0, 1e6), st.floats(0.001, 0.5))
def test_the_output_bound_does_not_depend_on_the_samples(norm: float, delta: float) -> None:
    o, own_delta = bound_output_norm(norm, delta)
    assert o >= norm and math.log2(o).is_integer() and (o == 1 or o < 2 * norm)
    j = round(math.log2(o))
    assert own_delta == pytest.approx(delta / ((j + 1) * (j + 2)))


def test_all_output_bounds_together_cost_delta() -> None:
    assert sum(bound_output_norm(2.0**j, 0.05)[1] for j in range(1000)) == pytest.approx(0.05 * (1 - 1 / 1001))


def test_training_stays_in_the_class() -> None:
    experiment = make_classification()
    inputs, labels = experiment.draw(60, torch.Generator().manual_seed(0))
    model = train_network(experiment, inputs, labels, 0.3, 2, TINY_L1INF)
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        norms = [float((layer.weight.double().abs().sum(1) + layer.bias.abs()).max()) for layer in layers]
    assert max(norms[:-1]) <= 0.3 < norms[-1]  # the output layer is free


@pytest.fixture(scope="module")
def tiny_l1inf() -> Figures:
    return run_l1inf(TINY_L1INF)


def test_no_bound_is_violated(tiny_l1inf: Figures, stored: Figures) -> None:
    for found in (tiny_l1inf, stored["l1inf"]):
        for row in (*found["classification"], *found["regression"]):
            stated = {name: bound["value"] for name, bound in row["bounds"].items()}
            assert row["c"] is None or row["c of the network"] <= row["c"]
            assert row["largest output"] <= stated["Lemma 2"]
            theorem, lemma = ("Theorem 7", "Lemma 6") if "accuracy" in row else ("Theorem 5", "Lemma 4")
            for name, loss in ((theorem, "loss"), (lemma, "Lipschitz loss")):
                assert abs(row[loss]["test"] - row[loss]["train"]) <= stated[name]


def test_the_rows_have_every_c_and_the_same_seed_gives_the_same(tiny_l1inf: Figures) -> None:
    assert [row["c"] for row in tiny_l1inf["classification"]] == [None, 0.5]
    assert [row["c"] for row in tiny_l1inf["regression"]] == [1.0]
    assert run_l1inf(TINY_L1INF) == tiny_l1inf


def test_so_many_samples_bring_the_bound_to_a_guess(tiny_l1inf: Figures) -> None:
    row = tiny_l1inf["regression"][0]
    needed = 10 ** row["log10 samples for a bound below a guess"]
    at_needed = row["bounds"]["Theorem 5"]["value"] * math.sqrt(row["n"] / needed)
    assert at_needed == pytest.approx(row["guess"]["loss"])


def test_no_constant_guess_is_better() -> None:
    labels = torch.tensor([1, 0, 0, 0])
    entropy, error = guess_of_classes(labels)
    shares = [share / 100 for share in range(1, 100)]
    assert entropy == pytest.approx(min(-(math.log(p) + 3 * math.log(1 - p)) / 4 for p in shares)) and error == 0.25
    targets = torch.tensor([0.0, 1.0, 5.0])
    half_squared, absolute = make_regression(0).guess(targets)
    guesses = torch.linspace(0, 5, 501)[:, None]
    assert half_squared == pytest.approx(float((guesses - targets).square().mean(1).min()) / 2)
    assert absolute == pytest.approx(float((guesses - targets).abs().mean(1).min()))


def test_margins_are_own_logits_minus_the_largest_others() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0], [0.0, 4.0, -1.0], [1.0, 1.0, 0.0]])
    assert compute_margins(logits, torch.tensor([0, 2, 1])).tolist() == [1.0, -5.0, 0.0]


def test_outputs_come_in_the_order_of_the_inputs() -> None:
    inputs = torch.arange(7.0)[:, None]
    assert torch.equal(compute_outputs(lambda x: 2 * x, inputs, batch=3), 2 * inputs)


def test_fit_descends_and_calls_back_after_every_step() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(40, 3)
    model, calls = make_perceptron((3, 1)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss, targets = nn.functional.mse_loss, inputs[:, :1]
    before = loss(compute_outputs(model, inputs), targets)
    fit(model, optimizer, loss, Batches(inputs, targets, 20, 10, 0), lambda: calls.append(1))
    assert float(loss(compute_outputs(model, inputs), targets)) < float(before) / 100 and len(calls) == 80


# -- the program ---------------------------------------------------------------------------------------------------


@pytest.fixture
def program(stored: Figures, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The program with its parts done."""
    done = {part: {key: value for key, value in stored[part].items() if key != "environment"} for part in PARTS}
    monkeypatch.setattr(bounds, "run", lambda part, *_: done[part])

    def started(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["bounds.py", *map(str, arguments)])
        main()

    return started


def test_the_tables_show_the_papers_beside_ours(
    program: Callable[..., None], stored: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    program()
    shown = capsys.readouterr().out
    assert shown.startswith("\nThis is the short mode")
    lines = [line.split() for line in shown.splitlines()]
    for which, title in (("general", "4BC/√n"), ("sharpened", "sharpened")):
        row = [f"({PAPER_CONSTANTS[which][name]:#.2g})" for name in DEPTHS]
        assert [title, *row] in [[line[0], *line[2::2]] for line in lines if line]
    assert ["ResNet-18", "10^30.1", "10^2.4", "10^-5.1"] in lines
    assert ["ResNet-34", "overflow", "10^2.0", "10^-5.3"] in lines
    dense = stored["table-7.2"]["rows"][0]
    assert (
        f"10^{dense['log10 ‖Φ‖_q']['1']:.1f}" in shown and f"10^{dense['gap']['peeling']['log10']:.1f} vacuous" in shown
    )
    assert "cover none of these networks" in shown
    assert "(1.674)" in shown and "(69.9%)" in shown and "(87.0%)" in shown and "Theorem 5" in shown
    assert "kakade" in shown


def test_a_bound_that_says_nothing_is_shown_as_one(
    program: Callable[..., None], stored: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    program("--full", "--only", "l1inf")
    shown = capsys.readouterr().out
    assert "short mode" not in shown and "Table 7.1" not in shown
    rows = [*stored["l1inf"]["classification"], *stored["l1inf"]["regression"]]
    generalization = ("Theorem 5", "Theorem 7", "Lemma 4", "Lemma 6")
    stated = [row["bounds"][name] for row in rows for name in generalization if name in row["bounds"]]
    table = shown.split("\nvacuous:")[0]
    assert table.count("vacuous") == sum(not each["informative"] for each in stated)
    assert table.count("useless") == sum(each["informative"] for each in stated)


def test_figures_are_stored_part_by_part_and_drawn(program: Callable[..., None], tmp_path: Path) -> None:
    program("--only", "l1inf", "--results", tmp_path)
    program("--only", "table-7.2", "--results", tmp_path)
    program("--only", "table-7.1", "--results", tmp_path)
    kept = json.loads((tmp_path / "bounds_short.json").read_text())["figures"]
    assert list(kept) == ["table-7.1", "table-7.2", "l1inf"]
    for part in kept:
        assert f"--only {part}" in kept[part]["environment"]["command"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bounds_short.json", "bounds_short_table_7_2.svg"]
    assert ElementTree.parse(tmp_path / "bounds_short_table_7_2.svg").getroot().tag.endswith("svg")


def test_a_part_that_is_measured_again_replaces_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "bounds.json"
    for part, value in (("l1inf", 1), ("table-7.1", 2), ("l1inf", 3)):
        keep(path, part, {"value": value}, PARTS)
    kept = json.loads(path.read_text())["figures"]
    assert {part: each["value"] for part, each in kept.items()} == {"table-7.1": 2, "l1inf": 3}


def test_without_matplotlib_the_figures_are_stored_all_the_same(
    program: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # makes importing it raise
    program("--only", "table-7.2", "--results", tmp_path)
    assert capsys.readouterr().out.startswith("no picture was drawn: figures need matplotlib: pip install")
    assert [path.name for path in tmp_path.iterdir()] == ["bounds_short.json"]


def test_every_part_is_run_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ["run_table_4_1", "run_table_7_1", "run_table_7_2", "run_l1inf"]
    for name in names:
        monkeypatch.setattr(bounds, name, lambda plan, *rest, name=name: {"name": name, "plan": plan, "rest": rest})
    short = {part: run(part, False, tmp_path) for part in PARTS}
    assert [found["name"] for found in short.values()] == names
    assert short["table-7.1"]["plan"] == SHORT_IMAGENET and short["table-7.2"]["rest"] == (tmp_path,)
    assert run("table-7.1", True, tmp_path)["plan"] == FULL_IMAGENET


def test_missing_networks_end_the_program_with_one_line(
    failing_program: Callable[..., tuple[object, str, str]],
) -> None:
    status, _, said = failing_program("bounds", "--only", "table-7.2", "--models", "nowhere")
    assert status == 1
    assert said.startswith("error: there is no 'resnet20_cifar10.safetensors' in 'nowhere'") and said.count("\n") == 1


@pytest.mark.slow
def test_the_whole_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    for split in ("train", "test"):
        pixels = generator.integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
        np.savez(tmp_path / f"cifar10_{split}.npz", x=pixels, y=np.arange(50) % 10)
    save_file(MODELS["resnet20"]().state_dict(), tmp_path / "resnet20_cifar10.safetensors")
    monkeypatch.setenv("TAMIS_DATA", str(tmp_path))
    some = PathNormPlan(models=("resnet20",), amounts=(0.0, 0.9), train="cifar10:train", test="cifar10:test")
    monkeypatch.setattr(bounds, "SHORT_PATH_NORMS", some)
    monkeypatch.setattr(bounds, "SHORT_IMAGENET", ImageNetPlan(models=("resnet18",)))
    monkeypatch.setattr(bounds_l1inf, "SHORT", TINY_L1INF)
    monkeypatch.setattr(bounds_predecessors, "SHORT", TINY_PREDECESSORS)
    results = tmp_path / "results"
    monkeypatch.setattr(sys, "argv", ["bounds.py", "--models", str(tmp_path), "--results", str(results)])
    main()
    shown = capsys.readouterr().out
    assert "0.0881 (0.088)" in shown and "resnet20 90%" in shown
    assert list(json.loads((results / "bounds_short.json").read_text())["figures"]) == list(PARTS)


# -- what was stored -----------------------------------------------------------------------------------------------


def test_the_stored_figures_are_those_of_the_full_plans(stored: Figures) -> None:
    plans = {
        "table-4.1": bounds_predecessors.FULL,
        "table-7.1": FULL_IMAGENET,
        "table-7.2": FULL_PATH_NORMS,
        "l1inf": bounds_l1inf.FULL,
    }
    assert list(stored) == list(plans) == list(PARTS)
    for part in stored:
        assert stored[part]["plan"] == json.loads(json.dumps(asdict(plans[part])))
        assert "experiments bounds --full" in stored[part]["environment"]["command"]
    assert ElementTree.parse(RESULTS / "bounds_table_7_2.svg").getroot().tag.endswith("svg")


def test_the_stored_figures_say_what_the_thesis_says(stored: Figures) -> None:
    rows = stored["table-7.2"]["rows"]
    for row in rows:
        assert not any(bound["informative"] for bound in row["gap"].values()) and not row["margin"]["informative"]
        assert row["log10 Π"] > row["log10 ‖Φ‖_q"]["1"] > row["log10 ‖Φ‖_q"]["2"] > row["log10 ‖Φ‖_q"]["4"]
    by_amount = {(row["model"], row["pruned"]): row["log10 ‖Φ‖_q"]["1"] for row in rows}
    for model in FULL_PATH_NORMS.models:
        assert by_amount[model, 0.0] - by_amount[model, 0.9] > 7  # orders of magnitude
    assert by_amount["resnet32", 0.0] > by_amount["resnet20", 0.0] + 7  # as depth grows


def test_the_stored_gaps_fall_with_c(stored: Figures) -> None:
    rows = [row for row in stored["l1inf"]["classification"] if row["n"] == 500]
    gaps = [row["loss"]["test"] - row["loss"]["train"] for row in rows]
    assert gaps == sorted(gaps, reverse=True)
