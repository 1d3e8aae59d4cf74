"""Tracing: equal outputs, the user's own names, the model untouched, and clear errors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm
from torch.utils import _pytree as pytree
from zoo import assert_unchanged, snapshot, traced_from_the_zoo

import tamis
from tamis.errors import AssumptionViolated, InvalidInput, InvalidParameters, TraceError, UnsupportedOp
from tamis.graph import graph_lines
from tamis.graph.ops import Capability, capability
from tamis.graph.trace import network_from_program, trace_with_batch
from tamis.training.models import MODELS, example_input

HUGE = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg11", "vgg13", "vgg16", "vgg19", "vit_s16")
DEEPER = ("resnet32", "resnet44", "resnet56")  # the same blocks as resnet20, more of them
# What these are made of is traced in the others, and by the contract of operations.
WIDER = ("digits_cnn", "vgg_small", "densenet_small", "inception_small", "mobilenet_small", "unet_small")
SMALL = [
    pytest.param(name, marks=pytest.mark.slow if name in (*DEEPER, *WIDER) else ())
    for name in MODELS
    if name not in HUGE
]


@pytest.mark.parametrize("name", SMALL)
def test_zoo_models_give_equal_outputs_and_are_left_untouched(name: str) -> None:
    model, before, net = traced_from_the_zoo(name)
    assert_unchanged(model, before)
    assert net.batched
    for batch in (1, 3):
        x = example_input(name, batch, seed=batch)
        assert torch.equal(net(x), model.eval()(x))
    assert list(net.state_dict()) == [*net.params]
    assert set(net.params) == set(model.state_dict())
    assert net.trainable == {n for n, _ in model.named_parameters()}


def test_capabilities() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.ReLU6(), nn.GELU(), nn.Softmax(-1))
    net = tamis.trace(model, torch.zeros(1, 2))
    assert [capability(net, node).name for node in net.data_nodes] == [
        "HOMOGENEOUS",
        "LIPSCHITZ",
        "HOMOGENEOUS",
        "LIPSCHITZ",
        "OPAQUE",
        "OPAQUE",
    ]


def test_vit_traces_and_path_norm_refuses_it_by_name() -> None:
    _, _, net = traced_from_the_zoo("vit_tiny_test")
    assert min(capability(net, node) for node in net.data_nodes) is Capability.OPAQUE
    with pytest.raises(UnsupportedOp, match=r"path_norm needs a homogeneous network: 'aten\.layer_norm' at blocks"):
        tamis.path_norm(net)


def test_several_inputs_and_structured_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            z = self.a(x) + self.b(y)
            return {"sum": z, "parts": (F.relu(z), z[:, :1])}

    model = Two().eval()
    x, y = torch.randn(5, 2), torch.randn(5, 4)
    net = tamis.trace(model, (x, y))
    ours, theirs = net(x, y), model(x, y)
    assert torch.equal(ours["sum"], theirs["sum"])
    assert all(torch.equal(a, b) for a, b in zip(ours["parts"], theirs["parts"], strict=True))
    norms = tamis.path_norms(net).values  # three outputs side by side: 3 + 3 + 1 neurons
    assert len(norms) == 7
    torch.testing.assert_close(norms[:3], norms[3:6])


def test_parameters_are_copies_and_the_network_is_immutable() -> None:
    model = nn.Linear(2, 2)
    net = tamis.trace(model, torch.zeros(1, 2))
    before = net(torch.ones(1, 2))
    with torch.no_grad():
        model.weight.add_(1)
    assert torch.equal(net(torch.ones(1, 2)), before)
    net.state_dict()["weight"].zero_()
    assert torch.equal(net(torch.ones(1, 2)), before)
    with pytest.raises(AttributeError, match="immutable"):
        net.nodes = ()
    with pytest.raises(TypeError):
        net.params["weight"] = torch.zeros(2, 2)  # type: ignore[index]


def test_with_params_checks_names_and_shapes() -> None:
    net = tamis.trace(nn.Linear(2, 3), torch.zeros(1, 2))
    zero = net.with_params({"weight": torch.zeros(3, 2), "bias": torch.zeros(3)})
    assert zero(torch.ones(1, 2)).abs().max() == 0
    assert net(torch.ones(1, 2)).abs().max() > 0
    with pytest.raises(InvalidParameters, match=r"no parameter 'wieght'; it has weight, bias"):
        net.with_params({"wieght": torch.zeros(3, 2)})
    with pytest.raises(InvalidParameters, match=r"'weight' has shape \(3, 2\), got \(2, 3\)"):
        net.with_params({"weight": torch.zeros(2, 3)})


def test_user_parameters_named_like_operations_or_inputs() -> None:
    class Awkward(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu, self.x, self.mul = (nn.Parameter(torch.randn(3)) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x * self.mul + self.x) * self.relu

    model = Awkward()
    net = tamis.trace(model, torch.randn(2, 3))
    x = torch.randn(4, 3)
    assert torch.equal(net(x), model(x))
    assert tamis.path_norm(net) == pytest.approx(tamis.lifting(net).norm(1, 1))


def test_pruning_hooks_are_seen_through() -> None:
    model = nn.Sequential(OrderedDict(first=nn.Linear(4, 5), act=nn.ReLU(), last=nn.Linear(5, 2))).double()
    prune.random_unstructured(model.first, "weight", amount=0.5)
    before = snapshot(model)
    net = tamis.trace(model, torch.zeros(1, 4, dtype=torch.float64))
    assert_unchanged(model, before)
    assert {"first.weight_orig", "first.weight_mask"} <= set(net.params)
    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(net(x), model(x))
    plain = nn.Sequential(OrderedDict(first=nn.Linear(4, 5), act=nn.ReLU(), last=nn.Linear(5, 2))).double()
    plain.load_state_dict(
        {**model.last.state_dict(prefix="last."), "first.weight": model.first.weight, "first.bias": model.first.bias}
    )
    without = tamis.trace(plain, x)
    assert tamis.path_norm(net) == pytest.approx(tamis.path_norm(without), rel=1e-12)
    costs = tamis.path_costs(net).values["first.weight_orig"]
    torch.testing.assert_close(costs, tamis.path_costs(without).values["first.weight"])
    rescaled = tamis.rescale(net, seed=3)
    assert not torch.equal(rescaled.params["first.weight_orig"], net.params["first.weight_orig"])
    assert torch.equal(rescaled(x), net(x))


def test_tied_weights_are_one_parameter() -> None:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.decoder.weight = self.encoder.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(torch.relu(self.encoder(x)))

    model = Autoencoder()
    net = tamis.trace(model, torch.zeros(1, 3))
    assert list(net.params) == ["encoder.weight"]
    assert dict(net.aliases) == {"decoder.weight": "encoder.weight"}
    assert set(net.state_dict()) == {"encoder.weight", "decoder.weight"}
    x = torch.randn(2, 3)
    both = net.with_params({"decoder.weight": torch.eye(3)})
    assert torch.equal(both(x), torch.relu(x))
    assert torch.equal(net(x), model(x))
    with pytest.raises(AssumptionViolated, match=r"'encoder\.weight' is used again by 'aten\.linear' at decoder"):
        tamis.path_costs(net)
    assert torch.equal(tamis.rescale(net)(x), net(x))


def test_constants_that_are_one_tensor_are_copied_once() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.arange(3.0), persistent=False)
            self.register_buffer("other", self.one[:], persistent=False)
            self.register_buffer("bits", self.one.view(torch.int32), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.one + self.other + self.bits

    model = Shared()
    net = tamis.trace(model, torch.ones(2, 3))
    assert net.constants["one"] is net.constants["other"] is not model.one
    assert net.constants["bits"].dtype == torch.int32
    assert torch.equal(net(torch.ones(2, 3)), model(torch.ones(2, 3)))


def test_a_parametrization_that_mixes_entries_is_refused_for_costs_only() -> None:
    model = weight_norm(nn.Linear(3, 2))
    net = tamis.trace(model, torch.zeros(1, 3))
    x = torch.randn(4, 3)
    torch.testing.assert_close(net(x), model(x))
    assert tamis.path_norm(net) == pytest.approx(
        float((model.weight.abs().sum() + model.bias.abs().sum()).detach()), rel=1e-6
    )
    with pytest.raises(AssumptionViolated, match=r"cannot attribute costs to 'parametrizations\.weight"):
        tamis.path_costs(net)


def test_a_fixed_graph_is_one_sample() -> None:
    """Where the first dimension is tied to the model, the whole input is one sample."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.rand(4, 4))
            self.lin = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.adjacency @ self.lin(x))

    model = Graph().double()
    x = torch.randn(4, 3, dtype=torch.float64)
    net = tamis.trace(model, x)
    assert not net.batched
    assert torch.equal(net(x), model(x))
    assert tamis.path_norm(net) == pytest.approx(tamis.lifting(net).norm(1, 1), rel=1e-12)
    with pytest.raises(InvalidInput, match=r"must have shape \(4, 3\), got \(5, 3\)"):
        net(torch.zeros(5, 3))


