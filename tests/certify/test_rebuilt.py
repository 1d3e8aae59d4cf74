"""Certificates of networks whose graph was rebuilt: what data can say of them, and nothing that compares weights."""

from pathlib import Path

import pytest
import torch

import tamis
from tamis.binary import binarize, packed
from tamis.errors import InvalidInput, InvalidParameters, VerificationFailed
from tamis.train.data import load_data
from tamis.train.models import digits_cnn, example_input

TEST = load_data("digits:test[:60]")


@pytest.fixture(scope="module")
def networks() -> tuple[tamis.Network, torch.nn.Module]:
    torch.manual_seed(0)
    model = digits_cnn(8)
    return tamis.trace(model, example_input("digits_cnn")), binarize(model, example=example_input("digits_cnn"))


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
    with pytest.raises(InvalidInput, match=r"radius = 0\.1 bounds networks of one graph"):
        tamis.certify(net, file, TEST, rebuilt=binary, radius=0.1)


def test_another_file_is_found_out(networks, file, tmp_path: Path) -> None:
    net, binary = networks
    tamis.certify(net, file, TEST, rebuilt=binary).save(tmp_path / "small.json")
    torch.manual_seed(1)
    other = binarize(digits_cnn(8), example=example_input("digits_cnn"))
    packed(other.eval(), example_input("digits_cnn")).save(file)
    with pytest.raises(VerificationFailed, match="sha256"):
        tamis.verify(tmp_path / "small.json", file, net, TEST, rebuilt=binary)
