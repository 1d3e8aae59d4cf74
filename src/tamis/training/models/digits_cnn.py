"""This small convolutional network is for the 8x8 digits that ship with the library."""

from torch import Tensor, nn


def _conv_norm(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))


class DigitsCNN(nn.Module):
    """A `DigitsCNN` has two convolutions with BatchNorm, ReLU and pooling, a skip between, and a linear classifier."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = _conv_norm(1, width)
        self.skipped = _conv_norm(width, width)
        self.second = _conv_norm(width, 2 * width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.first(x)))
        x = self.relu(x + self.skipped(x))
        x = self.maxpool(self.relu(self.second(x)))
        return self.classifier(self.avgpool(x).flatten(1))


def digits_cnn(width: int = 32, classes: int = 10) -> DigitsCNN:
    """Build a classifier of grey images (N, 1, height, width), both ≥ 4, with `width` channels, then twice as many."""
    return DigitsCNN(width, classes)
