"""Small whole networks to quantize, traced once each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

import tamis
from tamis.training import models
from tamis.training.models.cifar_resnet import CifarBlock

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: models.mlp((12, 10, 8, 4), batch_norm=True), (12,)),
    "cnn1d": (models.cnn1d, (1, 32)),
    "resnet": (lambda: small_resnet(), (3, 8, 8)),
    "densenet": (lambda: models.densenet_small(growth=4, depth=2), (3, 8, 8)),
    "inception": (lambda: models.inception_small(width=4), (3, 8, 8)),
    "mobilenet": (models.mobilenet_small, (3, 8, 8)),
    "unet": (lambda: models.unet_small(width=4), (3, 8, 8)),
    "vit": (models.vit_tiny_test, (3, 32, 32)),
    "gcn": (models.gcn, (12, 8)),
}


def small_resnet() -> nn.Module:
    """Two blocks of a residual network, the second with a padded shortcut."""
    stem = (nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(*stem, CifarBlock(4, 4), CifarBlock(4, 8), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8, 10))


@cache
def network(name: str) -> tuple[tamis.Network, nn.Module, Tensor]:
    """A network, the module it was traced from, and data."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    module = make()
    for layer in module.modules():  # as after training: no batch-norm is the identity
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.2)
            layer.running_mean.normal_(std=0.2)
            layer.running_var.uniform_(0.5, 1.5)
    module.eval()
    data = torch.randn(15, *shape)
    return tamis.trace(module, data[:2]), module, data