def test_mixing_over_the_batch_makes_the_batch_a_sample() -> None:
    class Summary(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(0)

    assert not tamis.trace(Summary(), torch.zeros(3, 2)).batched


def test_exported_programs_load(tmp_path: Any) -> None:
    model, x = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU()).eval(), torch.randn(2, 2, 5)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.export.save(program, tmp_path / "model.pt2")
    net = network_from_program(torch.export.load(tmp_path / "model.pt2"))
    assert net.batched
    assert torch.equal(net(x), model(x))


# -- bad input ---------------------------------------------------------------------------------------------------------


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x) if x.sum() > 0 else -x


def test_not_a_module() -> None:
    with pytest.raises(InvalidInput, match=r"trace needs a torch\.nn\.Module, got function"):
        tamis.trace(lambda x: x, torch.zeros(1))  # type: ignore[arg-type]


def test_an_example_that_is_not_a_tensor() -> None:
    with pytest.raises(InvalidInput, match="must be a tensor or a tuple of tensors, got list"):
        tamis.trace(nn.Linear(2, 2), [1.0, 2.0])  # type: ignore[arg-type]


def test_an_empty_example() -> None:
    with pytest.raises(InvalidInput, match=r"the example is empty: it has shape \(0, 2\)"):
        tamis.trace(nn.Linear(2, 2), torch.zeros(0, 2))


