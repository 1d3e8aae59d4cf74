"""Fixtures: a trained network, its small version in a file, its certificate, and the data they are compared on."""

from pathlib import Path

import pytest
import torch
from torch import nn

import tamis
from tamis.training import Data, Settings, load_data, train

TRAIN = load_data("digits:train[:600]")


@pytest.fixture(scope="session")
def model() -> nn.Module:
    """One convolution and a layer of scores: as many kinds of operations as claims need, and boxes of few neurons."""
    torch.manual_seed(0)
    cnn = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    settings = Settings(epochs=6, batch=50, optimizer="adamw", learning_rate=0.01)
    return train(cnn, TRAIN, settings, progress=False).model


@pytest.fixture(scope="session")
def net(model: nn.Module) -> tamis.Network:
    return tamis.trace(model, TRAIN.example)


@pytest.fixture(scope="session")
def data() -> Data:
    return load_data("digits:test[:300]")


@pytest.fixture(scope="session")
def file(net: tamis.Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "small.tamis"
    small = tamis.quantize(tamis.prune(net, 0.5, by="magnitude"), TRAIN, levels=4, progress=False)
    small.save(path)
    return path


@pytest.fixture(scope="session")
def cert(net: tamis.Network, file: Path, data: Data) -> tamis.Certificate:
    return tamis.certify(net, file, data)
