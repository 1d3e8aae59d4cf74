"""--calibration and --data on the command line: datasets, which must fit the model before the long work begins."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tamis.errors import InvalidInput
from tamis.graph import Network
from tamis.training import Data, check_fits, evaluate, load_data


def check_calibration(data: Data, net: Network, model: str) -> None:
    """Raise InvalidInput unless `net` takes the inputs of a dataset; messages call the network `model`."""
    try:
        net.check_inputs((data.example,))
    except InvalidInput as error:
        wanted = ", ".join(net.shape_text(shape) for shape in net.input_shapes)
        got = f"those of '{data.name}' have shape {net.shape_text(tuple(data.example.shape))}"
        raise InvalidInput(f"{model} takes inputs of shape {wanted}; {got}: name other data, or --shape") from error


def load_test(spec: str | None, net: Network, model: str) -> Data | None:
    """Load the dataset to measure accuracies on, if one is named, and check that `net` has a score for each class."""
    if spec is None:
        return None
    data = load_data(spec)
    check_fits(_AsModule(net), data.to(net.device), called=model)
    return data


def accuracy(net: Network, data: Data) -> float:
    """Compute the top-1 accuracy, as a fraction."""
    return evaluate(_AsModule(net), data, device=net.device)


class _AsModule(nn.Module):
    """This module runs a network where a module is wanted."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)
