"""Layers against `nn.Linear` with the dense weight."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

import tamis
from tamis.errors import InvalidInput
from tamis.kronecker.backends import as_matrix
from tamis.kronecker.conv import KroneckerConv2d
from tamis.kronecker.families import butterfly, dense, kaleidoscope, low_rank, monarch
from tamis.kronecker.layer import KroneckerLinear
from tamis.kronecker.pattern import Pattern, nonzeros, product_support

CHAINS: dict[str, list[Pattern]] = {
    "dense": dense(6, 10),
    "low rank": low_rank(6, 10, 3),
    "butterfly": butterfly(16),
    "kaleidoscope": kaleidoscope(8),
    "monarch": monarch(24, 12, 3),
    "uneven monarch": monarch(12, 20, 4),
    "odd": [Pattern(3, 5, 7, 1), Pattern(1, 7, 1, 3)],
}


def layer(name: str, **kwargs: Any) -> KroneckerLinear:
    torch.manual_seed(0)
    return KroneckerLinear(CHAINS[name], dtype=torch.float64, **kwargs)


@pytest.mark.parametrize("backend", ["reference", "bmm", "elementwise", "dense", None])  # those that take float64
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_it_does_what_a_linear_layer_with_the_dense_weight_does(name: str, bias: bool, backend: str | None) -> None:
    made = layer(name, bias=bias, backend=backend)
    weight = made.dense_weight()
    by_hand = torch.eye(made.in_features, dtype=torch.float64)
    for factor, pattern in reversed(list(zip(made.factors, made.patterns, strict=True))):
        by_hand = as_matrix(factor, pattern) @ by_hand
    torch.testing.assert_close(weight, by_hand, rtol=1e-12, atol=1e-12)
    assert torch.equal(weight != 0, product_support(made.patterns))
    for batch in ((), (0,), (1,), (7,), (2, 3)):
        x = torch.randn(*batch, made.in_features, dtype=torch.float64)
        torch.testing.assert_close(made(x), F.linear(x, weight, made.bias), rtol=1e-12, atol=1e-12)
    assert sum(each.numel() for each in made.parameters()) == nonzeros(made.patterns) + bias * made.out_features


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_batch_last_is_the_transposed_of_batch_first(name: str, bias: bool) -> None:
    first, last = layer(name, bias=bias), layer(name, bias=bias, layout="batch_last")
    last.load_state_dict(first.state_dict())
    for batch in ((), (0,), (1,), (7,), (2, 3)):
        x = torch.randn(*batch, first.in_features, dtype=torch.float64)
        torch.testing.assert_close(last(x.movedim(-1, 0)).movedim(0, -1), first(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_are_those_through_the_dense_weight(name: str) -> None:
    made, x = layer(name), torch.randn(5, CHAINS[name][-1].columns, dtype=torch.float64)
    (made(x) ** 3).sum().backward()
    got = [parameter.grad for parameter in made.parameters()]
    made.zero_grad()
    (F.linear(x, made.dense_weight(), made.bias) ** 3).sum().backward()
    for mine, parameter in zip(got, made.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)


@pytest.mark.parametrize("chain", [dense(256, 256), butterfly(256), kaleidoscope(64), monarch(512, 256, 8)])
def test_outputs_vary_as_those_of_a_linear_layer(chain: list[Pattern]) -> None:
    torch.manual_seed(0)
    inputs = chain[-1].columns
    made = [KroneckerLinear(chain) for _ in range(40)]
    x = torch.randn(64, inputs)
    variance = torch.stack([F.linear(x, one.dense_weight()) for one in made]).var().item()
    assert variance == pytest.approx(1 / 3, rel=0.15)
    biases = torch.cat([one.bias.detach() for one in made if one.bias is not None])
    assert float(biases.abs().max()) <= 1 / math.sqrt(inputs)
    assert float(biases.var()) == pytest.approx(1 / (3 * inputs), rel=0.1)


def test_one_dense_factor_is_drawn_as_a_linear_layer_is() -> None:
    torch.manual_seed(3)
    mine = KroneckerLinear(dense(5, 8))
    torch.manual_seed(3)
    theirs = nn.Linear(8, 5)
    torch.testing.assert_close(mine.dense_weight(), theirs.weight)
    assert mine.bias is not None and torch.equal(mine.bias, theirs.bias)


@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, "batch_first") for name in ("dense", "uneven monarch", "odd")]
    + [("odd", "batch_last")],  # a butterfly: below
)
def test_export_with_any_batch(name: str, layout: str) -> None:
    made = layer(name, layout=layout)
    axis = 0 if layout == "batch_first" else 1

    def inputs(batch: int) -> torch.Tensor:
        x = torch.randn(batch, made.in_features, dtype=torch.float64)
        return x if layout == "batch_first" else x.T.contiguous()

    program = torch.export.export(made, (inputs(3),), dynamic_shapes=({axis: torch.export.Dim("batch")},))
    for batch in (2, 11):
        torch.testing.assert_close(program.module()(inputs_of := inputs(batch)), made(inputs_of))


@pytest.mark.slow
# Monarch matrices are compiled where it is tested what layers keep.
@pytest.mark.parametrize("name", [pytest.param("monarch", marks=pytest.mark.slow), "odd"])
def test_it_compiles_into_one_graph(name: str) -> None:
    made = layer(name).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own making
        compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
        for batch in (3, 5):
            x = torch.randn(batch, made.in_features)
            torch.testing.assert_close(compiled(x), made(x))
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(compiled(x), made(x), rtol=0.02, atol=0.02)


def test_a_traced_layer_has_the_path_norm_of_its_factors() -> None:
    """Also where small blocks would go entry by entry."""
    model = nn.Sequential(KroneckerLinear(butterfly(4)), nn.ReLU(), nn.Linear(4, 3)).double()
    net = tamis.trace(model, torch.zeros(2, 4, dtype=torch.float64))
    for batch in (1, 5):
        x = torch.randn(batch, 4, dtype=torch.float64)
        torch.testing.assert_close(net(x), model(x))

    positive = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in positive.parameters():
            parameter.abs_()
        norm = float(positive(torch.ones(1, 4, dtype=torch.float64)).sum())
    assert tamis.path_norm(net) == pytest.approx(norm, rel=1e-12)


def test_state_and_copies() -> None:
    made = layer("monarch")
    assert list(made.state_dict()) == ["bias", "factors.0", "factors.1"]
    x = torch.randn(4, 12, dtype=torch.float64)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(other(x), made(x)) and other.patterns == made.patterns
    assert repr(made) == (
        "KroneckerLinear(\n  in_features=12, out_features=24, patterns=[(1, 8, 4, 3), (3, 4, 4, 1)], "
        "weights=50.0% of dense, bias=True\n  (factors): ParameterList(\n"
        "      (0): Parameter containing: [torch.float64 of size 1x8x4x3]\n"
        "      (1): Parameter containing: [torch.float64 of size 3x4x4x1]\n  )\n)"
    )


def test_half_precision_and_autocast() -> None:
    made, x = KroneckerLinear(butterfly(16)), torch.randn(3, 16)
    want = made(x)
    assert made.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        got = made.float()(x)
    torch.testing.assert_close(got.float(), want, rtol=0.05, atol=0.05)


@pytest.mark.usefixtures("compiling_anew")
def test_autocast_gives_the_dtype_that_it_gives_of_a_linear_layer() -> None:
    x, images = torch.randn(3, 8), torch.randn(1, 8, 2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own making
        for layout in ("batch_first", "batch_last"):
            made = KroneckerLinear(monarch(8, 8, 2), layout=layout)
            given = x if layout == "batch_first" else x.T
            for mode in (made.train(), made.eval(), torch.compile(made, backend="aot_eager", fullgraph=True)):
                with torch.autocast("cpu", torch.bfloat16):
                    assert mode(given).dtype == nn.Linear(8, 8)(x).dtype == torch.bfloat16
        convolution = KroneckerConv2d(8, 8, 1, monarch(8, 8, 2))
        for run in (convolution.train(), convolution.eval()):
            with torch.autocast("cpu", torch.bfloat16):
                assert run(images).dtype == nn.Conv2d(8, 8, 1)(images).dtype == torch.bfloat16
    assert made(x.T).dtype == torch.float32 and convolution(images).dtype == torch.float32


@pytest.mark.parametrize("backend", [None, "bmm", "reference", "elementwise", "dense"])
@pytest.mark.parametrize("layout", ["batch_first", "batch_last"])
def test_many_gradients_at_once(layout: str, backend: str | None) -> None:
    """Of which torch makes one tensor without memory, that no kernel can read."""
    torch.manual_seed(0)
    made = KroneckerLinear(monarch(12, 8, 2), layout=layout, backend=backend)
    x, upstream = torch.randn(5, 8), torch.randn(3, 5, 12)
    if layout == "batch_last":
        x, upstream = x.T, upstream.mT
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    torch.testing.assert_close(jacobian(made, x, vectorize=True), jacobian(made, x))
    cubed = lambda x: (made(x) ** 3).sum()  # noqa: E731
    torch.testing.assert_close(hessian(cubed, x, vectorize=True), hessian(cubed, x), rtol=1e-4, atol=1e-5)
    for parameter in made.parameters():
        (found,) = torch.autograd.grad(made(x), parameter, upstream, is_grads_batched=True)
        one_by_one = [torch.autograd.grad(made(x), parameter, each)[0] for each in upstream]
        torch.testing.assert_close(found, torch.stack(one_by_one), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own use, for forward mode
def test_gradients_are_differentiated_forward() -> None:
    """Where forward mode begins after the product is computed, so that no backend could refuse it."""
    made = KroneckerLinear(monarch(12, 8, 2), bias=False)
    x = torch.randn(5, 8, requires_grad=True)
    y, (upstream, direction) = made(x), torch.randn(2, 5, 12)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(upstream, direction)
        (gradient,) = torch.autograd.grad(y, x, dual)
        tangent = forward_ad.unpack_dual(gradient).tangent
    torch.testing.assert_close(tangent, direction @ made.dense_weight())


def test_shapes_without_numbers() -> None:
    made = KroneckerLinear(monarch(24, 12, 3), device="meta")
    assert made(torch.empty(5, 12, device="meta")).shape == (5, 24)


def test_it_learns() -> None:
    torch.manual_seed(0)
    target = KroneckerLinear(monarch(8, 8, 2), bias=False).dense_weight().detach()
    made, x = KroneckerLinear(monarch(8, 8, 2)), torch.randn(256, 8)
    optimizer = torch.optim.Adam(made.parameters(), 0.02)
    for _ in range(400):
        optimizer.zero_grad()
        loss = F.mse_loss(made(x), x @ target.T)
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-4


def test_set_factors_copies_and_checks() -> None:
    made, other = layer("monarch"), layer("monarch", bias=False)
    factors = [torch.ones_like(factor) for factor in made.factors]
    made.set_factors(factors, torch.zeros(24))
    assert all(
        torch.equal(mine, given) and mine is not given for mine, given in zip(made.factors, factors, strict=True)
    )
    assert all(factor.requires_grad for factor in made.factors)
    with pytest.raises(InvalidInput, match="there are 2 factors to set, got 1"):
        made.set_factors(factors[:1])
    with pytest.raises(InvalidInput, match=r"factor 0 has shape \(1, 8, 4, 3\), got \(3, 4, 4, 1\)"):
        made.set_factors(factors[::-1])
    with pytest.raises(InvalidInput, match="the layer has a bias, got none"):
        made.set_factors(factors)
    with pytest.raises(InvalidInput, match="the layer has no bias, got one"):
        other.set_factors(factors, torch.zeros(24))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="factors 1 and 2 do not fit"):
        KroneckerLinear([(1, 2, 3, 4), (1, 2, 3, 5)])
    with pytest.raises(InvalidInput, match="layout must be one of"):
        KroneckerLinear(butterfly(4), layout="last")
    with pytest.raises(InvalidInput, match=r"an input of shape \(…, 12\).* got \(2, 13\)"):
        layer("monarch")(torch.zeros(2, 13, dtype=torch.float64))
    for mode in (layer("monarch").train(), layer("monarch").eval()):
        with pytest.raises(InvalidInput, match=r"x must be a dense tensor, got one of torch.sparse_coo; take x.to_den"):
            mode(torch.zeros(2, 12, dtype=torch.float64).to_sparse())
