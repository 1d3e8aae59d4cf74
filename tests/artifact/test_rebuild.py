"""Files whose layers were rebuilt are read for the module that they were made of."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tamis
from tamis.artifact import File, fingerprint_of_values, format, rebuilds_layers
from tamis.artifact.compressed import _describe_graph
from tamis.artifact.rebuild import REBUILDERS, rebuild_layers
from tamis.binary import binarize, pack_network
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters
from tamis.kronecker import monarch, patterns_of, replace

X = torch.zeros(1, 1, 8, 8)
FACTORS = {"2": monarch(4, 36, 2), "5": monarch(10, 64, 2)}


class SmallCNN(nn.Sequential):
    """Two convolutions and a layer of scores, which are soon traced."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 4, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 10),
        )


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return SmallCNN()


@pytest.fixture(scope="module")
def dense(model: nn.Module) -> tamis.Network:
    return tamis.trace(model, X)


@pytest.fixture(scope="module")
def factored(model: nn.Module) -> nn.Module:
    return replace(model, FACTORS, convolutions=True).eval()


@pytest.fixture(scope="module")
def factored_net(factored: nn.Module) -> tamis.Network:
    return tamis.trace(factored, X)


@pytest.fixture(scope="module")
def file(factored: nn.Module, factored_net: tamis.Network, tmp_path_factory: pytest.TempPathFactory) -> File:
    return save_factors(factored_net, tmp_path_factory.mktemp("factors") / "factors.tamis", patterns_of(factored))


def save_factors(net: tamis.Network, path: Path, layers: object) -> File:
    tamis.Compressed(net, recipe=[{"step": "kronecker", "layers": layers}]).save(path)
    return File.read(path)


SCALES = [
    ("rank_one", "clipped"),
    ("channel", "rsign"),
    pytest.param("analytic", "approx_sign", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("scale", "estimator"), SCALES)
def test_binary_layers_are_rebuilt_as_they_were(scale: str, estimator: str, tmp_path: Path) -> None:
    path = tmp_path / "binary.tamis"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(32, 3))
    binary = binarize(model, ("last",), X, scale, estimator).eval()
    pack_network(binary, X).save(path)
    before, drawn = fingerprint_of_values(model.state_dict()), torch.get_rng_state()
    small = tamis.load(path, model)
    again = small.apply_to(model).eval()
    assert {name: value.shape for name, value in again.state_dict().items()} == {
        name: value.shape for name, value in binary.state_dict().items()
    }
    with torch.no_grad():
        assert torch.equal(again(X + 1), binary(X + 1))
        if scale == "rank_one":  # to trace it again takes long
            assert torch.equal(small.network(X + 1), binary(X + 1))
    assert fingerprint_of_values(model.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), drawn)  # reading a file changes nothing that the caller draws
    # A module that has the layers already is taken as it is.
    taken = tamis.load(path, binary)
    assert taken.recipe == small.recipe and type(taken.apply_to(binary)) is type(binary)


def test_factors_are_rebuilt_as_they_were(model: nn.Module, factored: nn.Module, file: File) -> None:
    small = tamis.load(file, model)
    again = small.apply_to(model)
    assert patterns_of(again) == patterns_of(factored)
    with torch.no_grad():
        torch.testing.assert_close(small.network(X + 1), factored(X + 1))
    assert patterns_of(tamis.load(file, factored).apply_to(factored)) == patterns_of(factored)


def test_some_layers_may_be_rebuilt_already(model: nn.Module, factored: nn.Module, file: File) -> None:
    half = replace(model, {"2": FACTORS["2"]}, convolutions=True)
    assert patterns_of(tamis.load(file, half).apply_to(half)) == patterns_of(factored)


def test_a_traced_network_has_no_layers_to_rebuild(dense: tamis.Network, file: File) -> None:
    message = r"Layers of it were rebuilt, and a traced network has none to rebuild: pass the module that '.*' was made"
    with pytest.raises(InvalidParameters, match=message):
        tamis.load(file, dense)


def test_a_file_that_rebuilt_nothing_is_only_for_its_model(
    model: nn.Module, dense: tamis.Network, tmp_path: Path
) -> None:
    tamis.prune(dense, 0.5, by="magnitude").save(tmp_path / "pruned.tamis")
    assert not rebuilds_layers(tamis.load(tmp_path / "pruned.tamis", model).recipe)
    with pytest.raises(InvalidParameters, match="was made for another model than this one") as caught:
        tamis.load(tmp_path / "pruned.tamis", SmallCNN(6))
    assert "layers" not in str(caught.value).lower()


def test_a_model_of_other_sizes_is_refused_by_load_and_by_apply_to(model: nn.Module, file: File) -> None:
    with pytest.raises(InvalidParameters):
        tamis.load(file, SmallCNN(6))
    with pytest.raises(InvalidParameters):
        tamis.load(file, model).apply_to(SmallCNN(6))


HOSTILE: list[Any] = [
    {"5": [[1, 10, 10**12, 1], [1, 10**12, 64, 1]]},  # more weights than there is memory
    {"5": [[1, 10, 9, 1]]},
    {"nowhere": [[1, 10, 64, 1]]},
    {"5": "dense"},
    {"5": [[1, 10, 8]]},
    {"5": []},
    ["5"],
    7,
]


@pytest.mark.parametrize("layers", HOSTILE, ids=str)
def test_a_recipe_may_say_anything(
    model: nn.Module, factored_net: tamis.Network, layers: object, tmp_path: Path
) -> None:
    file = save_factors(factored_net, tmp_path / "forged.tamis", layers)
    message = (
        r"forged\.tamis' was made for another model than SmallCNN: its layers cannot be rebuilt as its recipe says"
    )
    with pytest.raises(InvalidParameters, match=message):
        tamis.load(file, model)


@pytest.mark.parametrize("dtype", ["quint8", "bits8", "Tensor", "no_such_thing"])
def test_inputs_that_nobody_can_make_are_refused(
    factored: nn.Module, factored_net: tamis.Network, dtype: str, tmp_path: Path
) -> None:
    inputs = [{"shape": [1, 1, 8, 8], "dtype": dtype}]
    about = {"graph": {**_describe_graph(factored_net), "inputs": inputs}, "recipe": [{"step": "kronecker"}]}
    format.write(tmp_path / "forged.tamis", factored_net.params, {}, about)
    with pytest.raises(CorruptArtifact, match="does not describe its graph and recipe"):
        tamis.load(tmp_path / "forged.tamis", factored)


@pytest.mark.parametrize("step", REBUILDERS)
def test_every_rebuilder_is_there_and_leaves_what_it_is_told_nothing_of(step: str, model: nn.Module) -> None:
    assert rebuild_layers(model, [{"step": step}], (X,), "it") is model


def test_only_modules_and_networks_are_read_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"load needs the model that .* is for, a module or a Network, got dict"):
        tamis.load(tmp_path / "any.tamis", {})  # type: ignore[arg-type]
