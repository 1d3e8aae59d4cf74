"""Max-pooling in our kernel gives the bits of PyTorch's."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from tamis.binary import BinaryConv2d, compile
from tamis.binary.pooling import FastMaxPool2d, find_pools
from tamis.kernels import dispatch


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d((1, 3), (2, 1), (0, 1), dilation=(1, 2)),
        nn.MaxPool2d((4, 2), (1, 3), (2, 1), dilation=(2, 3)),
        nn.MaxPool2d(3, 2, ceil_mode=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("native", [True, False])
def test_it_is_the_pooling(pool: nn.MaxPool2d, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setitem(sys.modules, "tamis._native", None)
    x = torch.randn(2, 5, 9, 11)
    x[0, 0, 0, 0] = torch.nan
    x[1, 1] = -torch.inf
    for given in (x, x[:0], x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3), x[0]):
        found = FastMaxPool2d(pool)(given)
        assert torch.equal(found.nan_to_num(7), pool(given).nan_to_num(7))
        assert torch.equal(found.isnan(), pool(given).isnan())


def test_a_compiled_network_has_it_in_the_place_of_its_own() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), BinaryConv2d(8, 8, 3), nn.MaxPool2d(2)).eval()
    compiled = compile(model)
    assert [type(layer) for layer in (model[1], compiled[1], compiled[3])] == [nn.MaxPool2d, *[FastMaxPool2d] * 2]
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_pooling_with_a_hook_stays(register: str) -> None:
    model = nn.Sequential(BinaryConv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2)).eval()
    getattr(model[2], register)(lambda _module, _given, *result: result[0] * 2 if result else _given[0] * 2)
    compiled, x = compile(model), torch.randn(2, 3, 9, 9)
    assert type(compiled[2]) is nn.MaxPool2d
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))


def test_a_relu_leaves_a_window_of_padding_alone_below_everything() -> None:
    pool, x = nn.MaxPool2d(2, 1, 1, dilation=2), torch.randn(2, 3, 9, 1)  # columns −1 and 1 of one that has only 0
    assert torch.equal(FastMaxPool2d(pool, relu=True)(x), torch.full((2, 3, 9, 1), -torch.inf))
    assert torch.equal(FastMaxPool2d(pool, relu=True)(x.mT.expand(2, 3, 7, 9)), pool(x.mT.expand(2, 3, 7, 9).relu()))


@pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())
@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d((2, 3), (1, 3), (1, 0)), nn.MaxPool2d(2)], ids=str
)
def test_a_norm_and_a_relu_before_it_are_part_of_it(pool: nn.MaxPool2d) -> None:
    torch.manual_seed(0)
    for between in ([nn.BatchNorm2d(8), nn.ReLU()], [nn.ReLU()], [nn.BatchNorm2d(8)]):
        model = nn.Sequential(nn.Tanh(), *between, pool, BinaryConv2d(8, 4, 1), nn.Tanh()).eval()
        with torch.no_grad():
            for value in model.state_dict().values():
                value.copy_(
                    torch.randn(value.shape).abs() if value.ndim and value.min() == 1 else torch.randn(value.shape)
                )
            if isinstance(between[0], nn.BatchNorm2d):
                between[0].weight.copy_(torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0]))
                between[0].running_var.copy_(torch.rand(8) + 0.1)
        compiled = compile(model)
        fast = compiled[1 + len(between)]
        assert all(type(module) is nn.Identity for module in compiled[1 : 1 + len(between)])
        x = torch.randn(3, 8, 37, 35)
        x[0, :, 3, 3], x[1, :, 5, 5], x[2, :, 7] = torch.nan, torch.inf, -torch.inf
        pooled = nn.Sequential(*between, pool)
        with torch.no_grad():
            assert torch.equal(compiled(x.nan_to_num()), model(x.nan_to_num()))
            orders = (x, x.contiguous(memory_format=torch.channels_last), x.mT, x[..., ::2], x[:, :, :3, :3])
            for given in orders:
                assert torch.equal(fast(given).nan_to_num(7), pooled(given).nan_to_num(7))
                assert torch.equal(fast(given).isnan(), pooled(given).isnan())
        given = x.nan_to_num().requires_grad_()
        fast(given).sum().backward()
        assert given.grad is not None


def test_what_something_else_reads_stays_before_it() -> None:
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.relu, self.pool, self.last = (
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.MaxPool2d(2),
                BinaryConv2d(4, 4, 1),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.relu(self.norm(x))
            return self.last(self.pool(y)).mean() + y.mean()

    model, x = Reading().eval(), torch.randn(2, 4, 6, 6)
    compiled = compile(model)
    with torch.no_grad():
        assert torch.equal(compiled(x), model(x))
    assert type(compiled.relu) is nn.ReLU and type(compiled.pool) is FastMaxPool2d


def test_gradients_and_errors_are_those_of_pytorch() -> None:
    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    FastMaxPool2d(nn.MaxPool2d(2))(x).sum().backward()
    assert x.grad is not None and x.grad.sum() == 18
    with pytest.raises(RuntimeError, match="Output size is too small"):
        FastMaxPool2d(nn.MaxPool2d(9))(torch.randn(1, 2, 6, 6))


@pytest.mark.skipif(dispatch.native() is None, reason=dispatch.explain_native())
def test_the_kernel_refuses_sizes_that_do_not_agree() -> None:
    native = dispatch.native()
    assert native is not None
    planes, two = np.zeros((1, 6, 6), np.float32), (2, 2)
    for out, padding in (((1, 3, 4), (0, 0)), ((2, 3, 3), (0, 0)), ((1, 3, 3), (1, 1)), ((1, 3, 3), (1 << 40, 0))):
        with pytest.raises(ValueError, match="do not agree"):
            native.max_pool(planes, two, two, padding, (1, 1), np.zeros(out, np.float32), 1)
    out, ones = np.zeros((1, 3, 3), np.float32), np.ones(1, np.float32)
    for line in ((ones, None), (None, ones), (np.ones(2, np.float32), np.ones(2, np.float32)), (ones[:0], ones[:0])):
        with pytest.raises(ValueError, match="do not agree"):
            native.max_pool(planes, two, two, (0, 0), (1, 1), out, 1, *line)


def test_indices_are_not_pooled_otherwise() -> None:
    assert not find_pools(nn.Sequential(nn.MaxPool2d(2, return_indices=True), nn.MaxPool1d(2)))
