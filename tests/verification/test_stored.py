"""The certificate that the documentation shows, and one of version 1, verified on the network and the real data."""

from pathlib import Path

import pytest
import torch
from pretrained import pretrained

import tamis

STORED = Path(__file__).parents[2] / "docs" / "results" / "certificate"
VERSION_1 = Path(__file__).parent / "version_1"  # a certificate and a file of before version 2 of both


def test_it_says_what_the_documentation_says() -> None:
    cert = tamis.Certificate.load(STORED / "resnet32.json")
    pages = " ".join((STORED.parents[1] / "certificates.md").read_text().split())
    assert all(claim.sentence in pages for claim in cert.claims)
    assert [claim.name for claim in cert.claims if not claim.bound.informative] == ["path_metric", "generalization"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", [STORED, VERSION_1], ids=["shown", "version 1"])
def test_it_holds(folder: Path) -> None:
    net = tamis.trace(pretrained("resnet32"), torch.zeros(1, 3, 32, 32))
    found = tamis.verify(folder / "resnet32.json", folder / "resnet32.tamis", net, "cifar10:test")
    assert found.recomputed == ("disagreement", "accuracy_change", "error_rate", "deviation", "path_metric")
    assert found.unchecked == ("generalization",)  # which would take the training set
