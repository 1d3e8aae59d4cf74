import runpy
import sys

import pytest
import torch

from tamis.training import digits as digits_module
from tamis.training.digits import digits

# As published with the data set, for the 1797 images together.
IMAGES_PER_DIGIT = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize(("split", "size"), [("train", 1437), ("test", 360)])
def test_a_split_has_its_size_types_and_ranges(split, size):
    images, labels = digits(split)
    assert images.shape == (size, 1, 8, 8)
    assert images.dtype == torch.float32
    assert labels.shape == (size,)
    assert labels.dtype == torch.int64
    assert images.min() == 0.0
    assert images.max() == 1.0
    assert torch.equal(images * 16, (images * 16).round())
    assert labels.unique().tolist() == list(range(10))


def test_the_splits_together_are_the_published_images():
    (train_images, train_labels), (test_images, test_labels) = digits("train"), digits("test")
    images, labels = torch.cat([train_images, test_images]), torch.cat([train_labels, test_labels])
    assert labels.bincount().tolist() == IMAGES_PER_DIGIT
    assert labels[:10].tolist() == list(range(10))
    assert labels[-5:].tolist() == [9, 0, 8, 9, 8]
    assert (images.double() * 16).mean().item() == pytest.approx(4.884164579855314, rel=1e-12)
    assert (images[0, 0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]


def test_the_labels_belong_to_the_images():
    images, labels = digits("train")
    means = torch.stack([images[labels == digit].mean(0).flatten() for digit in range(10)])
    test_images, test_labels = digits("test")
    nearest = torch.cdist(test_images.flatten(1), means).argmin(1)
    assert (nearest == test_labels).float().mean() > 0.8


def test_each_call_returns_fresh_tensors():
    images, labels = digits("test")
    images.zero_()
    labels.zero_()
    assert digits("test")[0].max() == 1.0
    assert digits("test")[1].max() == 9


def test_an_unknown_split_is_named_in_the_error():
    with pytest.raises(ValueError, match="'validation'"):
        digits("validation")


def test_scikit_learn_is_not_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)  # makes `import sklearn` raise
    fresh = runpy.run_path(digits_module.__file__)["digits"]
    assert len(fresh("test")[1]) == 360
