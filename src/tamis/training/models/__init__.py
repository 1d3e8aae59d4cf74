"""The plain PyTorch models stand in one file per family, with a registry for the tests and the command line.

`MODELS` maps a name to a factory that needs no argument; `example_input(name)` is a suitable input for it. The weights
are drawn from PyTorch's global generator, as `torch.nn` does: call `torch.manual_seed` first for reproducible ones.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .cifar_resnet import resnet20 as resnet20
from .cifar_resnet import resnet32 as resnet32
from .cifar_resnet import resnet44 as resnet44
from .cifar_resnet import resnet56 as resnet56
from .cnn1d import cnn1d as cnn1d
from .densenet import densenet_small as densenet_small
from .digits_cnn import digits_cnn as digits_cnn
from .gcn import gcn as gcn
from .inception import inception_small as inception_small
from .mlp import mlp as mlp
from .mobilenet import mobilenet_small as mobilenet_small
from .resnet import resnet18 as resnet18
from .resnet import resnet34 as resnet34
from .resnet import resnet50 as resnet50
from .resnet import resnet101 as resnet101
from .resnet import resnet152 as resnet152
from .unet import unet_small as unet_small
from .vgg import vgg11 as vgg11
from .vgg import vgg13 as vgg13
from .vgg import vgg16 as vgg16
from .vgg import vgg19 as vgg19
from .vgg import vgg_small as vgg_small
from .vit import vit_s16 as vit_s16
from .vit import vit_tiny_test as vit_tiny_test

__all__ = [
    "EXAMPLE_SHAPES",
    "MODELS",
    "cnn1d",
    "densenet_small",
    "digits_cnn",
    "example_input",
    "gcn",
    "inception_small",
    "mlp",
    "mobilenet_small",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet44",
    "resnet50",
    "resnet56",
    "resnet101",
    "resnet152",
    "unet_small",
    "vgg11",
    "vgg13",
    "vgg16",
    "vgg19",
    "vgg_small",
    "vit_s16",
    "vit_tiny_test",
]


_DIGIT = (1, 8, 8)
_SMALL_IMAGE = (3, 32, 32)
_LARGE_IMAGE = (3, 224, 224)
_SIGNAL = (1, 64)
_NODE_FEATURES = (12, 8)

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "digits_cnn": digits_cnn,
    "vgg_small": vgg_small,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet44": resnet44,
    "resnet56": resnet56,
    "densenet_small": densenet_small,
    "unet_small": unet_small,
    "inception_small": inception_small,
    "mobilenet_small": mobilenet_small,
    "vit_tiny_test": vit_tiny_test,
    "cnn1d": cnn1d,
    "gcn": gcn,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "resnet152": resnet152,
    "vgg11": vgg11,
    "vgg13": vgg13,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "vit_s16": vit_s16,
}

# The shape of one example, without the batch, for each factory called without arguments.
EXAMPLE_SHAPES: dict[str, tuple[int, ...]] = {
    "mlp": _DIGIT,
    "digits_cnn": _DIGIT,
    "vgg_small": _SMALL_IMAGE,
    "resnet20": _SMALL_IMAGE,
    "resnet32": _SMALL_IMAGE,
    "resnet44": _SMALL_IMAGE,
    "resnet56": _SMALL_IMAGE,
    "densenet_small": _SMALL_IMAGE,
    "unet_small": _SMALL_IMAGE,
    "inception_small": _SMALL_IMAGE,
    "mobilenet_small": _SMALL_IMAGE,
    "vit_tiny_test": _SMALL_IMAGE,
    "cnn1d": _SIGNAL,
    "gcn": _NODE_FEATURES,
    "resnet18": _LARGE_IMAGE,
    "resnet34": _LARGE_IMAGE,
    "resnet50": _LARGE_IMAGE,
    "resnet101": _LARGE_IMAGE,
    "resnet152": _LARGE_IMAGE,
    "vgg11": _LARGE_IMAGE,
    "vgg13": _LARGE_IMAGE,
    "vgg16": _LARGE_IMAGE,
    "vgg19": _LARGE_IMAGE,
    "vit_s16": _LARGE_IMAGE,
}


def example_input(name: str, batch: int = 2, seed: int = 0) -> Tensor:
    """Draw a standard normal batch that the registered model `name` accepts, without using the global generator.

    Example:
        >>> example_input("cnn1d", batch=4).shape
        torch.Size([4, 1, 64])
    """
    if name not in EXAMPLE_SHAPES:
        raise ValueError(f"no model is registered as {name!r}; the names are {', '.join(MODELS)}")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, *EXAMPLE_SHAPES[name], generator=generator)
