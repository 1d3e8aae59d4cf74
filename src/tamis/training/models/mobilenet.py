"""MobileNets put depthwise separable convolutions in inverted residual blocks.

Reference: Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
CVPR 2018.
"""

from collections.abc import Callable

from torch import Tensor, nn


class InvertedResidual(nn.Module):
    """This block widens by a 1x1, filters each channel by a 3x3, narrows by a 1x1, and skips where the shapes agree."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, expansion: int, activation: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self.has_shortcut = stride == 1 and in_channels == out_channels
        self.expand = nn.Sequential(nn.Conv2d(in_channels, hidden, 1, bias=False), nn.BatchNorm2d(hidden), activation())
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, stride=stride, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            activation(),
        )
        # No activation here: in few channels, a ReLU would lose too much ("linear bottlenecks").
        self.project = nn.Sequential(nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        out = self.project(self.depthwise(self.expand(x)))
        return x + out if self.has_shortcut else out


class MobileNet(nn.Module):
    """A `MobileNet` is a strided stem, five inverted residuals, a 1x1 convolution and a linear classifier."""

    def __init__(self, num_classes: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), activation()
        )
        self.blocks = nn.Sequential(
            InvertedResidual(16, 16, 1, 2, activation),
            InvertedResidual(16, 24, 2, 4, activation),
            InvertedResidual(24, 24, 1, 4, activation),
            InvertedResidual(24, 40, 2, 4, activation),
            InvertedResidual(40, 40, 1, 4, activation),
        )
        self.last = nn.Sequential(nn.Conv2d(40, 128, 1, bias=False), nn.BatchNorm2d(128), activation())
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(128, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.last(self.blocks(self.stem(x)))).flatten(1))


def mobilenet_small(num_classes: int = 10, activation: Callable[[], nn.Module] = nn.ReLU) -> MobileNet:
    """Build a small MobileNetV2 for 32x32 images (after Sandler et al. 2018).

    The paper uses `activation=nn.ReLU6`; the default is ReLU, because ReLU6 is not positively homogeneous.
    """
    return MobileNet(num_classes, activation)
