"""An architecture in memory and in a file: what is written is read, what is changed is refused."""

import hashlib
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tamis.architecture.architecture import MAGIC, Architecture, count_kept_connections, keep_largest
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters
from tamis.training.models import mlp

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
NAMES = st.text(
    alphabet='aZ.0_ é☃\U0001f600"\\\n\0', max_size=5
)  # what JSON escapes, and what UTF-8 spreads over bytes


def an_architecture() -> Architecture:
    generator = torch.Generator().manual_seed(0)
    return Architecture(
        {
            "features.0.weight": torch.rand(4, 3, 3, 3, generator=generator) > 0.6,
            "classifier.weight": torch.rand(5, 7, generator=generator) > 0.2,
        }
    )


@settings(deadline=None, max_examples=40)
@given(shapes=st.dictionaries(NAMES, SHAPES, min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_masks_survive_a_file(
    shapes: dict[str, tuple[int, ...]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = {name: torch.rand(shape, generator=generator) > 0.5 for name, shape in shapes.items()}
    path = tmp_path_factory.getbasetemp() / "any.architecture"
    if not sum(mask.numel() for mask in masks.values()):
        with pytest.raises(InvalidInput, match="at least one connection"):
            Architecture(masks)
        return
    Architecture(masks).save(path)
    loaded = Architecture.load(path)
    assert loaded == Architecture(masks) and hash(loaded) == hash(Architecture(masks))
    assert loaded.masks.keys() == masks.keys()
    assert all(torch.equal(loaded.masks[name], mask) for name, mask in masks.items())


def test_the_file_holds_eight_connections_a_byte_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    an_architecture().save(one)
    Architecture(dict(reversed([*an_architecture().masks.items()]))).save(two)
    assert one.read_bytes() == two.read_bytes()
    header = len(one.read_bytes().split(b"\n")[1]) + 1
    assert one.stat().st_size == len(MAGIC) + header + -(-(108 + 35) // 8) + 32
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_every_changed_bit_and_every_missing_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "changed"
    an_architecture().save(path)
    good = path.read_bytes()
    for place in range(len(good)):
        for bit in (0, 3, 7):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
            with pytest.raises(CorruptArtifact, match=r"changed is (damaged|not a file of an architecture)"):
                Architecture.load(path)
        path.write_bytes(good[:place])
        with pytest.raises(CorruptArtifact):
            Architecture.load(path)
    path.write_bytes(good + b"\0")
    with pytest.raises(CorruptArtifact, match="sha256"):
        Architecture.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]\n",
        b'{"layers": {}}\n',
        b'{"layers": {"a": [8]}}\n',
        b'{"layers": {"a": [-8]}}\n\0',
        b'{"layers": {"a": 8}}\n\0',
        b'{"layers": [8]}\n\0',
        b'{"layers": {"a": [true]}}\n\0',
        b'{"layers": {"a": [8]}}\n\0\0',
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        b'{"layers": ' + b'{"a": ' * 100_000 + b"\n",
        b'{"layers": {"a": [0, 1%s]}}\n' % (b"0" * 30),
        b'{"layers": {"a": [1%s]}}\n' % (b"0" * 30),
    ],
)
def test_a_file_with_a_right_sum_of_wrong_content_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "made"
    path.write_bytes(MAGIC + content + hashlib.sha256(MAGIC + content).digest())
    with pytest.raises(CorruptArtifact, match="holds no architecture"):
        Architecture.load(path)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept"
    an_architecture().save(path)
    good = path.read_bytes()
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Architecture({"other": torch.ones(3, dtype=torch.bool)}).save(path)
    assert path.read_bytes() == good and [*tmp_path.iterdir()] == [path]


def test_figures() -> None:
    found = Architecture({"a": torch.tensor([True, False, False, False]), "b": torch.tensor([[True, True]])})
    assert found.sparsity == 0.5 and found.densities == {"a": 0.25, "b": 1.0}
    assert repr(found) == "Architecture(3 of 6 connections, 2 layers)"


def test_the_fingerprint_is_of_names_and_shapes() -> None:
    found = an_architecture()
    flipped = Architecture({name: ~mask for name, mask in reversed([*found.masks.items()])})
    assert flipped.fingerprint == found.fingerprint and flipped != found
    renamed = Architecture({f"module.{name}": mask for name, mask in found.masks.items()})
    reshaped = Architecture({name: mask.flatten() for name, mask in found.masks.items()})
    assert len({found.fingerprint, renamed.fingerprint, reshaped.fingerprint}) == 3


def test_it_is_a_copy() -> None:
    mask = torch.ones(3, dtype=torch.bool)
    found = Architecture({"a": mask})
    mask[0] = False
    assert found.masks["a"].all()


def test_only_boolean_masks_are_taken() -> None:
    with pytest.raises(InvalidInput, match="the mask of 'a' must be a boolean tensor"):
        Architecture({"a": torch.ones(3)})
    with pytest.raises(InvalidInput, match="at least one connection"):
        Architecture({})


def test_the_first_mismatch_is_named() -> None:
    found = Architecture({name: value > 0 for name, value in mlp((64, 6, 10)).named_parameters() if value.dim() > 1})
    found.check_fits(mlp((64, 6, 10)))
    with pytest.raises(
        InvalidParameters, match=r"'linear2\.weight' has shape \(10, 6\) in it and \(4, 6\) in Sequential"
    ):
        found.check_fits(mlp((64, 6, 4)))
    with pytest.raises(InvalidParameters, match=r"search with exclude='linear2\.weight'"):
        found.check_fits(mlp((64, 6, 4)))
    with pytest.raises(
        InvalidParameters, match=r"it masks 'linear1\.weight', which Linear does not have; it has weight"
    ):
        found.check_fits(nn.Linear(64, 6))


@settings(deadline=None, max_examples=50)
@given(
    scores=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=3),
    data=st.data(),
)
def test_the_largest_are_kept_and_of_equals_the_first(scores: list[list[int]], data: st.DataObject) -> None:
    named: dict[str, Tensor] = {f"{place}": torch.tensor(each).float() for place, each in enumerate(scores)}
    keep = data.draw(st.integers(0, sum(map(len, scores))))
    flat = [(-score, layer, index) for layer, each in enumerate(scores) for index, score in enumerate(each)]
    expected = {(layer, index) for _, layer, index in sorted(flat)[:keep]}
    kept = keep_largest(named, keep)
    assert {(int(name), i) for name, mask in kept.items() for i, stays in enumerate(mask.tolist()) if stays} == expected


@settings(deadline=None)
@given(sparsity=st.floats(0.0, 0.999), total=st.integers(1, 10**9))
def test_so_many_are_kept_as_is_nearest_to_the_sparsity(sparsity: float, total: int) -> None:
    if round(sparsity * total) == total:
        with pytest.raises(InvalidInput, match="keeps none of"):
            count_kept_connections(sparsity, total)
    else:
        assert abs(count_kept_connections(sparsity, total) - (1 - sparsity) * total) <= 0.5 + 1e-6


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 1.5, float("nan"), True])
def test_a_sparsity_is_a_fraction(sparsity: float) -> None:
    with pytest.raises(InvalidInput, match="must be a fraction from 0 to less than 1"):
        count_kept_connections(sparsity, 10)
