"""Certificates of networks whose graph was rebuilt: what data can say of them, and nothing that compares weights."""

from pathlib import Path

import pytest
import torch

import tamis
from tamis.artifact import fingerprint_of_values, format
from tamis.artifact.compressed import _graph
from tamis.binary import binarize, packed
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters, VerificationFailed
from tamis.kronecker import monarch, patterns_of, replace
from tamis.training import load_data
from tamis.training.models import digits_cnn, example_input

TEST = load_data("digits:test[:60]")
torch.manual_seed(0)
MODEL = digits_cnn(8)


@pytest.fixture(scope="module")
def networks() -> tuple[tamis.Network, torch.nn.Module]:
    return tamis.trace(MODEL, example_input("digits_cnn")), binarize(MODEL, example=example_input("digits_cnn"))


@pytest.fixture
def file(networks: tuple[tamis.Network, torch.nn.Module], tmp_path: Path) -> Path:
    packed(networks[1].eval(), example_input("digits_cnn")).save(tmp_path / "small.tamis")
    return tmp_path / "small.tamis"


def test_counts_are_those_of_the_two_networks(networks, file) -> None:
    net, binary = networks
    cert = tamis.certify(net, file, TEST, rebuilt=binary)
    x = TEST.normalised()
    with torch.no_grad():
        answers = [module(x).argmax(1) for module in (net, binary.eval())]
    assert cert["disagreement"].measured["different"] == int((answers[0] != answers[1]).sum())
    assert cert["error_rate"].measured["errors"] == int((answers[1] != TEST.labels).sum())
    assert "path_metric" not in [claim.name for claim in cert.claims]


def test_it_is_verified_with_both_and_only_with_both(networks, file, tmp_path: Path) -> None:
    net, binary = networks
    tamis.certify(net, file, TEST, rebuilt=binary).save(tmp_path / "small.json")
    assert tamis.verify(tmp_path / "small.json", file, net, TEST, rebuilt=binary).ok
    with pytest.raises(InvalidParameters):
        tamis.verify(tmp_path / "small.json", file, net, TEST)


def test_a_module_needs_no_word_of_what_was_rebuilt(networks, file, tmp_path: Path) -> None:
    net, binary = networks
    said = tamis.certify(net, file, TEST, rebuilt=binary)
    made = tamis.certify(MODEL, file, TEST)
    assert made.content["claims"] == said.content["claims"]
    made.save(tmp_path / "small.json")
    assert tamis.verify(tmp_path / "small.json", file, MODEL, TEST).ok
    assert tamis.verify(tmp_path / "small.json", file, net, TEST, rebuilt=MODEL).ok


def test_a_traced_network_is_told_what_is_missing(networks, file) -> None:
    with pytest.raises(InvalidParameters, match=r"Layers were rebuilt on the way: tamis\.rebuilt_for makes the model"):
        tamis.certify(networks[0], file, TEST)
    with pytest.raises(InvalidParameters, match=r"Layers were rebuilt on the way: tamis\.rebuilt_for makes the model"):
        tamis.load(file, MODEL)


SCALES = [("rank_one", "clipped"), ("channel", "rsign"), ("analytic", "approx_sign")]


@pytest.mark.parametrize(("scale", "estimator"), SCALES)
def test_binary_layers_are_rebuilt_as_they_were(scale: str, estimator: str, tmp_path: Path) -> None:
    path, x = tmp_path / "binary.tamis", example_input("digits_cnn")
    binary = binarize(MODEL, ("last",), x, scale, estimator).eval()
    packed(binary, x).save(path)
    before = fingerprint_of_values(MODEL.state_dict())
    again = tamis.rebuilt_for(path, MODEL)
    assert {name: value.shape for name, value in again.state_dict().items()} == {
        name: value.shape for name, value in binary.state_dict().items()
    }
    with torch.no_grad():
        assert torch.equal(tamis.load(path, again).network(x + 1), binary(x + 1))
    assert fingerprint_of_values(MODEL.state_dict()) == before
    assert tamis.rebuilt_for(path, binary) is binary  # it has them already


def save_factors(path: Path, layers: object) -> None:
    tamis.Compressed(tamis.trace(MODEL, example_input("digits_cnn")), recipe=[dict(FACTORS, layers=layers)]).save(path)


FACTORS = {"step": "kronecker"}


