"""Two networks are one graph with two sets of parameters, or the message names the first difference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.errors import InvalidInput
from tamis.graph import check_same_graph, compare_outputs


class Scaled(nn.Module):
    """A layer times a constant that is not in its state_dict."""

    def __init__(self, scale: float, inputs: int = 3) -> None:
        super().__init__()
        self.fc, self.scale = nn.Linear(inputs, 2), torch.tensor([scale, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.scale


def traced(scale: float = 2.0, inputs: int = 3) -> tamis.Network:
    return tamis.trace(Scaled(scale, inputs), torch.zeros(1, inputs))


def test_other_parameters_are_the_same_graph() -> None:
    check_same_graph(traced(), traced(), "a test")
    check_same_graph(traced(), traced(), "a test", interchangeable=True)


def test_the_first_difference_is_named() -> None:
    with pytest.raises(
        InvalidInput, match=r"a test needs .* 'input x \(1, 3\)' where the second has 'input x \(1, 4\)'"
    ):
        check_same_graph(traced(), traced(inputs=4), "a test")
    plain = tamis.trace(nn.Sequential(nn.Linear(3, 2)), torch.zeros(1, 3))
    deeper = tamis.trace(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), torch.zeros(1, 3))
    with pytest.raises(InvalidInput, match=r"has 'outputs .*' where the second has 'relu = aten\.relu\.default"):
        check_same_graph(plain, deeper, "a test")
    with pytest.raises(InvalidInput, match="a test needs two Networks, the second is Linear"):
        check_same_graph(plain, nn.Linear(3, 2), "a test")  # type: ignore[arg-type]


def test_constants_dtypes_and_devices_count_where_parameters_are_exchanged() -> None:
    check_same_graph(traced(2.0), traced(3.0), "a test")
    with pytest.raises(InvalidInput, match=r"'constant torch\.float32 \(2,\) .* must be made from the first"):
        check_same_graph(traced(2.0), traced(3.0), "a test", interchangeable=True)
    plain = tamis.trace(nn.Linear(3, 2), torch.zeros(1, 3))
    wide = plain.to(torch.float64)
    with pytest.raises(InvalidInput, match=r"'weight' has the dtype torch\.float32 in the first and torch\.float64"):
        check_same_graph(plain, wide, "a test", interchangeable=True)
    with pytest.raises(InvalidInput, match="'weight' has the device cpu in the first and meta in the second"):
        check_same_graph(plain, plain.to("meta"), "a test", interchangeable=True)


def test_names_of_nodes_count_where_both_are_walked() -> None:
    class Named(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return torch.relu(value)

    mine = tamis.trace(nn.Sequential(nn.ReLU()), torch.zeros(1, 3))
    theirs = tamis.trace(Named(), torch.zeros(1, 3))
    check_same_graph(mine, theirs, "a test", interchangeable=True)
    with pytest.raises(InvalidInput, match="where the second has 'input value"):
        check_same_graph(mine, theirs, "a test")


def test_the_device_is_that_of_the_tensors() -> None:
    net = traced()
    assert net.device == torch.device("cpu")
    assert net.to("meta").device == torch.device("meta")
    only_a_constant = net.replace(params={}, constants={"scale": torch.empty(2, device="meta")})
    assert only_a_constant.device == torch.device("meta")
    assert net.replace(params={}, constants={}).device == torch.device("cpu")


def test_flat_outputs_have_a_row_for_each_sample() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return x.reshape(-1, 2, 2), {"twice": 2 * x}

    x = torch.arange(12.0).reshape(3, 4)
    flat = tamis.trace(Two(), x[:1]).flat_outputs(x)
    assert flat.dtype is torch.float64
    assert torch.equal(flat, torch.cat([x, 2 * x], 1).double())
    whole = tamis.trace(nn.Softmax(dim=0), x)  # mixes samples: the batch is one sample
    assert not whole.batched
    assert torch.equal(whole.flat_outputs(x), torch.softmax(x, 0).reshape(1, -1).double())


def test_outputs_are_compared_over_all_batches() -> None:
    net = tamis.trace(nn.Linear(2, 2, bias=False), torch.zeros(1, 2))
    net = net.with_params({"weight": torch.eye(2)})
    swapped = net.with_params({"weight": torch.eye(2).flip(0)})
    batches = [(torch.tensor([[1.0, 0.0], [2.0, 2.0]]),), (torch.tensor([[0.0, 3.0]]),)]
    found = compare_outputs(net, swapped, batches)
    assert (found.squared_change, found.squared_size, found.different, found.samples) == (20.0, 18.0, 2, 3)
