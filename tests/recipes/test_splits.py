"""The three parts of the data have no sample in common, whatever they are drawn from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tamis.errors import DataNotFound, InvalidInput
from tamis.recipes.splits import load_splits
from tamis.training import Data


def rows(inputs: Tensor) -> set[bytes]:
    return {each.numpy().tobytes() for each in inputs}


@pytest.mark.parametrize("source", ["train", "test"])
def test_parts_are_disjoint_and_whole(source: str) -> None:
    parts = load_splits("digits:train[:300]", "digits:test[:200]", 0.25, source, 100, 3)
    train, held_out, test = (rows(each.inputs) for each in (parts.train, parts.searched, parts.test))
    assert not train & held_out and not train & test and not held_out & test
    assert rows(parts.calibration.inputs) <= train and len(parts.calibration) == 100
    sizes = (225, 75, 200) if source == "train" else (300, 50, 150)
    assert (len(parts.train), len(parts.searched), len(parts.test)) == sizes
    again = load_splits("digits:train[:300]", "digits:test[:200]", 0.25, source, 100, 3)
    assert rows(again.searched.inputs) == held_out and again.digests == parts.digests
    other = load_splits("digits:train[:300]", "digits:test[:200]", 0.25, source, 100, 4)
    assert rows(other.searched.inputs) != held_out


def test_one_shared_sample_is_one_too_many() -> None:
    message = (
        r"'digits:train\[:100\]' and 'digits:train\[99:150\]' have 1 of 51 samples in common .*sample 99 of the one"
    )
    with pytest.raises(InvalidInput, match=message):
        load_splits("digits:train[:100]", "digits:train[99:150]", 0.2, "train", 10, 0)
    load_splits("digits:train[:100]", "digits:train[100:150]", 0.2, "train", 10, 0)


def test_data_without_labels() -> None:
    draw = np.random.default_rng(0)
    np.savez("a.npz", x=draw.random((20, 3), dtype=np.float32))
    np.savez("b.npz", x=draw.random((10, 3), dtype=np.float32), y=np.arange(10))
    parts = load_splits("a.npz", "b.npz", 0.5, "train", 100, 0)
    assert not parts.has_labels and parts.test_has_labels
    parts = load_splits("b.npz", "a.npz", 0.5, "train", 100, 0)
    assert parts.has_labels and not parts.test.has_labels and len(parts.calibration) == 5


def test_nothing_need_be_held_out() -> None:
    parts = load_splits("digits:train[:30]", "digits:test[:20]", None, "train", 10, 0)
    assert (len(parts.train), parts.held_out, len(parts.test)) == (30, None, 20)
    with pytest.raises(InvalidInput, match="a search needs data to compare networks on"):
        _ = parts.searched


def test_what_is_not_there_or_too_little() -> None:
    with pytest.raises(DataNotFound, match="no_such_data"):
        load_splits("no_such_data:train", "digits:test", 0.2, "train", 10, 0)
    with pytest.raises(InvalidInput, match=r"has 3 samples, of which 0\.1 cannot be held out"):
        load_splits("digits:train[:3]", "digits:test", 0.1, "train", 10, 0)


@pytest.mark.parametrize("source", ["train", "test"])
def test_equal_samples_go_to_one_part(source: str) -> None:
    """Forty images, each of them one to nine times, in any order."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(40, 3, generator=generator)
    places = torch.repeat_interleave(torch.arange(40), torch.arange(40) % 9 + 1)
    places = places[torch.randperm(len(places), generator=generator)]
    repeated, other = (images[places], places % 2), (images + 10, torch.arange(40) % 2)
    train, test = (repeated, other) if source == "train" else (other, repeated)
    data = load_splits(train, test, 0.3, source, 50, seed=0)
    aside, rest = (set(part.sample_digests.tolist()) for part in (data.searched, getattr(data, source)))
    assert aside and rest and not aside & rest
    assert len(data.searched) + len(getattr(data, source)) == len(places)
    again = load_splits(train, test, 0.3, source, 50, seed=0)
    assert again.searched.sample_digests.tolist() == data.searched.sample_digests.tolist()


def test_one_sample_repeated_cannot_be_divided() -> None:
    same, other = (torch.ones(50, 3), torch.zeros(50).long()), (torch.zeros(2, 3), torch.zeros(2).long())
    with pytest.raises(InvalidInput, match=r"50 samples \(1 distinct ones\), of which 0.2 cannot be held out"):
        load_splits(same, other, 0.2, "train", 9, 0)


def test_an_image_is_the_same_as_bytes_and_as_floats() -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 4, 4), dtype=np.uint8)
    np.savez("bytes.npz", x=images, y=np.arange(9))
    np.savez("floats.npz", x=images[2:6, None].astype(np.float32) / 255, y=np.arange(4))
    with pytest.raises(InvalidInput, match=r"'bytes\.npz' and 'floats\.npz' have 4 of 4 samples in common"):
        load_splits("bytes.npz", "floats.npz", None, "train", 5, 0)


def test_zeros_of_both_signs_are_one_sample() -> None:
    inputs, labels = torch.arange(12.0).reshape(4, 3) * torch.tensor([1.0, 1.0, 0.0]), torch.arange(4)
    with pytest.raises(InvalidInput, match=r"have 2 of 2 samples in common .*: sample 1 of the one is sample 0"):
        load_splits((inputs, labels), (inputs[1:3] * torch.tensor([1.0, 1.0, -1.0]), labels[:2]), None, "train", 5, 0)


def test_another_normalisation_hides_no_equal_sample() -> None:
    images, labels = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    plain = Data(images, labels, "plain")
    stored_alike = Data(images[2:5], labels[2:5], "alike", mean=(0.5,), std=(0.25,))
    with pytest.raises(InvalidInput, match=r"'plain' and 'alike' have 3 of 3 samples in common"):
        load_splits(plain, stored_alike, None, "train", 5, 0)
    fed_alike = Data(stored_alike.normalised(), labels[2:5], "fed")
    with pytest.raises(InvalidInput, match=r"'alike' and 'fed' have 3 of 3 samples in common"):
        load_splits(stored_alike, fed_alike, None, "train", 5, 0)
