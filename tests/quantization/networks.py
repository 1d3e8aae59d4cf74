"""Small whole networks to quantize, traced once each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

import tamis
from tamis.training import models
from tamis.training.models.cifar_resnet import CifarResNet

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: models.mlp((12, 10, 8, 4), batch_norm=True), (12,)),
    "cnn1d": (models.cnn1d, (1, 32)),
    "resnet": (lambda: CifarResNet(8, num_classes=10), (3, 8, 8)),  # the blocks of resnet20, one of each width
    "densenet": (lambda: models.densenet_small(growth=4, depth=2), (3, 8, 8)),
    "inception": (lambda: models.inception_small(width=4), (3, 8, 8)),
    "mobilenet": (models.mobilenet_small, (3, 8, 8)),
    "unet": (lambda: models.unet_small(width=4), (3, 8, 8)),
    "vit": (models.vit_tiny_test, (3, 32, 32)),
    "gcn": (models.gcn, (12, 8)),
}


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
