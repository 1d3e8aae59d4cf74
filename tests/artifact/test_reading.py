"""How parts of a file are read by the extension and by other threads: as they are without these."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from any_tensors import same
from artifact.forging import forged, kinds
from artifact.versions import Said
from hypothesis import given
from hypothesis import strategies as st

from tamis.artifact.encodings.coded_digits import from_row
from tamis.artifact.format import read, write
from tamis.artifact.format_v2 import _join_bytes
from tamis.errors import CorruptArtifact
from tamis.kernels import dispatch

needs_extension = pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())


@given(st.sampled_from([2, 4, 8]), st.integers(0, 100), st.integers(0, 9), st.integers(0, 2**32))
def test_bytes_of_numbers_are_joined(width: int, count: int, start: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (width, start + count + 3), dtype=np.uint8)
    lower, top = rows[:-1, start : start + count], rows[-1, start : start + count]
    assert _join_bytes(lower, top).tolist() == rows[:, start : start + count].T.reshape(-1).tolist()


def test_a_file_is_read_alike_without_the_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parts that other threads read, and highest bytes that are compressed."""
    generator = torch.Generator().manual_seed(0)
    masks = {name: torch.rand(300, 300, generator=generator) < 0.2 for name in ("a", "b")}
    state = {name: torch.randn(300, 300, generator=generator) for name in masks}
    state = {name: value.where(masks[name], 0) for name, value in state.items()} | {"c": torch.randn(50).double()}
    write(tmp_path / "x.tamis", state, masks, {})
    here = read(tmp_path / "x.tamis", kinds(state))
    monkeypatch.setitem(sys.modules, "tamis._native", None)
    there = read(tmp_path / "x.tamis", kinds(state))
    for found in (here, there):
        assert all(same(found.tensors[name], value) for name, value in state.items())
        assert all(torch.equal(found.masks[name], mask) for name, mask in masks.items())


def test_masks_that_other_threads_read_are_refused_by_name(tmp_path: Path) -> None:
    """Of two that are wrong, the first, whichever was read first."""
    masks = {name: torch.rand(300, 300, generator=torch.Generator().manual_seed(0)) < 0.2 for name in ("a", "b")}
    write(tmp_path / "x.tamis", {name: mask.float() for name, mask in masks.items()}, masks, {})

    def shortened(said: Said) -> None:
        for name in masks:
            dtype, shape, content = said.parts[f"{name}/codedmask"]
            said.parts[f"{name}/codedmask"] = (dtype, [shape[0] - 4], content[:-4])

    (tmp_path / "x.tamis").write_bytes(forged((tmp_path / "x.tamis").read_bytes(), shortened))
    with pytest.raises(CorruptArtifact, match="'a' has an entropy-coded row that is not one of 11250 symbols"):
        read(tmp_path / "x.tamis", kinds({name: mask.float() for name, mask in masks.items()}))


@pytest.mark.parametrize("hidden", [False, True])
def test_no_entries_take_no_symbols(hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if hidden:
        monkeypatch.setitem(sys.modules, "tamis._native", None)
    assert len(from_row(np.frombuffer(b"\0\0\1\xff", dtype=np.uint8), count=0, base=2)) == 0


@needs_extension
def test_what_does_not_fit_is_refused() -> None:
    extension, row = dispatch.native(), np.zeros(8, dtype=np.uint8)
    with pytest.raises(ValueError, match="lengths do not agree"):
        extension.join_bytes(row.reshape(1, 8), row[:7], np.empty((8, 2), dtype=np.uint8))
    with pytest.raises(ValueError, match="side by side"):
        extension.join_bytes(row.reshape(4, 2).T[:1], row[:4], np.empty((4, 2), dtype=np.uint8))
    with pytest.raises(ValueError, match="2, 4 or 8 bytes"):
        extension.join_bytes(row.reshape(2, 4), row[:4], np.empty((4, 3), dtype=np.uint8))
    freqs, words = np.array([2**23, 2**23], dtype=np.uint32), np.ones(3, dtype=np.uint32)
    for lookup, digits in (((3, 2), 8), ((2, 3), 8), ((2, 9), 18)):
        with pytest.raises(ValueError, match="room for whole symbols"):
            extension.ans_decompress_digits(words, freqs, np.zeros(lookup, np.uint8), np.empty(digits, np.uint8))