def test_factors_are_rebuilt_as_they_were(tmp_path: Path) -> None:
    path, x = tmp_path / "factors.tamis", example_input("digits_cnn")
    factored = replace(
        MODEL, {"second.0": monarch(16, 72, 2), "classifier": monarch(10, 16, 2)}, convolutions=True
    ).eval()
    recipe = [dict(FACTORS, layers=patterns_of(factored))]
    tamis.Compressed(tamis.trace(factored, x), recipe=recipe).save(path)
    again = tamis.rebuilt_for(path, MODEL)
    assert patterns_of(again) == patterns_of(factored)
    with torch.no_grad():
        torch.testing.assert_close(tamis.load(path, again).network(x + 1), factored(x + 1))
    assert tamis.rebuilt_for(path, factored) is factored


def test_what_rebuilt_nothing_is_for_the_model_itself(tmp_path: Path) -> None:
    tamis.prune(MODEL, 0.5, example=example_input("digits_cnn")).save(tmp_path / "pruned.tamis")
    assert tamis.rebuilt_for(tmp_path / "pruned.tamis", MODEL) is MODEL


HOSTILE = [
    {"classifier": [[1, 10, 10**12, 1], [1, 10**12, 16, 1]]},  # more weights than there is memory
    {"classifier": [[1, 10, 9, 1]]},
    {"nowhere": [[1, 10, 16, 1]]},
    {"classifier": "dense"},
    {"classifier": [[1, 10, 8]]},
    {"classifier": []},
    ["classifier"],
    7,
]


@pytest.mark.parametrize("layers", HOSTILE, ids=str)
def test_a_recipe_may_say_anything(layers: object, tmp_path: Path) -> None:
    save_factors(tmp_path / "forged.tamis", layers)
    with pytest.raises(InvalidParameters, match="its layers cannot be rebuilt as the file says"):
        tamis.rebuilt_for(tmp_path / "forged.tamis", MODEL)


@pytest.mark.parametrize("dtype", ["quint8", "bits8", "Tensor", "no_such_thing"])
def test_inputs_that_nobody_can_make_are_refused(dtype: str, tmp_path: Path) -> None:
    net = tamis.trace(MODEL, example_input("digits_cnn"))
    about = {"graph": {**_graph(net), "inputs": [{"shape": [1, 1, 8, 8], "dtype": dtype}]}, "recipe": [FACTORS]}
    format.write(tmp_path / "forged.tamis", net.params, {}, about)
    with pytest.raises(CorruptArtifact, match="does not describe its graph and recipe"):
        tamis.rebuilt_for(tmp_path / "forged.tamis", MODEL)


def test_only_modules_are_rebuilt(networks, file) -> None:
    with pytest.raises(InvalidInput, match=r"rebuilt_for needs the module that .* was made of, got Network"):
        tamis.rebuilt_for(file, networks[0])


def test_a_network_in_memory_is_to_be_saved_first(networks) -> None:
    with pytest.raises(InvalidInput, match="save the network, and give the path of its file"):
        tamis.certify(networks[0], tamis.prune(networks[0], 0.5), TEST)


def test_who_calls_one_graph_two_drops_no_claim(networks, tmp_path: Path) -> None:
    """The same graph passed as a rebuilt one must claim all that one graph allows: dropping some would shift δ."""
    net, _ = networks
    tamis.prune(net, 0.5).save(tmp_path / "pruned.tamis")
    same = tamis.certify(net, tmp_path / "pruned.tamis", TEST, rebuilt=net)
    assert [claim.name for claim in same.claims] == [
        claim.name for claim in tamis.certify(net, tmp_path / "pruned.tamis", TEST).claims
    ]


def test_boxes_are_refused(networks, file) -> None:
    net, binary = networks
    with pytest.raises(
        InvalidInput, match=r"radius = 0\.1 bounds networks of one graph, and '.*small\.tamis' has another one"
    ):
        tamis.certify(net, file, TEST, rebuilt=binary, radius=0.1)


def test_another_file_is_found_out(networks, file, tmp_path: Path) -> None:
    net, binary = networks
    tamis.certify(net, file, TEST, rebuilt=binary).save(tmp_path / "small.json")
    torch.manual_seed(1)
    other = binarize(digits_cnn(8), example=example_input("digits_cnn"))
    packed(other.eval(), example_input("digits_cnn")).save(file)
    with pytest.raises(VerificationFailed, match="sha256"):
        tamis.verify(tmp_path / "small.json", file, net, TEST, rebuilt=binary)
