"""Which parameters can be pruned, by the names and patterns that a user gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.prune as torch_prune
from torch import Tensor, nn

import tamis
from tamis.errors import AssumptionViolated, InvalidInput, UnsupportedOp
from tamis.graph import as_patterns, matches
from tamis.pruning.prunable_weights import find_candidates
from tamis.training.models import MODELS, example_input

CRITERIA: tuple[Any, ...] = ("phi", "magnitude", "random")


class Computing(nn.Module):
    """linear(x, weight computed from w), with a buffer c and a second parameter g at hand."""

    def __init__(self, weight: Callable[[Any], Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(torch.randn(3, 3, generator=generator))
        self.g = nn.Parameter(torch.rand(3, 1, generator=generator) + 1)
        self.c: Tensor
        self.register_buffer("c", torch.tensor([[1.0, 0.0, 2.0]] * 3))
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight(self))


def names(model: nn.Module, *shape: int, biases: bool = False) -> tuple[str, ...]:
    return find_candidates(tamis.trace(model, torch.zeros(1, *shape)), biases=biases).names


def three_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Linear(3, 2))


# -- what is found -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    return tamis.trace(three_layers(), torch.zeros(1, 4))


def test_weights_in_the_order_of_data_and_biases_only_when_asked_for(net: tamis.Network) -> None:
    found = find_candidates(net, biases=False)
    assert found.names == ("0.weight", "2.0.weight", "3.weight") and found.final == "3.weight"
    with_biases = find_candidates(net, biases=True)
    assert set(with_biases.names) == {f"{layer}.{kind}" for layer in ("0", "2.0", "3") for kind in ("weight", "bias")}
    assert with_biases.final == "3.weight"


class Products(nn.Module):
    """A layer by each way of writing one: grouped, transposed, x @ W, W @ x, einsum, addmm."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.transposed = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.right, self.left = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5, 8))
        self.summed = nn.Parameter(torch.randn(3, 2))
        self.added, self.shift = nn.Parameter(torch.randn(10, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.transposed(torch.relu(self.grouped(x))).flatten(1, 2)[..., :4]
        x = self.left @ torch.relu(x @ self.right)
        x = torch.einsum("bij,jk->bik", torch.relu(x), self.summed).flatten(1)
        return torch.addmm(self.shift, torch.relu(x), self.added)


def test_every_way_of_writing_a_layer() -> None:
    torch.manual_seed(0)
    model = Products().double()
    x = torch.randn(2, 4, 2, 2, dtype=torch.float64)
    net = tamis.trace(model, x)
    weights = {"grouped.weight", "transposed.weight", "right", "left", "summed", "added"}
    for by in CRITERIA:
        small = tamis.prune(net, 0.5, by=by, scope="layer", biases=True)
        assert set(small.masks) == weights | {"transposed.bias", "shift"}
        for mask in small.masks.values():
            assert int((~mask).sum()) == round(0.5 * mask.numel())
        torch.testing.assert_close(small.apply_to(model)(x), small.network(x), rtol=1e-12, atol=1e-12)
        assert set(tamis.prune(net, 0.5, by=by).masks) == weights


def test_tied_weights_are_one_parameter() -> None:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.last = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 2)
            self.other.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.one(x)) + torch.relu(self.other(-x)))

    model, x = Siamese(), torch.randn(5, 4)
    small = tamis.prune(model, 6, example=x)
    assert set(small.masks) == {"one.weight", "last.weight"} and small.masks.total == 12 + 6
    applied = small.apply_to(model)
    assert applied.one.weight is applied.other.weight
    assert torch.equal(applied(x), small.network(x))


def test_adjacency_matrices_and_other_buffers_are_no_weights() -> None:
    net = tamis.trace(MODELS["gcn"](), example_input("gcn"))
    assert find_candidates(net, biases=False).names == ("layer1.linear.weight", "layer2.linear.weight")


def test_a_frozen_layer_has_weights_all_the_same() -> None:
    model = three_layers()
    model[0].requires_grad_(False)
    assert names(model, 4) == ("0.weight", "2.0.weight", "3.weight")


@pytest.mark.parametrize("model", [nn.ReLU(), nn.BatchNorm1d(3), nn.Sequential()])
def test_nothing_to_prune(model: nn.Module) -> None:
    with pytest.raises(InvalidInput, match=r"there is nothing to prune: Network.* has no linear or convolution layer"):
        tamis.prune(model, 0.5, example=torch.zeros(2, 3))


