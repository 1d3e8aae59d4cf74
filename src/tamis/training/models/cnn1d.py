"""These convolutional networks classify time series."""

from torch import Tensor, nn


class CNN1d(nn.Module):
    """A `CNN1d` has three convolutions with BatchNorm and ReLU, two poolings, a global average and a linear layer."""

    def __init__(self, in_channels: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(in_channels, 16, 7, padding=3),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(16, 32, 5, padding=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.AvgPool1d(2),
            nn.Conv1d(32, 32, 3, padding=1),
            nn.BatchNorm1d(32),
            nn.ReLU(),
        )
        self.avgpool = nn.AdaptiveAvgPool1d(1)
        self.classifier = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def cnn1d(in_channels: int = 1, classes: int = 5) -> CNN1d:
    """Build a small classifier of signals (N, in_channels, length), length at least 4.

    Reference: Wang, Yan and Oates, "Time Series Classification from Scratch with Deep Neural Networks", IJCNN 2017; the
    two poolings between the convolutions are added here.
    """
    return CNN1d(in_channels, classes)
