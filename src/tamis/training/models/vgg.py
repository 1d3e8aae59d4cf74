"""VGG networks are plain stacks of 3x3 convolutions, with the parameter names of torchvision's.

Reference: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015.
"""

from collections.abc import Sequence

from torch import Tensor, nn

_WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    """A `VGG` has convolutional `features`, pooled to a grid of `grid` x `grid`, then a `classifier`."""

    def __init__(self, features: nn.Sequential, grid: int, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d((grid, grid))
        self.classifier = classifier
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def _initialise(network: nn.Module) -> None:
    # As torchvision begins them.
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _features(in_channels: int, widths: Sequence[int], depths: Sequence[int], batch_norm: bool) -> nn.Sequential:
    """Build one stage per width: `depth` convolutions, then a max-pooling that halves the image."""
    layers: list[nn.Module] = []
    channels = in_channels
    for width, depth in zip(widths, depths, strict=True):
        for _ in range(depth):
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU())
            channels = width
        layers.append(nn.MaxPool2d(2, stride=2))
    return nn.Sequential(*layers)


def _imagenet_vgg(depths: Sequence[int], num_classes: int, batch_norm: bool, in_channels: int) -> VGG:
    classifier = nn.Sequential(
        nn.Linear(_WIDTHS[-1] * 7 * 7, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, num_classes),
    )
    return VGG(_features(in_channels, _WIDTHS, depths, batch_norm), 7, classifier)


def vgg11(num_classes: int = 1000, batch_norm: bool = False, in_channels: int = 3) -> VGG:
    """Build VGG-11 (configuration A) for 224x224 images: 8 convolutions and 3 linear layers."""
    return _imagenet_vgg((1, 1, 2, 2, 2), num_classes, batch_norm, in_channels)


def vgg13(num_classes: int = 1000, batch_norm: bool = False, in_channels: int = 3) -> VGG:
    """Build VGG-13 (configuration B) for 224x224 images: 10 convolutions and 3 linear layers."""
    return _imagenet_vgg((2, 2, 2, 2, 2), num_classes, batch_norm, in_channels)


def vgg16(num_classes: int = 1000, batch_norm: bool = False, in_channels: int = 3) -> VGG:
    """Build VGG-16 (configuration D) for 224x224 images: 13 convolutions and 3 linear layers."""
    return _imagenet_vgg((2, 2, 3, 3, 3), num_classes, batch_norm, in_channels)


def vgg19(num_classes: int = 1000, batch_norm: bool = False, in_channels: int = 3) -> VGG:
    """Build VGG-19 (configuration E) for 224x224 images: 16 convolutions and 3 linear layers."""
    return _imagenet_vgg((2, 2, 4, 4, 4), num_classes, batch_norm, in_channels)


def vgg_small(num_classes: int = 10, batch_norm: bool = False, in_channels: int = 3) -> VGG:
    """Build a VGG-like network for 32x32 images: 6 convolutions and 2 linear layers."""
    classifier = nn.Sequential(nn.Linear(64 * 4 * 4, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, num_classes))
    return VGG(_features(in_channels, (16, 32, 64), (2, 2, 2), batch_norm), 4, classifier)