def test_a_vision_transformer_by_magnitude_but_not_by_phi() -> None:
    model, x = MODELS["vit_tiny_test"](), example_input("vit_tiny_test")
    net = tamis.trace(model, x)
    small = tamis.prune(net, 0.5, by="magnitude")
    linear = {f"{name}.weight" for name, layer in model.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))}
    assert set(small.masks) == linear
    assert small.masks.pruned == round(0.5 * small.masks.total)
    with pytest.raises(UnsupportedOp, match=r"'aten\.layer_norm' at blocks\.0\.norm1"):
        tamis.prune(net, 0.5)


# -- weights that are computed -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(lambda m: m.w.T, id="transposed"),
        pytest.param(lambda m: m.w * m.c, id="masked"),
        pytest.param(lambda m: -m.w, id="negated"),
        pytest.param(lambda m: 0.5 * m.w.reshape(9).flip(0).reshape(3, 3), id="moved about"),
    ],
)
def test_entry_by_entry_is_fine(weight: Callable[[Any], Tensor]) -> None:
    """Zeros of the parameter are zeros of the weight, so as many of its entries vanish."""
    model = Computing(weight)
    before = int((weight(model) == 0).sum())
    net = tamis.trace(model, torch.zeros(1, 3))
    for by in CRITERIA:
        small = tamis.prune(net, 4, by=by, include="w")
        assert int((small.params["w"] == 0).sum()) == 4
        now = int((weight(small.apply_to(model)) == 0).sum())
        assert max(before, 4) <= now <= before + 4


@pytest.mark.parametrize(
    ("weight", "op"),
    [
        pytest.param(lambda m: m.w + m.c, r"aten\.add\.Tensor", id="shifted"),
        pytest.param(lambda m: 1 - m.w, r"aten\.rsub", id="one minus"),
        pytest.param(lambda m: m.c / m.w, r"aten\.div\.Tensor", id="divided by it"),
        pytest.param(lambda m: m.w / m.w.norm(), r"aten\.linalg_vector_norm\.default", id="normalized"),
        pytest.param(lambda m: m.w * m.g, r"aten\.mul\.Tensor.* with g", id="times another"),
        pytest.param(lambda m: torch.exp(m.w), r"aten\.exp\.default", id="exponential"),
        pytest.param(lambda m: m.w @ m.w, r"aten\.matmul\.default", id="squared"),
    ],
)
def test_anything_else_is_refused_by_name(weight: Callable[[Any], Tensor], op: str) -> None:
    net = tamis.trace(Computing(weight), torch.zeros(1, 3))
    for by in ("phi", "magnitude"):
        with pytest.raises(InvalidInput, match=rf"'w' cannot be pruned entry by entry.* '{op}.*exclude='w'"):
            tamis.prune(net, 4, by=by, include="w")  # type: ignore[arg-type]


def test_a_number_divides() -> None:
    net = tamis.trace(Computing(lambda m: m.w / 2), torch.zeros(1, 3))
    assert tamis.prune(net, 4, by="magnitude").masks.pruned == 4
    with pytest.raises(AssumptionViolated, match="cannot attribute costs to 'w'"):
        tamis.prune(net, 4, by="phi")


def normalized_first_layer() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2))


def test_weight_norm_is_refused_and_can_be_left_out() -> None:
    net = tamis.trace(normalized_first_layer(), torch.zeros(1, 4))
    named = r"'0\.parametrizations\.weight\.original\d' cannot be pruned.*'aten\._weight_norm.*at 0\.parametrizations"
    for by in ("phi", "magnitude"):
        with pytest.raises(InvalidInput, match=named):
            tamis.prune(net, 0.5, by=by)  # type: ignore[arg-type]
    small = tamis.prune(net, 0.5, by="magnitude", exclude="0")
    assert list(small.masks) == ["2.weight"] and small.masks.pruned == 3
    assert list(tamis.prune(net, 0.5, by="magnitude", include="2").masks) == ["2.weight"]


