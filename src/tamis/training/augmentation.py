"""Augmentation varies training images at random and keeps their class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tamis.errors import InvalidInput


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Shift every image at random, and mirror every second one on average.

    Each image is padded with `padding` zeros on all sides, cropped back to its size at one of the (2·padding + 1)²
    places, and mirrored left to right with probability 1/2. All draws are independent.

    Args:
        images: N×C×H×W, of any dtype, on any device; for normalised images the zeros are the mean colour.
        generator: where the draws come from. They are made on its own device, so a generator on the CPU gives the
            same crops wherever the images are.
        padding: the largest shift, in pixels.

    Example:
        >>> crop_and_flip(torch.rand(8, 3, 32, 32), torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 32, 32])

    Reference: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
    """
    if images.dim() != 4:
        raise InvalidInput(f"crop_and_flip needs images N×C×H×W, got shape {tuple(images.shape)}")
    if padding < 0:
        raise InvalidInput(f"crop_and_flip needs padding ≥ 0, got {padding}")
    count, channels, height, width = images.shape
    # Three numbers for each image: how far down, how far to the right, and whether to mirror. They are moved to the
    # images' device together.
    draws = torch.stack(
        [
            torch.randint(choices, (count, 1), generator=generator, device=generator.device)
            for choices in (2 * padding + 1, 2 * padding + 1, 2)
        ]
    )
    top, left, flipped = draws.to(images.device)
    row, column = (torch.arange(size, device=images.device) for size in (height, width))
    rows = top + row
    # Reading the columns of the crop from right to left mirrors it: shift and mirror are one gather.
    columns = left + torch.where(flipped == 1, width - 1 - column, column)
    pixels = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]  # places in a padded image, flattened
    padded = F.pad(images, (padding,) * 4).flatten(2)
    return padded.gather(2, pixels.view(count, 1, -1).expand(-1, channels, -1)).view(images.shape)
