"""These residual networks for ImageNet have the structure, initialisation and parameter names of torchvision's.

Reference: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016. The bottleneck strides on
its 3x3 convolution ("v1.5"), where the paper strides on the first 1x1.
"""

from collections.abc import Sequence

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """A basic block has two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(in_channels, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + shortcut)


class Bottleneck(nn.Module):
    """A bottleneck has a 3x3 convolution between two 1x1 ones that narrow and widen, beside a shortcut."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.bn3(self.conv3(out)) + shortcut)


class ResNet(nn.Module):
    """A `ResNet` is a strided stem, four stages of residual blocks, a global average and a linear layer."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        out = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return self.fc(self.avgpool(out).flatten(1))


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    """Build a 1x1 projection where the shapes differ; None stands for the identity where they agree."""
    if stride == 1 and in_channels == out_channels:
        return None
    projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(out_channels))


def _stage(
    block: type[BasicBlock] | type[Bottleneck], in_channels: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    first = block(in_channels, width, stride)
    return nn.Sequential(first, *(block(width * block.expansion, width, 1) for _ in range(depth - 1)))


def resnet18(num_classes: int = 1000) -> ResNet:
    """Build ResNet-18 for 224x224 images, basic blocks (He et al. 2016)."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet34(num_classes: int = 1000) -> ResNet:
    """Build ResNet-34 for 224x224 images, basic blocks (He et al. 2016)."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes)


def resnet50(num_classes: int = 1000) -> ResNet:
    """Build ResNet-50 v1.5 for 224x224 images, bottleneck blocks (He et al. 2016)."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)


def resnet101(num_classes: int = 1000) -> ResNet:
    """Build ResNet-101 v1.5 for 224x224 images, bottleneck blocks (He et al. 2016)."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes)


def resnet152(num_classes: int = 1000) -> ResNet:
    """Build ResNet-152 v1.5 for 224x224 images, bottleneck blocks (He et al. 2016)."""
    return ResNet(Bottleneck, (3, 8, 36, 3), num_classes)
