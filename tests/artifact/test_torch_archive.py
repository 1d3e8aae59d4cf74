"""What torch.save writes is not compressed: an archive that is could fill the memory."""

import zipfile

import pytest
import torch

from tamis.artifact.torch_archive import check_uncompressed, load_archive
from tamis.cli.weights_file import load_weights
from tamis.errors import CorruptArtifact


def test_files_of_torch_are_read(tmp_path):
    torch.save({"a": torch.arange(3)}, tmp_path / "a.pt")
    check_uncompressed(tmp_path / "a.pt")
    assert torch.equal(load_archive(tmp_path / "a.pt")["a"], torch.arange(3))
    torch.save({"a": 1}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    check_uncompressed(tmp_path / "old.pt")


def test_compressed_parts_are_refused_before_they_are_read(tmp_path):
    torch.save({"a": torch.zeros(2**20)}, tmp_path / "a.pt")
    with (
        zipfile.ZipFile(tmp_path / "a.pt") as plain,
        zipfile.ZipFile(tmp_path / "b.pt", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for name in plain.namelist():
            small.writestr(name, plain.read(name))
    for call in (check_uncompressed, load_archive):
        with pytest.raises(CorruptArtifact, match=r"b\.pt' was not written by torch\.save: .* is compressed"):
            call(tmp_path / "b.pt")


@pytest.mark.parametrize(("offset", "value"), [(6, 99), (2, 0)], ids=["a later version", "no directory"])
def test_archives_that_python_cannot_open_are_errors_of_tamis(tmp_path, offset, value):
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(3)}, path)
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + offset] = value
    path.write_bytes(content)
    for call in (check_uncompressed, load_archive, lambda path: load_weights(torch.nn.Linear(1, 1), path)):
        with pytest.raises(CorruptArtifact, match=r"a\.pt' was not written by torch\.save"):
            call(path)
