"""The relaxation against derivatives by hand and by autograd, its penalty by finite differences, its end exactly."""

import math
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tamis.architecture.two_temperature import TwoTemperature, relaxed_mask
from tamis.errors import InvalidInput, TrainingDiverged
from tamis.training.models import digits_cnn, mlp

TEMPERATURES = st.floats(0.1, 200.0)
LOGITS = st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=8)


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()


def a_loss(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    return F.cross_entropy(model(inputs), torch.tensor([0, 1, 2, 0, 1, 2, 0]))


class Tied(nn.Module):
    """One weight in two layers, and one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.again = self.three

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.three(self.two(self.one(x))))


# -- the gradient --------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(values=LOGITS, one=TEMPERATURES, other=TEMPERATURES)
def test_the_gradient_is_the_derivative_by_hand(values: list[float], one: float, other: float) -> None:
    t_s, t_l = sorted((one, other))
    w = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    factors = torch.linspace(-2.0, 2.0, len(values), dtype=torch.float64)
    v = relaxed_mask(w, t_l, t_s)
    (factors * v).sum().backward()
    v = v.detach()
    assert w.grad is not None
    for place, value in enumerate(values):
        soft = 1 / (1 + math.exp(-t_s * value))
        hard = 1 / (1 + math.exp(-t_l * value))
        assert float(v[place]) == pytest.approx(hard, rel=1e-12, abs=1e-300)
        expected = float(factors[place]) * t_s * soft * (1 - soft)
        assert float(w.grad[place]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(deadline=None)
@given(values=LOGITS, t=TEMPERATURES)
def test_at_one_temperature_it_is_plain_autograd(values: list[float], t: float) -> None:
    naive = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    plain = naive.detach().clone().requires_grad_()
    relaxed_mask(naive, t, t).square().sum().backward()
    torch.sigmoid(t * plain).square().sum().backward()
    assert naive.grad is not None and plain.grad is not None
    torch.testing.assert_close(naive.grad, plain.grad, rtol=1e-12, atol=1e-300)


def test_two_temperatures_keep_a_gradient_where_one_has_none() -> None:
    w = torch.tensor([1.0], requires_grad=True)
    relaxed_mask(w, 1000.0, 1000.0).sum().backward()
    assert w.grad is not None and float(w.grad) == 0.0
    w.grad = None
    relaxed_mask(w, 1000.0, 10.0).sum().backward()
    assert w.grad is not None and float(w.grad) > 1e-4


def test_at_one_temperature_the_gradient_is_checked_twice_over_by_finite_differences() -> None:
    w = torch.tensor([-0.3, 0.0, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda each: relaxed_mask(each, 3.0, 3.0), (w,))
    assert torch.autograd.gradgradcheck(lambda each: relaxed_mask(each, 3.0, 3.0), (w,))


def test_weights_and_masks_of_a_model_have_the_gradients_of_the_formulas() -> None:
    """∇_w = (∂L/∂θ̃ ∘ θ) t_s σ'(t_s w) and ∇_θ = ∂L/∂θ̃ ∘ σ(t_l w), with ∂L/∂θ̃ from a plain model of weights θ̃."""
    relaxed = TwoTemperature(a_model(), t_l=20.0, t_s=4.0, spread=0.1)
    a_loss(relaxed).backward()
    plain = a_model()
    masks = {name: torch.sigmoid(20.0 * w.detach()) for name, w in relaxed.logits.items()}
    plain.load_state_dict({**plain.state_dict(), **{n: plain.state_dict()[n] * v for n, v in masks.items()}})
    a_loss(plain).backward()
    for name, w in relaxed.logits.items():
        by_masked, weight = plain.get_parameter(name).grad, relaxed.weights[name]
        assert by_masked is not None and w.grad is not None and weight.grad is not None
        soft = torch.sigmoid(4.0 * w.detach())
        torch.testing.assert_close(w.grad, by_masked * weight.detach() * 4.0 * soft * (1 - soft))
        torch.testing.assert_close(weight.grad, by_masked * masks[name])


# -- the penalty ---------------------------------------------------------------------------------------------------


def penalised(relaxed: TwoTemperature, gamma: float) -> float:
    with torch.no_grad():
        return float(a_loss(relaxed) + gamma * relaxed.penalty())


def test_the_step_descends_the_penalised_loss_by_finite_differences() -> None:
    """ERRATA 25: at t_s = t_l the step is −α times the derivative of L + γ 1ᵀ((1 + w)² + θ²), entry by entry."""
    gamma, rate, small = 0.3, 0.01, 1e-6
    relaxed = TwoTemperature(a_model(), t_l=3.0, t_s=3.0, spread=0.2)
    before = {name: w.detach().clone() for name, w in relaxed.logits.items()}
    a_loss(relaxed).backward()
    moved = deepcopy(relaxed)
    for name, w in relaxed.logits.items():
        moved.logits[name].grad = w.grad
    for name, weight in relaxed.weights.items():
        moved.weights[name].grad = None if weight.grad is None else weight.grad.clone()
    assert not moved.update(rate, gamma, keep=0)
    moved.add_weight_penalty(gamma)
    for name in relaxed.names:
        gradient = moved.weights[name].grad
        assert gradient is not None
        for given_, got in (
            (relaxed.logits[name], (before[name] - moved.logits[name].detach()) / rate),
            (relaxed.weights[name], gradient),
        ):
            for place in range(given_.numel()):
                flat = given_.data.view(-1)
                here = float(flat[place])
                flat[place] = here + small
                above = penalised(relaxed, gamma)
                flat[place] = here - small
                below = penalised(relaxed, gamma)
                flat[place] = here
                assert float(got.flatten()[place]) == pytest.approx((above - below) / (2 * small), rel=1e-5, abs=1e-7)


def test_the_penalty_alone_pushes_masks_to_minus_one_and_the_printed_sign_would_not() -> None:
    relaxed = TwoTemperature(a_model())
    for _ in range(200):
        relaxed.update(rate=0.1, gamma=1.0, keep=0)
    assert all(torch.allclose(w, torch.full_like(w, -1.0), atol=1e-6) for w in relaxed.logits.values())


# -- the end -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), keep=st.integers(1, 32), rate=st.floats(0.1, 10.0))
def test_exactly_so_many_connections_are_left(seed: int, keep: int, rate: float) -> None:
    relaxed = TwoTemperature(a_model(), spread=0.1, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(1000):
        before = {name: w.detach().clone() for name, w in relaxed.logits.items()}
        for w in relaxed.logits.values():
            w.grad = 0.02 * torch.randn(w.shape, generator=generator, dtype=w.dtype)
        if relaxed.update(rate, 0.01, keep):
            break
        assert relaxed.kept > keep
    else:
        pytest.fail("the penalty has to win in the end")
    assert relaxed.kept == keep
    kept = relaxed.architecture().masks
    assert kept.total - kept.pruned == keep == relaxed.total - round(relaxed.sparsity * relaxed.total)
    for name, w in relaxed.logits.items():  # what came back is where it was before the step
        unmoved = w == before[name]
        assert (w[unmoved] > 0).all()


def test_of_equal_connections_the_first_stay() -> None:
    relaxed = TwoTemperature(a_model())
    for w in relaxed.logits.values():
        w.data.fill_(0.1)
    assert relaxed.update(rate=1.0, gamma=1.0, keep=3)
    masks = relaxed.architecture().masks
    assert masks["0.weight"].flatten().tolist() == [True] * 3 + [False] * 17
    assert not masks["2.weight"].any()


def test_of_those_that_cross_the_nearest_to_zero_stay() -> None:
    relaxed = TwoTemperature(nn.Linear(4, 1))
    (w,) = relaxed.logits.values()
    w.data = torch.tensor([[0.1, 0.3, -0.05, 0.2]])
    w.grad = torch.tensor([[0.2, 0.5, 0.0, 0.3]])
    assert relaxed.update(rate=1.0, gamma=0.0, keep=1)  # crossing to −0.1, −0.2 and −0.1: of equals, the first
    torch.testing.assert_close(w.data, torch.tensor([[0.1, -0.2, -0.05, -0.1]]))


def test_masks_that_are_not_finite_are_refused() -> None:
    relaxed = TwoTemperature(a_model())
    for w in relaxed.logits.values():
        w.grad = torch.full_like(w, math.nan)
    with pytest.raises(TrainingDiverged, match=r"the mask of '0\.weight' is no longer finite"):
        relaxed.update(rate=0.1, gamma=0.1, keep=3)


def test_an_architecture_of_a_sparsity_has_the_largest_masks() -> None:
    relaxed = TwoTemperature(a_model())
    found = relaxed.architecture(0.75)
    every = sorted((float(each) for w in relaxed.logits.values() for each in w.detach().flatten()), reverse=True)
    kept = [float(each) for name, w in relaxed.logits.items() for each in w.detach()[found.masks[name]]]
    assert sorted(kept, reverse=True) == every[:8]


# -- the model -----------------------------------------------------------------------------------------------------


def test_it_computes_the_model_with_masked_weights_and_leaves_the_model_alone() -> None:
    model = digits_cnn(4).eval()
    before, modules = deepcopy(model.state_dict()), [type(module) for module in model.modules()]
    relaxed = TwoTemperature(model, t_l=50.0).eval()
    x = torch.randn(3, 1, 8, 8)
    expected = deepcopy(model)
    masks = {name: torch.sigmoid(50.0 * w.detach()) for name, w in relaxed.logits.items()}
    expected.load_state_dict({**before, **{name: before[name] * v for name, v in masks.items()}})
    torch.testing.assert_close(relaxed(x), expected(x))
    assert [type(module) for module in model.modules()] == modules
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_all_layers_are_masked_by_default_and_patterns_choose_among_them() -> None:
    model = digits_cnn(4)
    weights = {name for name, value in model.named_parameters() if value.dim() > 1}
    assert {*TwoTemperature(model).names} == weights
    assert {*TwoTemperature(model, exclude="classifier").names} == weights - {"classifier.weight"}
    assert TwoTemperature(model, include=iter(["first", "second"]), exclude="first").names == ("second.0.weight",)
    assert TwoTemperature(nn.Linear(3, 2)).names == ("weight",)


def test_tied_weights_share_one_mask() -> None:
    relaxed = TwoTemperature(Tied(), seed=3)
    assert relaxed.names == ("one.weight", "three.weight") and relaxed.total == 18
    assert relaxed.model.one.weight.equal(relaxed.model.two.weight)  # type: ignore[union-attr, operator, arg-type]
    copied = deepcopy(relaxed)
    copied.logits["one.weight"].data.fill_(-1.0)
    assert not copied.model.two.weight.any()  # type: ignore[union-attr, operator]
    assert len(list(relaxed.model.parameters())) == 2 + 3 + 2  # weights, biases, masks


def test_the_same_seed_begins_with_the_same_masks_and_all_connections() -> None:
    one, same, other = (TwoTemperature(mlp(), seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(w, same.logits[name]) for name, w in one.logits.items())
    assert not any(torch.equal(w, other.logits[name]) for name, w in one.logits.items())
    assert one.kept == one.total and one.sparsity == 0.0


def test_what_makes_no_sense_is_refused() -> None:
    model = a_model()
    for options, message in (
        ({"t_l": 0.0}, r"t_l=0\.0 must be a number > 0"),
        ({"t_l": 1.0, "t_s": -1.0}, r"t_s=-1\.0 must be a number > 0"),
        ({"t_l": 1.0, "t_s": math.nan}, r"t_s=nan must be"),
        ({"t_l": 1.0, "t_s": 2.0}, r"t_s=2\.0 must not be greater than t_l=1\.0"),
        ({"spread": 0.0}, r"spread=0\.0 must be a number > 0"),
        ({"include": "conv"}, r"'conv' matches no weight that can be masked; these can: 0\.weight, 2\.weight"),
        ({"exclude": ["0", "2"]}, r"nothing is left to be masked"),
    ):
        with pytest.raises(InvalidInput, match=message):
            TwoTemperature(model, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="ReLU has no linear or convolution layer"):
        TwoTemperature(nn.ReLU())
    with pytest.raises(InvalidInput, match=r"'weight' has no shape yet: run LazyLinear on an example first"):
        TwoTemperature(nn.LazyLinear(3))