def test_a_network_without_outputs() -> None:
    class Nothing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :0]

    with pytest.raises(TraceError, match=r"an output without entries: '\w+' has shape \(1, 0\)"):
        tamis.trace(Nothing(3, 2), torch.zeros(1, 3))


def test_wrong_example_shape_leaves_the_model_unchanged() -> None:
    model = MODELS["resnet20"]().train()
    before = snapshot(model)
    with pytest.raises(TraceError, match=r"cannot trace CifarResNet with an example of shape \(1, 4, 32, 32\)"):
        tamis.trace(model, torch.zeros(1, 4, 32, 32))
    assert_unchanged(model, before)


def test_a_data_dependent_branch(capfd: pytest.CaptureFixture[str]) -> None:
    model = Branching().train()
    before = snapshot(model)
    with pytest.raises(TraceError, match="control flow depends on the values of its input"):
        tamis.trace(model, torch.zeros(2, 2))
    assert_unchanged(model, before)
    assert capfd.readouterr() == ("", "")


def test_random_operations_take_any_batch() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x + torch.randn_like(x), 0.5, training=True)

    before = torch.get_rng_state()
    net = tamis.trace(Noisy(), torch.ones(2, 3))
    assert torch.equal(torch.get_rng_state(), before)
    assert net.batched and net(torch.ones(5, 3)).shape == (5, 3)


