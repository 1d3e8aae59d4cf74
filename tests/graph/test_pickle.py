"""Networks, and what was made of them, go to other processes and come back the same."""

import copy
import math
import multiprocessing
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from random_dags import dags
from torch import nn

import tamis
from tamis.artifact import fingerprint, fingerprint_of_values
from tamis.errors import InvalidInput
from tamis.graph.network import Network


def again(value):
    return pickle.loads(pickle.dumps(value))


class Outputs(nn.Module):
    """Several outputs in containers, tied parameters, a constant, buffers, and an operation of a higher order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.offset = torch.ones(4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
        h = self.norm(self.second(self.first(x).relu())) + self.offset
        with torch.set_grad_enabled(False):
            most = h.max(1)
        return {"pair": (h, most.values), "flat": [torch.cat([h, y], 1).reshape(h.shape[0], -1)], "scaled": math.pi * y}


def check_same(one: Network, other: Network, inputs: tuple[torch.Tensor, ...]) -> None:
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint_of_values(one.params) == fingerprint_of_values(other.params)
    for name in ("inputs", "input_shapes", "input_dtypes", "batched", "trainable", "aliases", "output_structure"):
        assert getattr(one, name) == getattr(other, name), name
    assert [(n.name, n.op, n.args, n.module, n.shape) for n in one.nodes] == [
        (n.name, n.op, n.args, n.module, n.shape) for n in other.nodes
    ]
    left, right = (torch.utils._pytree.tree_flatten(net(*inputs)) for net in (one, other))
    assert left[1] == right[1]
    assert all(torch.equal(a, b) for a, b in zip(left[0], right[0], strict=True))


def test_a_network_with_everything_that_there_is():
    torch.manual_seed(0)
    inputs = torch.randn(3, 4), torch.randn(3, 2)
    net = tamis.trace(Outputs().eval(), inputs)
    assert net.aliases and net.constants
    _ = net.carries_data, net.finished_after  # what was worked out is not sent along
    check_same(net, again(net), inputs)
    assert copy.deepcopy(net) is net
    check_same(net, copy.copy(net), inputs)
    with pytest.raises(AttributeError, match="immutable"):
        again(net).nodes = ()


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(dags())
def test_any_network(dag):
    x = dag.example()
    net = tamis.trace(dag, x)
    check_same(net, again(net), (x,))


def test_what_is_pickled_is_no_larger_than_the_network():
    net = tamis.trace(nn.Linear(100, 100), torch.zeros(1, 100))
    assert len(pickle.dumps(net)) < 4 * 100 * 101 + 10_000


def test_a_network_that_was_made_small(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    pruned = tamis.prune(model, 0.5, example=torch.zeros(1, 6))
    small = tamis.quantize(pruned, torch.randn(50, 6), levels=4, method="msq", c_alpha=2.0)
    back = again(small)
    check_same(small.network, back.network, (torch.randn(5, 6),))
    assert back.recipe == small.recipe and back.nbytes == small.nbytes and back.summary() == small.summary()
    assert small.seen, "what it was made with goes along, for nobody may certify it with that"
    for name, each in (("small", small), ("back", back)):
        each.save(tmp_path / name)
    assert (tmp_path / "small").read_bytes() == (tmp_path / "back").read_bytes()
    assert back.masks.keys() == small.masks.keys() and back.codes.keys() == small.codes.keys()
    assert all(torch.equal(mask, back.masks[name]) for name, mask in small.masks.items())
    assert all(torch.equal(code.indices, back.codes[name].indices) for name, code in small.codes.items())


def test_a_file_that_was_read_for_a_module_of_a_local_class(tmp_path):
    class Local(nn.Sequential):
        pass

    torch.manual_seed(0)
    model = Local(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    small = tamis.prune(model, 0.5, example=torch.zeros(1, 6))
    small.save(tmp_path / "small.tamis")
    loaded = tamis.load(tmp_path / "small.tamis", model)
    back = again(loaded)
    check_same(small.network, back.network, (torch.randn(5, 6),))
    back.save(tmp_path / "again.tamis")
    assert (tmp_path / "again.tamis").read_bytes() == (tmp_path / "small.tamis").read_bytes()


def test_an_operation_that_is_not_registered_is_named():
    net = tamis.trace(nn.ReLU(), torch.zeros(1, 2))
    sent = pickle.dumps(net).replace(b"aten.relu.default", b"aten.nope.default")
    with pytest.raises(InvalidInput, match=r"the operation 'aten\.nope\.default', which is not registered here"):
        pickle.loads(sent)


@pytest.mark.slow
def test_another_process():
    torch.manual_seed(0)
    net = tamis.trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.zeros(1, 3))
    small = tamis.prune(net, 0.5)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(tamis.path_norm, (net,)) == tamis.path_norm(net)
        check_same(small.network, pool.apply(copy.copy, (small,)).network, (torch.randn(2, 3),))
