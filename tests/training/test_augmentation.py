"""Crops and flips against a loop over the images."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.training.augmentation import crop_and_flip

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def one_by_one(images: Tensor, generator: torch.Generator, padding: int) -> Tensor:
    """Pad, slice and flip each image in turn, by the same draws: all tops, all lefts, then who is flipped."""
    count, _, height, width = images.shape
    tops, lefts = (torch.randint(2 * padding + 1, (count,), generator=generator).tolist() for _ in range(2))
    flipped = torch.randint(2, (count,), generator=generator).tolist()
    varied = []
    for image, top, left, flip in zip(images, tops, lefts, flipped, strict=True):
        crop = F.pad(image, (padding,) * 4)[:, top : top + height, left : left + width]
        varied.append(crop.flip(2) if flip else crop)
    return torch.stack(varied)


@given(
    shape=st.tuples(*[st.integers(1, 6)] * 4),
    padding=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.uint8]),
)
def test_as_a_loop_over_the_images(shape, padding, seed, dtype):
    images = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype)
    before = images.clone()
    varied = crop_and_flip(images, torch.Generator().manual_seed(seed), padding)
    assert varied.dtype is dtype
    assert torch.equal(varied, one_by_one(images, torch.Generator().manual_seed(seed), padding))
    assert torch.equal(images, before)


@pytest.mark.parametrize("device", DEVICES)
def test_every_shift_and_flip_occurs_about_as_often(device):
    padding, count = 2, 20_000
    images = torch.zeros(count, 1, 7, 7, device=device)
    images[:, :, 3, 3], images[:, :, 3, 4] = 1, 2  # where the 1 goes tells the shift, on which side the 2 is the flip
    varied = crop_and_flip(images, torch.Generator(device).manual_seed(0), padding).cpu()
    assert varied.sum() == 3 * count  # neither can be shifted out
    places = (varied == 1).flatten(1).int().argmax(1)
    flipped = (varied == 2).flatten(1).int().argmax(1) < places
    seen = torch.stack([places, flipped.int()], 1).unique(dim=0, return_counts=True)[1]
    choices = 2 * (2 * padding + 1) ** 2
    assert len(seen) == choices
    # Each count is binomial, with mean 400 and a standard deviation of 20: five of these for fifty counts.
    assert ((seen - count / choices).abs() < 100).all()


def test_the_seed_decides():
    images = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    one, again, other = (crop_and_flip(images, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_generator_on_the_cpu_gives_the_same_on_a_gpu():
    images = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    here = crop_and_flip(images, torch.Generator().manual_seed(5))
    there = crop_and_flip(images.cuda(), torch.Generator().manual_seed(5))
    assert there.is_cuda
    assert torch.equal(here, there.cpu())


def test_what_cannot_be_cropped_is_refused():
    with pytest.raises(InvalidInput, match=r"N×C×H×W, got shape \(3, 8, 8\)"):
        crop_and_flip(torch.zeros(3, 8, 8), torch.Generator())
    with pytest.raises(InvalidInput, match="padding ≥ 0, got -1"):
        crop_and_flip(torch.zeros(1, 3, 8, 8), torch.Generator(), padding=-1)