def test_a_module_that_torch_has_masked() -> None:
    torch.manual_seed(2)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.randn(5, 4)
    torch_prune.l1_unstructured(model[0], "weight", amount=5)
    masked = model[0].weight_mask.bool()
    net = tamis.trace(model, x)
    for by in CRITERIA:
        small = tamis.prune(net, 5, by=by)
        assert list(small.masks) == ["0.weight_orig", "2.weight"] and small.masks.pruned == 5
        if by == "phi":  # what is masked costs nothing, so it goes first
            assert torch.equal(small.masks["0.weight_orig"], masked) and small.masks["2.weight"].all()
            assert torch.equal(small.network(x), net(x))
        applied = small.apply_to(model)
        assert torch.equal(applied(x), small.network(x)) and torch.equal(applied[0].weight_mask.bool(), masked)


# -- names and patterns --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("layer1", {"layer1.0.conv1.weight", "layer1.0.conv1.bias", "layer1.1.conv2.weight"}),
        ("layer1.0", {"layer1.0.conv1.weight", "layer1.0.conv1.bias"}),
        ("*.conv1", {"layer1.0.conv1.weight", "layer1.0.conv1.bias"}),
        ("*.bias", {"layer1.0.conv1.bias"}),
        ("layer1.[01].conv?.weight", {"layer1.0.conv1.weight", "layer1.1.conv2.weight"}),
        ("layer", set()),
        ("Layer1", set()),
        ("conv1", set()),
        ("*", {"layer1.0.conv1.weight", "layer1.0.conv1.bias", "layer1.1.conv2.weight", "fc.weight"}),
    ],
)
def test_patterns_name_parameters_or_the_modules_they_are_in(pattern: str, matching: set[str]) -> None:
    known = ["layer1.0.conv1.weight", "layer1.0.conv1.bias", "layer1.1.conv2.weight", "fc.weight"]
    assert {name for name in known if matches([name], (pattern,))} == matching


@pytest.mark.parametrize(
    ("given", "tuple_"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), (iter("a"), ("a",))]
)
def test_one_pattern_several_or_none(given: Any, tuple_: tuple[str, ...]) -> None:
    assert as_patterns(given) == tuple_


@pytest.mark.parametrize(
    ("include", "exclude", "chosen"),
    [
        (None, None, ["0.weight", "2.0.weight", "3.weight"]),
        ("2", None, ["2.0.weight"]),
        (["0", "3.*"], None, ["0.weight", "3.weight"]),
        (None, "3", ["0.weight", "2.0.weight"]),
        ("*", ["0.weight", "2"], ["3.weight"]),
        (("0", "2"), "2.0", ["0.weight"]),
    ],
)
def test_include_and_exclude(net: tamis.Network, include: Any, exclude: Any, chosen: list[str]) -> None:
    small = tamis.prune(net, 2, include=include, exclude=exclude)
    assert list(small.masks) == chosen and small.masks.pruned == 2


def test_patterns_are_told_apart_by_what_can_be_pruned(net: tamis.Network) -> None:
    for wrong in ("fc", "0.bias", "1"):
        with pytest.raises(
            InvalidInput, match=f"'{wrong}' matches no parameter that can be pruned; these can: 0.weight"
        ):
            tamis.prune(net, 0.5, include=["0", wrong])
        with pytest.raises(InvalidInput, match=f"'{wrong}' matches no parameter"):
            tamis.prune(net, 0.5, exclude=wrong)
    assert list(tamis.prune(net, 0.5, include="*.bias", biases=True).masks) == ["0.bias", "2.0.bias", "3.bias"]
    with pytest.raises(InvalidInput, match=r"nothing is left to be pruned: include='0' and exclude='\*' leave none of"):
        tamis.prune(net, 0.5, include="0", exclude="*")
    with pytest.raises(InvalidInput, match=r"nothing is left to be pruned: include=\[\] and exclude=None leave"):
        tamis.prune(net, 0.5, include=[])


def test_tied_weights_go_by_any_of_their_names_and_are_last_where_they_are_last_met() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    net = tamis.trace(model, torch.zeros(1, 4))
    assert find_candidates(net).names == ("0.weight", "1.weight") and find_candidates(net).final == "0.weight"
    assert find_candidates(net, exclude="2").names == ("1.weight",)
    assert find_candidates(net, include="2.weight").names == ("0.weight",)


def test_a_long_list_of_names_is_cut_short() -> None:
    net = tamis.trace(nn.Sequential(*[nn.Linear(2, 2) for _ in range(20)]), torch.zeros(1, 2))
    with pytest.raises(InvalidInput, match=r"these can: 0\.weight, .*, … \(20 in all\)"):
        tamis.prune(net, 0.5, include="nowhere")
