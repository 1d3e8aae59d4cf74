"""Networks with products in the place of their linear layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from tamis.errors import InvalidInput
from tamis.kronecker.conv import KroneckerConv2d
from tamis.kronecker.factorize import factorize
from tamis.kronecker.families import butterfly, dense, kaleidoscope, low_rank, monarch
from tamis.kronecker.layer import KroneckerLayer, KroneckerLinear
from tamis.kronecker.pattern import Pattern
from tamis.kronecker.replace import replace
from tamis.progress import Progress
from tamis.training.models import MODELS, example_input


def halves(M: int, N: int) -> list[Pattern]:
    return monarch(M, N, 2)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24, bias=False), nn.ReLU(), nn.Linear(24, 10))


def images() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding="same"),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Conv2d(8, 6, 1, stride=2),
        nn.Flatten(),
        nn.Linear(54, 10),
    )


def kinds(model: nn.Module) -> list[type]:
    return [type(module) for module in model.children()]


@pytest.mark.parametrize("begin", ["factorized", "scratch"])
def test_a_network_is_rebuilt_and_left_alone(begin: str) -> None:
    model = mlp().eval()
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    made = replace(model, halves, begin=begin)
    assert torch.equal(torch.get_rng_state(), random)
    assert kinds(model) == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert kinds(made) == [KroneckerLinear, nn.ReLU, KroneckerLinear, nn.ReLU, KroneckerLinear]
    assert not any(module.training for module in made.modules())
    owners = {parameter.data_ptr() for parameter in model.parameters()}
    assert not owners & {parameter.data_ptr() for parameter in made.parameters()}
    for mine, theirs in zip(made.children(), model.children(), strict=True):
        if isinstance(mine, KroneckerLinear) and isinstance(theirs, nn.Linear):
            assert (mine.bias is None) == (theirs.bias is None)
            assert mine.bias is None or torch.equal(mine.bias, theirs.bias)
            assert mine.patterns == tuple(halves(theirs.out_features, theirs.in_features))
    assert made(torch.randn(3, 16)).shape == (3, 10)


def test_patterns_by_the_names_of_layers() -> None:
    made: Any = replace(mlp(), {"0": monarch(24, 16, 4), "2": low_rank(24, 24, 3)})
    assert kinds(made) == [KroneckerLinear, nn.ReLU, KroneckerLinear, nn.ReLU, nn.Linear]
    assert made[0].patterns == tuple(monarch(24, 16, 4)) and made[2].patterns == tuple(low_rank(24, 24, 3))
    again: Any = replace(mlp(), {"0": made[0].patterns, "2": made[2].patterns}, begin="scratch")
    again.load_state_dict(made.state_dict())
    x = torch.randn(3, 16)
    assert torch.equal(again(x), made(x))
    with pytest.raises(InvalidInput, match="there are patterns for head, but the layers are 0, 2, 4"):
        replace(mlp(), {"head": dense(10, 24)})
    with pytest.raises(InvalidInput, match="of 10 × 24, but the patterns given for it make a product of 24 × 24"):
        replace(mlp(), {"4": dense(24, 24)})


def test_factorized_layers_are_the_nearest_products() -> None:
    heard = list[Progress]()
    model: Any = mlp()
    made: Any = replace(model, halves, progress=heard.append)
    for place, told in zip((0, 2, 4), heard, strict=True):
        mine, theirs = made[place], model[place]
        found = factorize(theirs.weight, mine.patterns)
        assert all(torch.equal(a, b) for a, b in zip(mine.factors, found.factors, strict=True))
        assert told.figures == {"relative_error": found.relative_error}
    assert [(each.done, each.total) for each in heard] == [(1, 3), (2, 3), (3, 3)]


def test_a_network_of_products_is_found_again() -> None:
    model = mlp().double()
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.weight.copy_(KroneckerLinear(halves(*layer.weight.shape), dtype=torch.float64).weight)
    x = torch.randn(7, 16, dtype=torch.float64)
    made = replace(model, halves)
    torch.testing.assert_close(made(x), model(x), rtol=1e-11, atol=1e-11)


def test_dense_patterns_change_nothing() -> None:
    model, x = mlp(), torch.randn(7, 16)
    torch.testing.assert_close(replace(model, dense)(x), model(x))
    whole = images()
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(replace(whole, dense, convolutions=True)(x), whole(x), rtol=1e-4, atol=1e-5)


def test_scratch_is_drawn_from_the_seed() -> None:
    first, again, other = (replace(mlp(), halves, begin="scratch", seed=seed) for seed in (1, 1, 2))
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b) and (torch.equal(a, c) == (a.dim() == 1))  # biases are the model's


def test_one_list_is_for_layers_of_its_size() -> None:
    made = replace(mlp(), monarch(24, 24, 4))
    assert kinds(made) == [nn.Linear, nn.ReLU, KroneckerLinear, nn.ReLU, nn.Linear]
    made = replace(mlp(), lambda M, N: None if M == 10 else monarch(M, N, 4))
    assert kinds(made) == [KroneckerLinear, nn.ReLU, KroneckerLinear, nn.ReLU, nn.Linear]
    assert kinds(replace(mlp(), halves, keep=("0", "[4]"))) == [nn.Linear, nn.ReLU, KroneckerLinear, nn.ReLU, nn.Linear]


def test_convolutions_too() -> None:
    made = replace(images(), halves, convolutions=True)
    assert kinds(made) == [KroneckerConv2d, nn.ReLU, nn.Conv2d, KroneckerConv2d, nn.Flatten, KroneckerLinear]
    assert made(torch.randn(2, 4, 6, 6)).shape == (2, 10)
    assert kinds(replace(images(), halves))[0] is nn.Conv2d
    model: Any = images().double()
    with torch.no_grad():
        product = KroneckerLinear(monarch(8, 36, 2), dtype=torch.float64).weight
        model[0].weight.copy_(product.reshape(8, 4, 3, 3))
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    found = replace(model, monarch(8, 36, 2), convolutions=True)
    torch.testing.assert_close(found(x), model(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["vit_tiny_test", "resnet20", "mobilenet_small"])
def test_networks_of_other_kinds(name: str) -> None:
    torch.manual_seed(0)
    model, x = MODELS[name](), example_input(name)
    made = replace(model, lambda M, N: low_rank(M, N, 2), convolutions=True)
    assert any(isinstance(module, KroneckerLayer) for module in made.modules())
    assert made(x).shape == model(x).shape


def test_a_layer_may_be_the_model_and_have_two_names() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 8)
    assert isinstance(replace(layer, butterfly(8)), KroneckerLinear)
    made: Any = replace(nn.Sequential(layer, nn.ReLU(), layer), butterfly(8))
    assert made[0] is made[2] and isinstance(made[0], KroneckerLinear)


def test_code_that_reads_the_weight_of_a_linear_layer_finds_it() -> None:
    """In evaluation, torch's own transformer layer reads the weights of its linear layers."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    made, x = replace(model, halves), torch.randn(3, 5, 8)
    with torch.no_grad():
        fast = made(x)
    torch.testing.assert_close(fast, made.train().eval()(x.requires_grad_()).detach(), rtol=1e-4, atol=1e-5)
    assert isinstance(made.linear1, KroneckerLinear)


