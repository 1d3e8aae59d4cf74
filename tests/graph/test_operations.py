"""Operations and what they cost."""

import pytest
import torch
from zoo import traced_from_the_zoo

import tamis
from tamis.graph.operations import operations_of
from tamis.graph.ops.linear import Linear
from tamis.training.models import MODELS, example_input


# Convolutions and linear layers as the literature counts them, and one for each number that a batch-norm scales.
@pytest.mark.parametrize(
    ("name", "layers", "batch_norms"),
    [
        ("resnet20", 40_551_040, 188_416),
        pytest.param("resnet18", 1_814_073_344, 2_483_712, marks=pytest.mark.slow),
        pytest.param("resnet50", 4_089_184_256, 11_113_984, marks=pytest.mark.slow),
    ],
)
def test_multiply_accumulates(name, layers, batch_norms):
    _, _, net = traced_from_the_zoo(name)
    operations = operations_of(net)
    normalizing = sum(row.macs for row in operations if row.op == "aten.batch_norm.default")
    assert (sum(row.macs for row in operations) - normalizing, normalizing) == (layers, batch_norms)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_costs_do_not_depend_on_the_precision(dtype):
    example = example_input("gcn", batch=1)
    _, _, plain = traced_from_the_zoo("gcn")
    other = tamis.trace(MODELS["gcn"]().to(dtype), example.to(dtype))
    assert [row.macs for row in operations_of(other)] == [row.macs for row in operations_of(plain)]


def test_costs_that_depend_on_numbers_are_not_known(monkeypatch):
    """torch has shapes alone when costs are counted, and refuses to say how many of a tensor's entries are not zero."""
    net = tamis.trace(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()), torch.zeros(1, 3))
    assert [row.macs for row in operations_of(net)] == [6, 0]
    monkeypatch.setattr(Linear, "macs", lambda _, call: len(call["weight"].nonzero()))
    assert [row.macs for row in operations_of(net)] == [None, 0]
