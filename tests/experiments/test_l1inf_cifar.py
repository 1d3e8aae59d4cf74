"""The experiment on CIFAR-10 with wide convolutions, on a tiny scale."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments import l1inf, l1inf_cifar
from experiments.l1inf_cifar import FULL, LAST_RADIUS, SHORT, WideVGG16, measure_figures, run_cifar, train_network
from tamis.training import load_data

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

TINY = replace(
    SHORT,
    largest=5,
    cs=(None, 1.0, 0.2),
    kernels=(3,),
    kernel_cs=(None, 0.2),
    width=2,
    epochs=2,
    batch=16,
    train="./images.npz[:48]",
    test="./images.npz[48:]",
    measured=20,
)


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=pixels, y=np.arange(64) % 4)
    monkeypatch.chdir(tmp_path)


def test_the_network_is_vgg_16_with_two_wide_convolutions() -> None:
    model = WideVGG16(21)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [layer.kernel_size[0] for layer in convolutions] == [21] * 2 + [3] * 11
    assert [layer.out_channels for layer in convolutions] == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    assert WideVGG16(21, width=2)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_wide_filters_are_within_the_ball_and_the_others_free() -> None:
    model = train_network(TINY, 5, 0.2, load_data(TINY.train))
    for layer in (model.conv1, model.conv2):
        assert float(layer.weight.detach().double().abs().flatten(1).sum(1).max()) <= 0.2 * LAST_RADIUS * (1 + 1e-6)
    third = next(module for module in model.rest if isinstance(module, nn.Conv2d))
    assert float(third.weight.detach().abs().flatten(1).sum(1).max()) > 0.2
    assert not model.training


def test_zeros_are_counted_per_channel() -> None:
    model = WideVGG16(3, width=2, classes=4).eval()
    model.conv1.weight.data.zero_()
    data = load_data("./images.npz")
    found = measure_figures(model, data, data, 10)
    assert found["zeros"] == pytest.approx(6 * 9 / (6 * 9 + 4 * 9)) and found["non-zeros per channel"] == 3.6
    assert found["gap"] == 0
    wanted = torch.nn.functional.cross_entropy(model(data.normalised()), data.labels)
    assert found["test loss"] == pytest.approx(float(wanted.detach()), rel=1e-5)


def test_every_network_is_kept_as_soon_as_it_is_trained() -> None:
    kept: list[int] = []
    figures = run_cifar(TINY, "cpu", lambda figures: kept.append(len(figures["rows"])))
    assert kept == [1, 2, 3, 4, 5] and not figures["left out"]
    assert [(row["kernel"], row["c"]) for row in figures["rows"]] == TINY.jobs
    assert figures["rows"][0]["non-zeros per channel"] == 25 and figures["rows"][0]["zeros"] == 0


def test_what_there_is_no_time_for_is_left_out_and_named() -> None:
    figures = run_cifar(replace(TINY, seconds=0.0), "cpu")
    assert figures["rows"] == [] and [(row["kernel"], row["c"]) for row in figures["left out"]] == TINY.jobs


def test_the_full_plan_has_the_papers_kernel_and_what_both_experiments_need_comes_first() -> None:
    assert FULL.largest == 21 and FULL.jobs[:3] == [(21, None), (21, 3.0), (21, 0.3)]
    assert len(FULL.jobs) == len(set(FULL.jobs)) == 18
    assert set(FULL.kernel_cs) <= set(FULL.cs)


def test_the_part_is_shown_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(l1inf_cifar, "SHORT", replace(TINY, cs=(None, 0.2), kernel_cs=(0.2,)))
    figures = l1inf.run("cifar", False, "cpu", tmp_path / "l1inf")
    l1inf.show_cifar(figures)
    assert "5, ∞" in capsys.readouterr().out
    stored = json.loads((tmp_path / "l1inf.json").read_text())["figures"]["cifar"]
    assert len(stored["rows"]) == 3 and "environment" in stored
