"""Inception networks concatenate parallel branches with different receptive fields.

Reference: Szegedy et al., "Going Deeper with Convolutions", CVPR 2015; BatchNorm as in Ioffe and Szegedy, "Batch
Normalization", ICML 2015.
"""

import torch
from torch import Tensor, nn


class ConvBlock(nn.Sequential):
    """A `ConvBlock` is a convolution that keeps the image size, then BatchNorm and ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
        )


class InceptionBlock(nn.Module):
    """An Inception block has four branches of `width` channels: 1x1, 1x1 and 3x3, 1x1 and 5x5, max-pooling and 1x1."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        self.branch1 = ConvBlock(in_channels, width, 1)
        self.branch3 = nn.Sequential(ConvBlock(in_channels, width, 1), ConvBlock(width, width, 3))
        self.branch5 = nn.Sequential(ConvBlock(in_channels, width // 2, 1), ConvBlock(width // 2, width, 5))
        self.branch_pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), ConvBlock(in_channels, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch3(x), self.branch5(x), self.branch_pool(x)], dim=1)


class Inception(nn.Module):
    """An `Inception` is a stem, three Inception blocks with max-pooling between, and a linear classifier."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvBlock(3, width, 3),
            nn.MaxPool2d(2),
            InceptionBlock(width, width),
            nn.MaxPool2d(2),
            InceptionBlock(4 * width, width),
            InceptionBlock(4 * width, 2 * width),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def inception_small(num_classes: int = 10, width: int = 16) -> Inception:
    """Build three Inception blocks with BatchNorm for 32x32 images (after Szegedy et al. 2015)."""
    return Inception(num_classes, width)
