"""(3.19): the sum of Φ-costs against the outputs of pruned networks, the path-metric, and single removals."""

from __future__ import annotations

import math

import pytest
import torch
from draws import normal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tamis
from tamis.bounds.coordinates import path_coordinates
from tamis.bounds.phi_pruning import phi_pruning
from tamis.errors import AssumptionViolated, InvalidInput

MODEL = nn.Sequential(nn.Conv1d(1, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(6, 2))
PRUNABLE = ("0.weight", "5.weight", "5.bias")


def network(seed: int = 0) -> tamis.Network:
    generator = torch.Generator().manual_seed(seed)
    traced = tamis.trace(MODEL.eval(), torch.zeros(1, 1, 6)).to(torch.float64)
    return traced.with_params(
        {name: normal(generator, *traced.params[name].shape) for name in sorted(traced.trainable)}
    )


NET = network()


def random_masks(net: tamis.Network, seed: int, keep: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(net.params[name].shape, generator=generator) < keep for name in PRUNABLE}


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**20), st.floats(0, 1), st.floats(0.1, 5))
def test_no_pruned_network_is_further_away(seed: int, keep: float, radius: float) -> None:
    masks = random_masks(NET, seed, keep)
    pruned = NET.with_params({name: NET.params[name] * mask for name, mask in masks.items()})
    bound = phi_pruning(NET, masks, radius)
    x = radius * (2 * torch.rand(64, 1, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1)
    assert float((NET(x) - pruned(x)).abs().sum(1).max()) <= bound.value * (1 + 1e-9) + 1e-12
    # The path-metric counts a path through several pruned coordinates once, the sum of costs as often as it meets them.
    assert bound.terms["log_path_metric"] <= bound.terms["log_cost"] + 1e-9
    assert bound.log_value == pytest.approx(bound.terms["log_cost"] + math.log(max(1, radius)))
    assert bound.terms["pruned"] == sum(int((~mask).sum()) for mask in masks.values())


def test_one_coordinate_costs_what_the_norm_loses() -> None:
    for place in ((0, 0), (1, 3)):
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[place] = False
        bound = phi_pruning(NET, {"5.weight": mask})
        without = NET.with_params({"5.weight": NET.params["5.weight"] * mask})
        assert bound.value == pytest.approx(tamis.path_norm(NET) - tamis.path_norm(without))
        assert bound.log_value == pytest.approx(bound.terms["log_path_metric"])
        assert bound.informative


def test_pruning_nothing_and_everything() -> None:
    everything = {name: torch.zeros_like(NET.params[name], dtype=torch.bool) for name in PRUNABLE}
    assert not phi_pruning(NET, everything).informative
    nothing = phi_pruning(NET, {name: ~mask for name, mask in everything.items()})
    assert nothing.value == 0 and nothing.log_value == -math.inf
    assert phi_pruning(NET, {}).value == 0


def test_it_agrees_with_pruning() -> None:
    small = tamis.prune(NET, 0.5, by="phi")
    bound, by_magnitude = (
        phi_pruning(NET, masks) for masks in (small.masks, tamis.prune(NET, 0.5, by="magnitude").masks)
    )
    assert bound.value <= by_magnitude.value
    assert math.exp(bound.terms["log_path_metric"]) == pytest.approx(float(tamis.path_metric(NET, small.network)))


def test_an_entry_that_two_masks_of_a_tied_parameter_remove_is_removed() -> None:
    """One weight has two names; an entry that both masks remove is pruned as if one mask had named it."""

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (nn.Linear(2, 2, bias=False) for _ in range(2))
            self.right.weight = self.left.weight

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.left(x) + torch.relu(self.right(x))
            return result

    net = tamis.trace(Siamese(), torch.zeros(1, 2))
    net = net.with_params({"left.weight": torch.tensor([[1.0, 2.0], [4.0, 8.0]])})
    left, right = torch.tensor([[False, False], [True, True]]), torch.tensor([[False, True], [False, True]])
    bound = phi_pruning(net, {"left.weight": left, "right.weight": right})
    assert bound.terms["pruned"] == 3
    assert bound.value == pytest.approx(2 * (1 + 2 + 4))  # each entry lies on a path of either side


def test_terms_of_a_folded_bias_are_refused_by_name() -> None:
    assert path_coordinates(NET) == frozenset(PRUNABLE)
    for name in ("1.weight", "1.bias", "0.bias"):
        mask = torch.zeros(3, dtype=torch.bool)
        with pytest.raises(AssumptionViolated, match=f"'{name}' is a term of a weight.*lipschitz_parameters"):
            phi_pruning(NET, {name: mask})
        assert phi_pruning(NET, {name: ~mask}).value == 0


def test_products_of_two_parameters_are_no_coordinates() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(torch.ones(2, 2)) for _ in range(3))
            self.register_buffer("mask", torch.ones(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.a * self.b) + x @ (self.c.T * self.mask / 2)

    assert path_coordinates(tamis.trace(Product(), torch.zeros(1, 2))) == {"c"}


def test_a_factor_may_be_negated_or_divided_by_a_constant_but_not_by_a_parameter() -> None:
    """In a · (−b) both are factors, so that neither is a coordinate; in −c / mask, c is one; in d / e, neither."""

    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d, self.e = (nn.Parameter(torch.ones(2, 2)) for _ in range(5))
            self.register_buffer("mask", torch.ones(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.a * (-self.b)) + x @ (-self.c / self.mask) + x @ (self.d / self.e)

    assert path_coordinates(tamis.trace(Computed(), torch.zeros(1, 2))) == {"c"}


def test_errors() -> None:
    mask = torch.zeros(2, 6, dtype=torch.bool)
    with pytest.raises(InvalidInput, match=r"no trainable parameter 'fc\.weight'"):
        phi_pruning(NET, {"fc.weight": mask})
    with pytest.raises(
        InvalidInput, match=r"mask of '5.weight' must be a boolean tensor of shape \(2, 6\), got torch.float32"
    ):
        phi_pruning(NET, {"5.weight": mask.float()})
    with pytest.raises(InvalidInput, match=r"shape \(2, 6\), got torch.bool of shape \(3,\)"):
        phi_pruning(NET, {"5.weight": mask[0, :3]})
    with pytest.raises(InvalidInput, match="got list"):
        phi_pruning(NET, {"5.weight": [True]})  # type: ignore[dict-item]
    with pytest.raises(InvalidInput, match="radius = nan"):
        phi_pruning(NET, {"5.weight": mask}, radius=math.nan)
    with pytest.raises(InvalidInput, match="needs a Network, got Sequential"):
        phi_pruning(MODEL, {})  # type: ignore[arg-type]
