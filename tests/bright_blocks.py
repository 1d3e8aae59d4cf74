"""`tiny_data`: images that a network of a few weights can tell apart."""

from __future__ import annotations

import torch

from tamis.training import Data


def tiny_data(count: int = 120) -> Data:
    """Images of which the bright half says the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 4
    images = torch.randint(0, 60, (count, 1, 12, 12), generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        block = image[0].view(2, 6, 2, 6)[label // 2, :, label % 2]
        block += 150
    return Data(images.to(torch.uint8), labels, "tiny", classes=10)
