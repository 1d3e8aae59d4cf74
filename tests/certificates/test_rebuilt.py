"""Certificates of networks whose graph was rebuilt: what data can say of them, and nothing that compares weights."""

from pathlib import Path

import pytest
import torch
from torch import nn

import tamis
from tamis.artifact import File
from tamis.binary import binarize, pack_network
from tamis.errors import InvalidInput, InvalidParameters, VerificationFailed
from tamis.training import load_data

TEST = load_data("digits:test[:60]")
X = TEST.example


def small_cnn(seed: int) -> nn.Module:
    """Two convolutions and a layer of scores: the second convolution alone becomes binary, and is soon traced."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return small_cnn(0)


@pytest.fixture(scope="module")
def net(model: nn.Module) -> tamis.Network:
    return tamis.trace(model, X)


@pytest.fixture(scope="module")
def binary(model: nn.Module) -> nn.Module:
    return binarize(model, example=X).eval()


@pytest.fixture(scope="module")
def file(binary: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("binary") / "small.tamis"
    pack_network(binary, X).save(path)
    return path


@pytest.fixture(scope="module")
def cert(net: tamis.Network, file: Path, binary: nn.Module) -> tamis.Certificate:
    return tamis.certify(net, file, TEST, rebuilt=binary)


def test_counts_are_those_of_the_two_networks(net: tamis.Network, binary, cert: tamis.Certificate) -> None:
    x = TEST.normalised()
    with torch.no_grad():
        answers = [module(x).argmax(1) for module in (net, binary)]
    assert cert["disagreement"].measured["different"] == int((answers[0] != answers[1]).sum())
    assert cert["error_rate"].measured["errors"] == int((answers[1] != TEST.labels).sum())
    assert "path_metric" not in [claim.name for claim in cert.claims]


def test_a_network_is_verified_with_the_architecture_and_only_with_it(net, binary, file, cert) -> None:
    assert tamis.verify(cert, file, net, TEST, rebuilt=binary).ok
    with pytest.raises(InvalidParameters, match="a traced network has none to rebuild: pass the module that"):
        tamis.verify(cert, file, net, TEST)
    with pytest.raises(InvalidParameters, match="a traced network has none to rebuild: pass the module that"):
        tamis.certify(net, file, TEST)


def test_a_module_needs_no_word_of_what_was_rebuilt(model, net, file, cert, tmp_path: Path) -> None:
    made = tamis.certify(model, File.read(file), TEST)
    assert made.content["claims"] == cert.content["claims"]
    made.save(tmp_path / "small.json")
    assert tamis.verify(tmp_path / "small.json", File.read(file), model, TEST).ok
    assert tamis.verify(tmp_path / "small.json", file, net, TEST, rebuilt=model).ok


def test_a_network_in_memory_is_to_be_saved_first(net: tamis.Network) -> None:
    with pytest.raises(InvalidInput, match="save the network, and give the path of its file"):
        tamis.certify(net, tamis.prune(net, 0.5), TEST)


def test_who_calls_one_graph_two_drops_no_claim(net: tamis.Network, tmp_path: Path) -> None:
    """The same graph passed as a rebuilt one must claim all that one graph allows: dropping some would shift δ."""
    tamis.prune(net, 0.5).save(tmp_path / "pruned.tamis")
    same = tamis.certify(net, tmp_path / "pruned.tamis", TEST, rebuilt=net)
    assert [claim.name for claim in same.claims] == [
        claim.name for claim in tamis.certify(net, tmp_path / "pruned.tamis", TEST).claims
    ]


def test_boxes_are_refused(net, binary, file) -> None:
    with pytest.raises(
        InvalidInput, match=r"radius = 0\.1 bounds networks of one graph, and '.*small\.tamis' has another one"
    ):
        tamis.certify(net, file, TEST, rebuilt=binary, radius=0.1)


def test_another_file_is_found_out(net, binary, cert, tmp_path: Path) -> None:
    other = binarize(small_cnn(1), example=X).eval()
    pack_network(other, X).save(tmp_path / "small.tamis")
    with pytest.raises(VerificationFailed, match="sha256"):
        tamis.verify(cert, tmp_path / "small.tamis", net, TEST, rebuilt=binary)
