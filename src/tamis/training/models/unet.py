"""A U-Net joins an encoder and a decoder by skip concatenations, and makes one prediction per pixel.

Reference: Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation",
MICCAI 2015.
"""

import torch
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    """A `DoubleConv` has two 3x3 convolutions, each followed by BatchNorm and ReLU, at a constant image size."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
        )


class UNet(nn.Module):
    """A `UNet` has two levels; the deep one goes up by a transposed convolution, the shallow one by interpolation."""

    def __init__(self, in_channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.encode1 = DoubleConv(in_channels, width)
        self.encode2 = DoubleConv(width, 2 * width)
        self.bottom = DoubleConv(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.decode2 = DoubleConv(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        # Interpolation keeps all of its 2 · width channels, beside the `width` of the skip.
        self.decode1 = DoubleConv(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.encode1(x)
        coarse = self.encode2(self.pool(fine))
        deep = self.bottom(self.pool(coarse))
        coarse = self.decode2(torch.cat([coarse, self.up2(deep)], dim=1))
        fine = self.decode1(torch.cat([fine, self.up1(coarse)], dim=1))
        return self.head(fine)


def unet_small(in_channels: int = 3, classes: int = 4, width: int = 8) -> UNet:
    """Build a two-level U-Net, (N, in_channels, H, W) to (N, classes, H, W) (after Ronneberger et al. 2015).

    H and W must be multiples of 4.
    """
    return UNet(in_channels, classes, width)
