"""Full-size and pretrained networks, and networks so deep that nothing but a logarithm is left."""

from __future__ import annotations

import math
from copy import deepcopy
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from pretrained import pretrained
from torch import Tensor, nn
from zoo import traced_from_the_zoo, traced_pretrained

import tamis
from tamis.training.models import MODELS, example_input
from tamis.training.models.resnet import BasicBlock, ResNet


class OneOverMax(nn.Module):
    """A max-pooling layer replaced by the sum of each window, as Theorem 3.1.1 asks."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        p = self.pool
        return F.avg_pool2d(x, p.kernel_size, p.stride, p.padding, divisor_override=1)


def plain_path_norm(model: nn.Module, shape: tuple[int, ...]) -> float:
    """‖Φ‖₁ by editing the model itself: |θ|, batch-norm as |s| x + |t|, pooling as sums, one float64 forward pass."""
    model = model.double().eval()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.MaxPool2d):
                setattr(parent, name, OneOverMax(child))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                for value in module.parameters(recurse=False):
                    value.abs_()
            if isinstance(module, nn.BatchNorm2d):
                scale = module.weight / (module.running_var + module.eps).sqrt()
                shift = module.bias - scale * module.running_mean
                module.weight.copy_(scale.abs())
                module.bias.copy_(shift.abs())
                module.running_mean.zero_()
                module.running_var.fill_(1 - module.eps)
        return float(model(torch.ones(1, *shape, dtype=torch.float64)).sum())


def check_resnet(net: tamis.Network, model: nn.Module, head: str) -> None:
    folded, unfolded = tamis.path_norm(net), tamis.path_norm(net, fold=False)
    assert unfolded == pytest.approx(plain_path_norm(model, (3, 32, 32)), rel=1e-9)
    assert 0 < folded <= unfolded * (1 + 1e-12)
    costs = tamis.path_costs(net)
    for layer in ("conv1.weight", f"{head}.weight"):  # every path from an input meets each of these
        through = float(costs.values[layer].sum()) * math.exp(costs.log_scale)
        assert 0 < through <= folded * (1 + 1e-9)
    rescaled = tamis.rescale(net, seed=5)
    x = torch.randn(4, 3, 32, 32)
    assert torch.equal(rescaled(x), net(x))
    assert tamis.path_norm(rescaled) == pytest.approx(folded, rel=1e-9)


def test_a_short_resnet() -> None:
    """The stem, the pooling and the head of ResNet-18 around a block of each kind: a plain and a strided one."""
    torch.manual_seed(0)
    model = ResNet(BasicBlock, (1, 1, 1, 1), 10)
    model.layer3 = model.layer4 = nn.Identity()  # type: ignore[assignment]
    model.fc = nn.Linear(128, 10)
    model.eval()
    with torch.no_grad():
        for module in model.modules():  # statistics as of a trained network, so that folding does something
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
    net, x = tamis.trace(model, torch.zeros(1, 3, 32, 32)), torch.randn(2, 3, 32, 32)
    assert torch.equal(net(x), model(x))
    check_resnet(net, model, "fc")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "resnet32"])
def test_pretrained_resnets(name: str) -> None:
    check_resnet(traced_pretrained(name), pretrained(name), "linear")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet34"])
def test_imagenet_resnets_equal_a_plain_evaluation(name: str) -> None:
    model, _, net = traced_from_the_zoo(name)
    model, x = deepcopy(model).eval(), example_input(name, 1)
    assert torch.equal(net(x), model(x))
    value = tamis.path_norm(net, fold=False)
    assert value == pytest.approx(plain_path_norm(model, (3, 224, 224)), rel=1e-9)
    expected = {"resnet18": 30.8, "resnet34": 57.4}[name]  # log₁₀, default initialization: the order of magnitude
    assert math.log10(value) == pytest.approx(expected, abs=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "order"), [("resnet50", 73.6), ("resnet101", 150.7), ("resnet152", 226.0)])
def test_deep_imagenet_resnets_are_finite(name: str, order: float) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    net = tamis.trace(model, example_input(name, 1))
    log = tamis.path_norm(net, log=True, fold=False)
    assert log / math.log(10) == pytest.approx(order, abs=2.0)
    assert log == pytest.approx(math.log(plain_path_norm(model, (3, 224, 224))), rel=1e-9)
    costs = tamis.path_costs(net)
    assert all(bool(torch.isfinite(value).all()) for value in costs.values.values())
    assert math.log(float(costs.values["fc.weight"].sum())) + costs.log_scale <= tamis.path_norm(net, log=True) + 1e-9


def deep(layers: int, factor: float, bias: bool = True) -> tamis.Network:
    torch.manual_seed(1)
    model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(3, 3, bias), nn.ReLU())]).double()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(factor)
    return tamis.trace(model, torch.zeros(1, 3, dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "sign"), [(1e3, 1), (1e-3, -1)])
def test_a_thousand_layers_have_a_finite_logarithm(factor: float, sign: int) -> None:
    net = deep(1000, factor, bias=False)
    log = tamis.path_norm(net, log=True)
    assert math.isfinite(log) and log * sign > 5000
    product = torch.ones(3, dtype=torch.float64)
    exact = 0.0
    for i in range(0, 2000, 2):  # the definition, with the scale taken out by hand after every layer
        product = net.params[f"{i}.weight"].abs() @ product
        exact += math.log(float(product.max()))
        product = product / product.max()
    assert log == pytest.approx(exact + math.log(float(product.sum())), rel=1e-12)
    costs = tamis.path_costs(net)
    for i in (0, 1000, 1998):  # every path meets every layer, so each layer's costs add up to the whole norm
        assert math.log(float(costs.values[f"{i}.weight"].sum())) + costs.log_scale == pytest.approx(log, rel=1e-12)


def test_biases_of_a_vanishing_network_survive() -> None:
    """Early layers vanish below anything float64 can hold; the last bias does not."""
    net = deep(30, 1e-15)
    assert tamis.path_norm(net) == pytest.approx(float(net.params["58.bias"].abs().sum()), rel=1e-3)


def test_what_float64_cannot_hold_is_said_so() -> None:
    with pytest.raises(OverflowError, match=r"beyond float64: pass log=True"):
        tamis.path_norm(deep(30, 1e12))


@cache
def two_layers() -> tamis.Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False)).double()
    return tamis.trace(model, torch.ones(2, 3).double())


@pytest.mark.parametrize(("q", "r"), [(0.01, 1), (0.01, math.inf), (1, 0.001), (0.02, 0.5), (0.003, 0.003)])
def test_small_exponents_have_a_logarithm(q: float, r: float) -> None:
    """Of all paths by hand: log ‖·‖_r of (Σ_p |Φ_p|^q)^{1/q} = log Σ / q over outputs."""
    net = two_layers()
    first, last = (net.params[f"{place}.weight"].abs() ** q for place in (0, 2))
    logs = (last @ first).sum(1).log() / q
    expected = float(logs.max() if math.isinf(r) else torch.logsumexp(r * logs, 0) / r)
    assert tamis.path_norm(net, q=q, r=r, log=True) == pytest.approx(expected, rel=1e-9)
    if expected > 709.78:
        with pytest.raises(OverflowError, match="beyond float64: pass log=True"):
            tamis.path_norm(net, q=q, r=r)
    else:
        assert tamis.path_norm(net, q=q, r=r) == pytest.approx(math.exp(expected), rel=1e-9)
