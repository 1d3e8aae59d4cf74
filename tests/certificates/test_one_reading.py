"""A file is opened once: what is hashed is what is decoded, however often another one takes its place."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tamis
import tamis.reports.comparison
from tamis.artifact import File
from tamis.errors import CorruptArtifact, VerificationFailed

INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    torch.manual_seed(0)
    return tamis.trace(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), INPUTS[:1])


class Flipping:
    """A link that points to the other of two files after every time that it was opened."""

    def __init__(self, link: Path, files: tuple[Path, Path]) -> None:
        self.link, self.files, self.opened = link, files, 0
        link.symlink_to(files[0])

    def open(self, *arguments: Any, **options: Any) -> Any:
        file = OPEN(self.link, *arguments, **options)
        self.opened += 1
        self.link.unlink()
        self.link.symlink_to(self.files[self.opened % 2])
        return file


OPEN = Path.open


@pytest.fixture
def flipping(net: tamis.Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flipping]:
    """Between a network that was pruned a little, and one of which little is left."""
    files = tmp_path / "good.tamis", tmp_path / "bad.tamis"
    for path, amount in zip(files, (0.2, 0.9), strict=True):
        tamis.prune(net, amount, by="magnitude").save(path)
    made = Flipping(tmp_path / "link.tamis", files)

    def opened(self: Path, *arguments: Any, **options: Any) -> Any:
        return (made.open if self == made.link else OPEN.__get__(self))(*arguments, **options)

    monkeypatch.setattr(Path, "open", opened)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)
    return made


def test_certify_says_of_one_file_what_that_file_is(net: tamis.Network, flipping: Flipping) -> None:
    for file in flipping.files:
        cert = tamis.certify(net, flipping.link, INPUTS)
        alone = tamis.certify(net, file, INPUTS)
        assert cert.content["file"]["sha256"] == alone.content["file"]["sha256"]
        assert cert.content["claims"] == alone.content["claims"]
    assert flipping.opened == 2


def test_verify_never_accepts_the_other_file(net: tamis.Network, flipping: Flipping) -> None:
    cert = tamis.certify(net, flipping.files[0], INPUTS)
    found = Counter[str]()
    for _ in range(6):
        try:
            found[str(tamis.verify(cert, flipping.link, net, INPUTS).ok)] += 1
        except VerificationFailed as error:
            assert "sha256" in str(error)
            found["refused"] += 1
    assert found == {"True": 3, "refused": 3}
    assert flipping.opened == 6


def test_a_report_is_about_the_file_of_its_certificate(net: tamis.Network, flipping: Flipping, tmp_path: Path) -> None:
    cert = tamis.certify(net, flipping.files[0], INPUTS)
    page, alone = tmp_path / "page.html", tmp_path / "alone.html"
    tamis.report(cert, page, original=net, file=flipping.link)
    assert flipping.opened == 1
    tamis.report(cert, alone, original=net, file=flipping.files[0])
    layers = [[line for line in each.read_text().splitlines() if "weight" in line] for each in (page, alone)]
    assert layers[0] == layers[1] and layers[0]


def test_a_file_that_is_changed_after_it_was_read_stays_what_it_was(net: tamis.Network, tmp_path: Path) -> None:
    small = tamis.prune(net, 0.5)
    small.save(tmp_path / "small.tamis")
    file = File.read(tmp_path / "small.tamis")
    before = file.sha256
    (tmp_path / "small.tamis").write_bytes(b"")
    loaded = tamis.load(file, net)
    assert file.sha256 == before and File.read(file) is file
    assert all(torch.equal(value, loaded.params[name]) for name, value in small.params.items())
    with pytest.raises(CorruptArtifact, match=r"small\.tamis is empty"):
        File.read(tmp_path / "small.tamis")
