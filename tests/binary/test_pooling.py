"""Max-pooling in another memory format gives the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tamis.binary import BinaryConv2d, compile
from tamis.binary.pooling import FastMaxPool2d, fast_pools


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d((1, 3), (2, 1), (0, 1), dilation=(1, 2), ceil_mode=True),
    ],
    ids=str,
)
def test_it_is_the_pooling(pool: nn.MaxPool2d) -> None:
    x = torch.randn(2, 5, 9, 11)
    x[0, 0, 0, 0] = torch.nan
    x[1, 1] = -torch.inf
    for given in (x, x[:0], x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3), x[0]):
        found = FastMaxPool2d(pool)(given)
        assert found.is_contiguous()
        assert torch.equal(found.nan_to_num(7), pool(given).nan_to_num(7))


def test_a_compiled_network_has_it_in_the_place_of_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), BinaryConv2d(8, 8, 3), nn.MaxPool2d(2)).eval()
    compiled = compile(model)
    assert [type(layer) for layer in (model[1], compiled[1], compiled[3])] == [nn.MaxPool2d, *[FastMaxPool2d] * 2]
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))


def test_indices_are_not_pooled_otherwise() -> None:
    assert not fast_pools(nn.Sequential(nn.MaxPool2d(2, return_indices=True), nn.MaxPool1d(2)))
