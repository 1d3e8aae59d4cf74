"""The paper's experiments on architectures, on a tiny scale: their figures, their tables, what is stored and drawn."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from experiments import architecture, architecture_figure_1, architecture_transfer
from experiments.architecture import CIFAR100, FASHION, FULL, HALVES, PAPER_TABLE, PARTS, SHORT, main, make_study
from experiments.architecture_figure_1 import PRINTED, Plan, descend, load_zeros_and_ones, loss, minimise, run_figure_1
from experiments.architecture_transfer import (
    METHODS,
    RESHUFFLED,
    SIZES,
    SPARSITIES,
    Job,
    Study,
    Task,
    draw_balanced,
    make_small_vgg,
    transfer_study,
)
from tamis.architecture import Architecture
from tamis.errors import DataNotFound, InvalidInput
from tamis.training import Settings, load_data

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

TINY_FIGURE = Plan(iterations=40, batch=8, seeds=2, rates=(1e-3, 1e-1), shown=4)
TINY = Study(
    source=Task("digits:train", (0, 1, 2, 3, 4)),
    source_test=Task("digits:test[:100]", (0, 1, 2, 3, 4)),
    new=Task("digits:train", (5, 6, 7, 8, 9)),
    test=Task("digits:test[:100]", (5, 6, 7, 8, 9)),
    widths=(3, 4),
    search=Settings(epochs=2, batch=100),
    transfer=Settings(epochs=1, batch=50, learning_rate=0.05),
    epochs=((500, 1), (50, 2)),
    sparsities=(0.5, 0.9),
    rounds=2,
    mask_rates=(0.1, 1.0),
    searches=1,
    runs=2,
)
Figures = dict[str, Any]


# -- the paper's numbers -------------------------------------------------------------------------------------------

# As the paper prints them: sparsity, reshuffled AP, reshuffled IMP.
TABLE_1 = """0.1 .378 .021 .300 .024
             0.3 .343 .023 .332 .022
             0.5 .429 .023 .342 .026
             0.7 .448 .020 .376 .025
             0.9 .497 .021 .100 .000
             0.95 .301 .001 .100 .000
             0.99 .100 .000 .100 .000"""


def test_the_papers_numbers_are_those_of_its_table() -> None:
    for place, line in enumerate(TABLE_1.splitlines()):
        sparsity, ours, spread, magnitude, other_spread = map(float, line.split())
        assert SPARSITIES[place] == sparsity
        assert PAPER_TABLE["AP"][place] == (ours, spread) and PAPER_TABLE["IMP"][place] == (magnitude, other_spread)


def test_the_full_study_has_the_papers_sizes_and_sparsities() -> None:
    assert FULL.sparsities == SPARSITIES and {size for size, _ in FULL.epochs} == {*SIZES} and FULL.runs == 5
    shapes = [tuple(value.shape) for value in make_small_vgg((32, 64, 128), 5).parameters() if value.dim() > 1]
    assert [shape[0] for shape in shapes] == [32, 32, 64, 64, 128, 128, 5]
    for part in (HALVES, FASHION, CIFAR100):
        for full in (True, False):
            study = make_study(part, full, "./mine")
            assert (study.epochs, study.widths) == ((FULL if full else SHORT).epochs, (FULL if full else SHORT).widths)
    assert make_study(CIFAR100, True, "./mine").new == Task("./mine:train", tuple(range(10)))


# -- tasks ---------------------------------------------------------------------------------------------------------


def test_a_task_is_some_classes_numbered_anew() -> None:
    data, every = Task("digits:test", (7, 2)).load(), load_data("digits:test")
    chosen = (every.labels == 7) | (every.labels == 2)
    assert torch.equal(data.inputs, every.inputs[chosen])
    assert torch.equal(data.labels, (every.labels[chosen] == 2).long()) and data.classes == 2
    assert len(Task("digits:test").load()) == len(every)
    with pytest.raises(InvalidInput, match="'digits:test' has 10 classes, and class 12 is wanted"):
        Task("digits:test", (12,)).load()


def test_samples_are_balanced_and_drawn_by_seed() -> None:
    data = load_data("digits:train")
    one, same, other = (draw_balanced(data, 50, seed) for seed in (0, 0, 1))
    assert one.labels.bincount().tolist() == [5] * 10
    assert torch.equal(one.inputs, same.inputs) and not torch.equal(one.inputs, other.inputs)
    with pytest.raises(InvalidInput, match="55 images of 'digits:train' cannot be as many of each of 10 classes"):
        draw_balanced(data, 55, 0)
    with pytest.raises(InvalidInput, match=r"images of class 0, and 1000 are wanted"):
        draw_balanced(data, 10000, 0)


# -- Figure 1 ------------------------------------------------------------------------------------------------------


def test_the_problem_is_that_of_64_connections() -> None:
    x, y = load_zeros_and_ones()
    assert x.shape[1] == 64 and {*y.tolist()} == {0.0, 1.0} and x.min() >= 0 and x.max() == 1


def test_the_loss_is_minus_the_mean_log_likelihood() -> None:
    x, y = load_zeros_and_ones()
    v, theta = torch.rand(64, dtype=x.dtype), torch.randn(64, dtype=x.dtype)
    chance = torch.sigmoid(x @ (v * theta))
    expected = -(y * chance.log() + (1 - y) * (1 - chance).log()).mean()
    torch.testing.assert_close(loss(v, theta, x, y), expected)


def test_descents_side_by_side_are_those_written_out() -> None:
    """The last seed and rate, step by step, with the gradient of (7)."""
    plan, t_s = TINY_FIGURE, 10.0
    x, y = load_zeros_and_ones()
    steps, objective, kept = descend(plan, t_s, x, y)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, 64, generator=generator, dtype=x.dtype)
    w, theta = plan.spread * drawn[0].abs(), 0.1 * drawn[1]
    for _ in range(plan.iterations):
        chosen = torch.randint(len(x), (plan.batch,), generator=generator)
        v, soft = torch.sigmoid(plan.t_l * w), torch.sigmoid(t_s * w)
        residual = (torch.sigmoid(x[chosen] @ (v * theta)) - y[chosen]) / plan.batch
        by_v = theta * (x[chosen].T @ residual) + 2 * plan.gamma * v
        by_theta = v * (x[chosen].T @ residual) + 2 * plan.gamma * theta
        w, theta = w - plan.rates[-1] * by_v * t_s * soft * (1 - soft), theta - plan.weight_rate * by_theta
    assert steps == [0, 10, 20, 30, 40] and objective.shape == (5, 2, 2)
    mask = (w > 0).double()
    end = loss(mask, theta, x, y) + plan.gamma * (mask.sum() + theta.square().sum())
    torch.testing.assert_close(objective[-1, -1, -1], end)
    assert int(kept[-1, -1]) == int(mask.sum())


def test_the_minimum_over_the_cube_meets_its_conditions() -> None:
    generator = torch.Generator().manual_seed(0)
    root, target = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((6, 6), (6,)))
    v = minimise(lambda v: (root @ v - target).square().sum(), torch.full((6,), 0.5, dtype=torch.float64))
    slope = 2 * root.T @ (root @ v - target)
    inside = (v > 1e-9) & (v < 1 - 1e-9)
    assert slope[inside].abs().max() < 1e-6
    assert (slope[v <= 1e-9] > -1e-6).all() and (slope[v >= 1 - 1e-9] < 1e-6).all()


def test_figure_1_keeps_the_best_rate_and_both_bounds() -> None:
    found = run_figure_1(TINY_FIGURE)
    assert [*found["by t_s"]] == ["t_l/1", "t_l/100", "t_l/1000"]
    for each in found["by t_s"].values():
        ends = each["final objective by rate"]
        assert str(each["rate of the masks"]) == min(ends, key=lambda rate: ends[rate])
        assert sum(each["final objective"]) / 2 == pytest.approx(min(ends.values()))
        assert each["objective"][-1] == [40, pytest.approx(min(ends.values()))]
        assert 0 <= each["bound"]["measured, averaged iterate"] <= each["bound"]["corrected, averaged iterate"]
        assert math.isfinite(each["bound"][PRINTED])


# -- the study -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Figures, Path, list[int]]:
    """The figures, where the architectures are, and how many sizes each note had."""
    directory, noted = tmp_path_factory.mktemp("studied"), []
    figures = transfer_study(TINY, directory, "cpu", 1, lambda now: noted.append(len(now["accuracy"])))
    return figures, directory, noted


def test_every_method_is_measured_at_every_sparsity_size_and_run(studied: tuple[Figures, Path, list[int]]) -> None:
    figures, _, noted = studied
    assert noted == [1, 2]
    for size in ("500", "50"):
        assert [*figures["accuracy"][size]] == [*METHODS] and len(figures["dense"][size]) == 2
        for by_sparsity in figures["accuracy"][size].values():
            assert [*by_sparsity] == ["0.5", "0.9"]
            assert all(len(runs) == 2 and all(0 <= each <= 1 for each in runs) for runs in by_sparsity.values())
    assert [*figures["reshuffled"]] == [*RESHUFFLED] and [*figures["reshuffled"]["AP"]] == ["0.5", "0.9"]
    assert figures["accuracy on the source by rate of the masks"].keys() == {"0.5", "0.9"}
    for method in METHODS:
        layers = figures["densities"][method]["0.9"]
        sizes = {name: value.numel() for name, value in TINY.network(0).named_parameters() if value.dim() > 1}
        kept = sum(density * sizes[name] for name, density in layers.items())
        assert kept == pytest.approx(0.1 * figures["connections"], abs=1)


def test_what_was_found_is_read_and_not_searched_again(
    studied: tuple[Figures, Path, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, directory, _ = studied
    assert all(Architecture.load(path).masks for path in directory.glob("*/*.architecture"))
    monkeypatch.setattr(Job, "_find", lambda _: pytest.fail("it had been found"))
    again = transfer_study(TINY, directory, "cpu", 1, lambda _: None)
    assert {**again, "seconds": None} == {**figures, "seconds": None}


def test_the_rate_of_the_masks_is_the_best_on_the_source(studied: tuple[Figures, Path, list[int]]) -> None:
    figures, directory, _ = studied
    for sparsity, by_rate in figures["accuracy on the source by rate of the masks"].items():
        best = max(by_rate, key=lambda rate: by_rate[rate])
        found = Architecture.load(directory / TINY.search_key / f"AP_{best}_{sparsity}_0.architecture")
        assert figures["densities"]["AP"][sparsity] == {k: round(v, 4) for k, v in found.densities.items()}


def test_another_search_has_another_place() -> None:
    keys = {TINY.search_key, replace(TINY, widths=(3, 5)).search_key, replace(TINY, source=TINY.new).search_key}
    assert len(keys) == 3 and replace(TINY, runs=7).search_key == TINY.search_key


def test_data_that_is_not_there_is_said_before_anything_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Job, "run", lambda _: pytest.fail("nothing is searched"))
    with pytest.raises(DataNotFound, match="there is no dataset 'nowhere:train'"):
        transfer_study(replace(TINY, new=Task("nowhere:train")), Path("unused"), "cpu", 1, lambda _: None)


# -- the program ---------------------------------------------------------------------------------------------------


def started(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(architecture, "SHORT", TINY)
    monkeypatch.setattr(architecture, "AT_HAND", ("figure-1", HALVES))
    monkeypatch.setattr(architecture_figure_1, "SHORT", TINY_FIGURE)
    monkeypatch.setattr(sys, "argv", ["architecture.py", *map(str, arguments)])
    main()


def test_the_program_shows_the_paper_beside_ours_stores_and_draws(
    studied: tuple[Figures, Path, list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures, _, _ = studied

    def study(_plan: Study, _place: Path, _device: str, _workers: int, note: Any) -> Figures:
        note(figures)
        return figures

    monkeypatch.setattr(architecture, "transfer_study", study)
    started(monkeypatch, "--results", tmp_path, "--directory", tmp_path / "out")
    shown = capsys.readouterr().out
    assert "(42.9 ± 2.3)" in shown and "(49.7 ± 2.1)" in shown and "as printed (does not hold)" in shown
    assert "AP against random, by 2 standard errors" in shown and "short mode" in shown
    stored = json.loads((tmp_path / "architecture_short.json").read_text())["figures"]
    assert [*stored] == ["figure-1", HALVES] and stored[HALVES]["accuracy"] == figures["accuracy"]
    for name in ("figure_1", "cifar10_halves"):
        root = ElementTree.parse(tmp_path / f"architecture_short_{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_differences_within_chance_are_not_claimed() -> None:
    runs = {"AP": {"0.9": [0.5, 0.6, 0.7], "0.99": [0.5, 0.6, 0.7]}}
    other = {"random": {"0.9": [0.4, 0.5, 0.59], "0.99": [0.3, 0.8, 0.6]}}
    line = architecture._compare({**runs, **other}, "random")
    assert line.endswith("better at 0.9; worse at none")
    assert architecture._compare({"AP": other["random"], "random": runs["AP"]}, "random").endswith(
        "better at none; worse at 0.9"
    )


def test_missing_data_ends_the_program_with_one_line(failing_program: Callable[..., tuple[object, str, str]]) -> None:
    status, _, said = failing_program("architecture", "--only", CIFAR100, "--cifar100", "./mine")
    assert status == 1
    assert said.startswith("error: there is no") and said.count("\n") == 1


@pytest.mark.slow
def test_searches_in_several_processes_find_the_same(studied: tuple[Figures, Path, list[int]], tmp_path: Path) -> None:
    figures, _, _ = studied
    again = transfer_study(TINY, tmp_path, "cpu", 2, lambda _: None)
    assert again["densities"] == figures["densities"]


def test_parts_are_named_once() -> None:
    assert len({*PARTS}) == len(PARTS) and architecture_transfer.TABLE_SIZE == 500