def test_dtype_and_frozen_parameters_stay() -> None:
    model: Any = mlp().bfloat16()
    model[0].weight.requires_grad_(False)
    made: Any = replace(model, halves)
    assert all(parameter.dtype == torch.bfloat16 for parameter in made.parameters())
    assert [factor.requires_grad for factor in made[0].factors] == [False, False] and made[0].bias.requires_grad
    assert all(factor.requires_grad for factor in made[2].factors)


def test_a_model_without_numbers() -> None:
    """On the device 'meta' there is nothing to factorize, but there are shapes."""
    model = mlp().to("meta")
    with pytest.raises(InvalidInput, match=r"'0' cannot be factorized: W is on the device 'meta'.*begin='scratch'"):
        replace(model, halves)
    made = replace(model, halves, begin="scratch")
    assert all(parameter.is_meta for parameter in made.parameters())
    assert made(torch.empty(3, 16, device="meta")).shape == (3, 10)


def one_bias() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].bias = model[0].bias
    return model


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.kernel = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x))


def not_finite() -> nn.Module:
    model: Any = mlp()
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    return model


def pruned() -> nn.Module:
    model = mlp()
    prune.random_unstructured(model[0], "weight", 0.5)
    return model


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "kind": (lambda: replace([], halves), "replace needs an nn.Module, got list"),  # type: ignore[arg-type]
    "begin": (lambda: replace(mlp(), halves, begin="svd"), "begin must be one of factorized, scratch, got 'svd'"),
    "keep": (
        lambda: replace(mlp(), halves, keep="head"),
        "keep names 'head', which matches no layer; there are 0, 2, 4",
    ),
    "all kept": (
        lambda: replace(mlp(), halves, keep="*"),
        r"no layer is replaced .* keep='\*'; there are 0 \(24 × 16\)",
    ),
    "no size": (lambda: replace(mlp(), butterfly(8)), r"there are 0 \(24 × 16\), 2 \(24 × 24\), 4 \(10 × 24\)"),
    "blocks": (
        lambda: replace(mlp(), lambda M, N: monarch(M, N, 4)),
        r"'4', of 10 × 24, has no patterns: monarch\(10, 24, 4\) needs .*; name '4' in keep and it stays dense",
    ),
    "wrong size": (
        lambda: replace(mlp(), lambda M, N: dense(N, M)),
        "'0' is of 24 × 16, but the patterns given for it make a product of 16 × 24",
    ),
    "kaleidoscope": (
        lambda: replace(nn.Linear(8, 8), kaleidoscope(8)),
        r"'' cannot be factorized: .* not chainable: .*\(begin='scratch' draws the factors instead\)",
    ),
    "nan": (lambda: replace(not_finite(), halves), "'0' cannot be factorized: W has entries that are not finite"),
    "tied": (lambda: replace(Tied(), halves), "the weight of 'head' is used by embedding, head, which"),
    "tied to the model": (
        lambda: replace(Owner(), halves),
        "the weight of 'layer' is used by the model itself, layer, ",
    ),
    "one bias": (
        lambda: replace(one_bias(), halves),
        "the bias of '0' is used by 0, 1, which replacing one of them would untie: name '0' in keep and it stays dense",
    ),
    "refine": (lambda: replace(mlp(), halves, refine=-1), "^refine must be a number of steps ≥ 0, got -1"),
    "refine from scratch": (
        lambda: replace(mlp(), halves, begin="scratch", refine="x"),  # type: ignore[arg-type]
        "^refine must be a number of steps ≥ 0, got 'x'",
    ),
    "no layers": (lambda: replace(nn.ReLU(), halves), "ReLU has no layer to replace"),
    "parametrized": (
        lambda: replace(nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4))), halves),
        "has no layer to replace",
    ),
    "pruned": (lambda: replace(pruned(), halves), "the weight of '0' is no parameter of its own but computed"),
    "padding": (
        lambda: replace(nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), halves, convolutions=True),
        "pads with padding_mode='circular'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_replaced_is_refused(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(InvalidInput, match=message):
        call()
