"""These residual networks take 32x32 images and have shortcuts without parameters.

Reference: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2, option A.
"""

from torch import Tensor, nn
from torch.nn import functional as F


class PaddedShortcut(nn.Module):
    """This shortcut (option A) keeps every second pixel, and doubles the channels by zeros on both sides."""

    def __init__(self, out_channels: int) -> None:
        super().__init__()
        # Half of the new channels are zeros, a quarter on each side.
        self.padding = out_channels // 4

    def forward(self, x: Tensor) -> Tensor:
        # F.pad counts axes from the last: width, height, then channels.
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))


class CifarBlock(nn.Module):
    """A `CifarBlock` has two 3x3 convolutions beside a shortcut without parameters."""

    def __init__(self, in_channels: int, width: int) -> None:
        super().__init__()
        widens = in_channels != width
        # Without a bias, which the batch normalization would take off again.
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=2 if widens else 1, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = PaddedShortcut(width) if widens else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class CifarResNet(nn.Module):
    """A `CifarResNet` is a 3x3 stem, three stages of `depth` blocks (16, 32, 64 channels) and a linear classifier."""

    def __init__(self, depth: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.layer1 = _stage(16, 16, depth)
        self.layer2 = _stage(16, 32, depth)
        self.layer3 = _stage(32, 64, depth)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(self.avgpool(out).flatten(1))


def _stage(in_channels: int, width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(CifarBlock(in_channels, width), *(CifarBlock(width, width) for _ in range(depth - 1)))


def resnet20(num_classes: int = 10) -> CifarResNet:
    """Build ResNet-20 for CIFAR-sized images, option-A shortcuts (He et al. 2016, section 4.2)."""
    return CifarResNet(3, num_classes)


def resnet32(num_classes: int = 10) -> CifarResNet:
    """Build ResNet-32 for CIFAR-sized images, option-A shortcuts (He et al. 2016, section 4.2)."""
    return CifarResNet(5, num_classes)


def resnet44(num_classes: int = 10) -> CifarResNet:
    """Build ResNet-44 for CIFAR-sized images, option-A shortcuts (He et al. 2016, section 4.2)."""
    return CifarResNet(7, num_classes)


def resnet56(num_classes: int = 10) -> CifarResNet:
    """Build ResNet-56 for CIFAR-sized images, option-A shortcuts (He et al. 2016, section 4.2)."""
    return CifarResNet(9, num_classes)
