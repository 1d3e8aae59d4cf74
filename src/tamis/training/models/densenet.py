"""In a densely connected network, each layer reads the concatenation of all earlier ones of its block.

Reference: Huang, Liu, van der Maaten and Weinberger, "Densely Connected Convolutional Networks", CVPR 2017.
"""

import torch
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """A dense layer is BN-ReLU-1x1 then BN-ReLU-3x3; it appends its `growth` new channels to its input."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        # As in the paper's networks with bottlenecks ("BC").
        bottleneck = 4 * growth
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, bottleneck, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(bottleneck)
        self.conv2 = nn.Conv2d(bottleneck, growth, 3, padding=1, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.conv1(self.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(self.relu(self.norm2(narrow)))], dim=1)


class Transition(nn.Sequential):
    """A transition is a BN-ReLU-1x1 that halves the channels, then an average pooling that halves the image."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels // 2, 1, bias=False),
            nn.AvgPool2d(2),
        )


class DenseNet(nn.Module):
    """A `DenseNet` is a 3x3 stem, three dense blocks with two transitions between, a global average, a linear layer."""

    def __init__(self, num_classes: int, growth: int, depth: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.features = nn.Sequential()
        self.features.add_module("stem", nn.Conv2d(3, channels, 3, padding=1, bias=False))
        for block in (1, 2, 3):
            layers = [DenseLayer(channels + layer * growth, growth) for layer in range(depth)]
            channels += depth * growth
            self.features.add_module(f"block{block}", nn.Sequential(*layers))
            if block < 3:
                self.features.add_module(f"transition{block}", Transition(channels))
                channels //= 2
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm(self.features(x)))
        return self.classifier(self.avgpool(out).flatten(1))


def densenet_small(num_classes: int = 10, growth: int = 12, depth: int = 4) -> DenseNet:
    """Build a DenseNet-BC for 32x32 images: three blocks of `depth` pre-activation layers (Huang et al. 2017)."""
    return DenseNet(num_classes, growth, depth)
