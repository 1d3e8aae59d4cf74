"""Binary networks in `.tamis` files: one bit a weight, the same outputs after reading."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import tamis
from tamis.artifact import Compressed
from tamis.binary import BinaryConv2d, BinaryLinear, binarize, compile, pack_network
from tamis.binary.scales import FORMS
from tamis.binary.two_stage import with_real_weights
from tamis.errors import InvalidInput, InvalidParameters


def network() -> nn.Sequential:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 36, 5))


X = torch.zeros(1, 3, 8, 8)


OTHERS = [form for form in FORMS if form not in ("rank_one", "channel")]  # which tests below have


def layer_of_each_other_form() -> nn.Sequential:
    layers = [BinaryConv2d(4, 4, 3, padding=1, scale=form, output_size=(6, 6)) for form in OTHERS]
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *layers)


def trained(model: nn.Module) -> nn.Module:
    """A binary network whose parameters and statistics are not those it begins with."""
    torch.manual_seed(0)
    for _ in range(3):
        model(torch.randn(16, 3, 8, 8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model.eval()


def rank_one() -> nn.Module:
    return binarize(network(), example=X, scale="rank_one")


@pytest.mark.parametrize(
    ("make", "weights"),
    [
        (rank_one, {"3.weight"}),
        (layer_of_each_other_form, {f"{n}.weight" for n in range(2, 2 + len(OTHERS))}),
    ],
)
def test_what_is_read_computes_the_same(make: Callable[[], nn.Module], weights: set[str], tmp_path: Path) -> None:
    model = trained(make())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small = pack_network(model, X, [{"step": "binarize", "scale": "rank_one"}])
    small.save(tmp_path / "small.tamis")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert set(small.codes) == weights
    assert all(code.levels.tolist() == [-1.0, 1.0] for code in small.codes.values())
    fresh = make()
    loaded = tamis.load(tmp_path / "small.tamis", fresh)
    assert loaded.recipe == ({"step": "binarize", "scale": "rank_one"},)
    x = torch.randn(9, 3, 8, 8)
    again = loaded.apply_to(fresh).eval()
    with torch.no_grad():
        expected = model(x)
        outputs = [again(x), compile(again)(x), small.network(x)]
        outputs += [loaded.network(x)] if make is rank_one else []  # which traces it again
    assert all(torch.equal(output, expected) for output in outputs)


def test_512_channels_take_a_thirtieth_on_disk(tmp_path: Path) -> None:
    layer = BinaryConv2d(512, 512, 3, padding=1)
    pack_network(layer, torch.zeros(1, 512, 3, 3)).save(tmp_path / "layer.tamis")
    assert (tmp_path / "layer.tamis").stat().st_size <= layer.weight.nbytes / 30


@pytest.fixture(scope="module")
def tied() -> tuple[nn.Sequential, Compressed]:
    """Two binary layers of one weight, one that shares the weight of a real layer, one with scales of its weights."""
    torch.manual_seed(0)
    layers = [BinaryLinear(3, 3), nn.ReLU(), BinaryLinear(3, 3), nn.Linear(3, 3), BinaryLinear(3, 3)]
    model = nn.Sequential(*layers, BinaryLinear(3, 2, scale="analytic"))
    model[2].weight = model[0].weight
    model[4].weight = model[3].weight
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0, -0.0, -1e-30], [0.5, -0.5, 0.25], [-1.0, 2.0, 1e-30]]))
        model[5].weight.copy_(torch.tensor([[0.5, -0.25, 0.375], [0.0, 0.0, 0.0]]))
    return model, pack_network(model, torch.zeros(1, 3))


def test_signs_and_scales_of_weights(tied: tuple[nn.Sequential, Compressed]) -> None:
    _, small = tied
    assert small.params["0.weight"].tolist() == [[1, 1, -1], [1, -1, 1], [-1, 1, 1]]
    assert small.params["5.weight"].tolist() == [[0.375, -0.375, 0.375], [0, 0, 0]]


def test_tied_weights_are_packed_once_and_those_of_real_layers_are_not(tied: tuple[nn.Sequential, Compressed]) -> None:
    model, small = tied
    assert set(small.codes) == {"0.weight", "5.weight"}
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(small.network(x), copy.deepcopy(model).eval()(x))


def test_what_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Linear has no binary layer"):
        pack_network(nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(InvalidInput, match="'0' has real weights, as in the first stage"):
        pack_network(with_real_weights(nn.Sequential(BinaryLinear(2, 2))), torch.zeros(1, 2))


def test_a_plain_model_is_made_binary_as_the_file_says(tmp_path: Path) -> None:
    def small() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 5))

    model = trained(binarize(small(), example=X, scale="channel"))
    pack_network(model, X).save(tmp_path / "small.tamis")
    x, plain = torch.randn(9, 3, 8, 8), small()
    with torch.no_grad():
        assert torch.equal(tamis.load(tmp_path / "small.tamis", plain).apply_to(plain).eval()(x), model(x))
    with pytest.raises(InvalidParameters, match="another model"):
        tamis.load(tmp_path / "small.tamis", nn.Sequential(*small(), nn.Linear(5, 5)))