@pytest.mark.parametrize("layer", [nn.Linear(4, 2), nn.Conv1d(4, 2, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_another_dtype_is_named(layer: nn.Module, dtype: torch.dtype) -> None:
    x = torch.ones(1, 4) if isinstance(layer, nn.Linear) else torch.ones(1, 4, 3)
    with pytest.raises(TraceError, match=f"the example is {dtype}; check that the model takes that"):
        tamis.trace(layer, x.to(dtype))
    with pytest.raises(InvalidInput, match=f"is {dtype}, and the model was traced with torch.float32: convert it"):
        tamis.trace(layer, x)(x.to(dtype))


def test_an_empty_network() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.value * 2

    with pytest.raises(TraceError, match="no output depends on an input"):
        tamis.trace(Constant(), torch.zeros(1, 2))


def test_the_identity_is_a_network() -> None:
    net = tamis.trace(nn.Identity(), torch.zeros(1, 3))
    assert tamis.path_norm(net) == 3
    assert tamis.path_costs(net).values == {}


@cache
def linear() -> tamis.Network:
    return tamis.trace(nn.Linear(2, 2), torch.zeros(1, 2))


@pytest.mark.parametrize("call", [tamis.path_norm, tamis.path_costs, tamis.normalize, tamis.lifting])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(call: Any, value: float) -> None:
    net = linear()
    weight = net.params["weight"].clone()
    weight[1, 0] = value
    net = net.with_params({"weight": weight})
    with pytest.raises(InvalidParameters, match=r"'weight' of shape \(2, 2\) has 1 entries .* first at \(1, 0\)"):
        call(net)


def test_wrong_input_shape_or_number() -> None:
    net = linear()
    with pytest.raises(InvalidInput, match=r"must have shape \(batch, 2\), got \(1, 3\)"):
        net(torch.zeros(1, 3))
    with pytest.raises(InvalidInput, match=r"takes 1 input\(s\) \['input'\], got 2"):
        net(torch.zeros(1, 2), torch.zeros(1, 2))


@pytest.mark.parametrize(("q", "r"), [(0, 1), (-1, 1), (float("inf"), 1), (float("nan"), 1), (1, 0), (1, -2)])
def test_exponents_out_of_range(q: float, r: float) -> None:
    with pytest.raises(InvalidInput, match=r"must be in \(0, ∞"):
        tamis.path_norm(linear(), q, r)


def test_a_model_instead_of_a_network() -> None:
    for call in (tamis.path_norm, tamis.path_costs):
        with pytest.raises(InvalidInput, match="needs a Network, got Linear: trace the model first"):
            call(nn.Linear(2, 2))  # type: ignore[operator]


def test_samples_whose_outputs_overflow_are_not_taken_for_mixed_ones():
    """Products of three rows and of four add up in another order: NaN comes out of one, and inf of the other."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 1.0], [-2.8e44, -1e82]]))
        model[0].bias.zero_()
        model[1].weight.copy_(torch.tensor([[-4e102, 9e151]]))
    assert tamis.trace(model, torch.tensor([[-9.7e269, 6.5e291]], dtype=torch.float64)).batched
    weights = torch.tensor([[-6.7e-322, -1.3e-311, -2.1e-320], [0.0, -2.8e44, -1e82]], dtype=torch.float64)
    model = nn.Linear(3, 2).double()
    with torch.no_grad():
        model.weight.copy_(weights)
        model.bias.copy_(torch.tensor([-3.2e63, 0.0]))
    assert tamis.trace(model, torch.tensor([[-1.3e-142, -9.7e269, 6.5e291]], dtype=torch.float64)).batched


class Computed(nn.Module):
    """A function of an input of shape (batch, 4, 6), and of a layer that takes 24 features."""

    def __init__(self, function: Callable[[Tensor, nn.Module], Any]) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.layer)


# Each as one expression, and whether torch's pass is needed for it.
WRITTEN = {
    "flatten": (lambda x, layer: layer(x.flatten(1)), False),
    "flatten and unflatten": (lambda x, layer: layer(x.flatten(1)).unflatten(1, (-1, 8)).flatten(2), False),
    "flatten what is flat": (lambda x, layer: layer(x.flatten(1).flatten(1)), False),
    "flatten out of order": (lambda x, layer: layer(x.transpose(1, 2).flatten(1)), False),
    "flatten the batch": (lambda x, layer: layer(x.flatten(1)) + x.flatten(0, 1).sum(), True),
    "view": (lambda x, layer: layer(x.view(x.size(0), -1)), False),
    "reshape": (lambda x, layer: layer(x.reshape(x.shape[0], 24)) + layer(x.reshape(-1, 24)), False),
    "reshape out of order": (lambda x, layer: layer(x.transpose(1, 2).reshape(x.shape[0], -1)), True),
    "arithmetic of sizes": (lambda x, layer: layer(x.reshape(x.shape[0] * 2, 12).reshape(-1, 24)), True),
    "size of the batch": (lambda x, layer: torch.cat([layer.bias.expand(x.shape[0], 24), x.flatten(1)], 1), False),
    "dropout": (lambda x, layer: layer(nn.functional.dropout1d(x, training=False).flatten(1)), False),
    "dropout that drops": (lambda x, layer: layer(nn.functional.dropout(x.flatten(1))), True),
    "batch-norm": (lambda x, layer: nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4)), False),
    "in place": (lambda x, layer: layer(x.flatten(1)).relu_(), True),
    "two outputs": (lambda x, layer: (layer(x.flatten(1)), x.flatten(1), x.softmax(1)), False),
}
PASSED_OVER = [name for name, (_, needed) in WRITTEN.items() if not needed]
IN_DETAIL = ["flatten and unflatten", "reshape"]  # the pass takes long, so that the others are slow tests


@pytest.mark.parametrize("name", [n if n in IN_DETAIL else pytest.param(n, marks=pytest.mark.slow) for n in WRITTEN])
@pytest.mark.parametrize("batched", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_graph_is_that_of_torchs_functional_pass(name: str, batched: bool) -> None:
    """Stored files are recognised by their graph, so leaving the pass out may not change a line of it."""
    model, x = Computed(WRITTEN[name][0]).eval(), torch.randn(2, 4, 6)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim.AUTO},) if batched else None)
    assert graph_lines(trace_with_batch(model, x, batched)) == graph_lines(network_from_program(program))


@pytest.mark.parametrize("name", PASSED_OVER)
def test_the_pass_is_left_out_where_its_outcome_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass takes twice as long as exporting does."""
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", None)
    model, x = Computed(WRITTEN[name][0]).eval(), torch.randn(3, 4, 6)
    net = tamis.trace(model, x)
    for found, expected in zip(pytree.tree_leaves(net(x)), pytree.tree_leaves(model(x)), strict=True):
        assert torch.equal(found, expected)
    assert net.batched


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(name for name in MODELS if name not in HUGE), "resnet18", "vgg11"])
def test_graphs_of_the_zoo_are_those_of_torchs_functional_pass(name: str) -> None:
    model, _, net = traced_from_the_zoo(name)
    with torch.no_grad():
        program = torch.export.export(model.eval(), (example_input(name, 2),), dynamic_shapes=({0: Dim.AUTO},))
    assert graph_lines(net) == graph_lines(network_from_program(program))
