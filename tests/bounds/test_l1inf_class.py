"""Constants read off networks, compared with the norms of their weights; what the theorems do not cover is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.bounds.arguments import check_count, check_delta, check_number, check_positive
from tamis.bounds.l1inf_class import L1InfConstants, l1inf_constants, lipschitz, log_largest
from tamis.bounds.l1inf_output import l1inf_output
from tamis.errors import AssumptionViolated, InvalidInput


class Shifted(nn.Module):
    def __init__(self, shift: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        return self.shift(torch.sigmoid(x))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(torch.relu(self.first(x)) + x)
        return result


def read(*modules: nn.Module, shape: tuple[int, ...] = (3,)) -> L1InfConstants:
    torch.manual_seed(0)
    return l1inf_constants(tamis.trace(nn.Sequential(*modules).eval(), torch.zeros(2, *shape)))


def norms(layer: nn.Linear | nn.Conv2d) -> list[float]:
    rows = layer.weight.detach().double().abs().flatten(1).sum(1)
    biases = 0 if layer.bias is None else layer.bias.detach().double().abs()
    return [float(norm) for norm in rows + biases]


def test_a_perceptron() -> None:
    first, second, last = nn.Linear(3, 5), nn.Linear(5, 4, bias=False), nn.Linear(4, 2)
    found = read(first, nn.Tanh(), second, nn.Tanh(), last)
    assert (found.k, found.inputs, found.activation) == (2, 3, "tanh")
    assert found.c == pytest.approx(max(norms(first) + norms(second)))
    assert found.o == pytest.approx(norms(last))


def test_a_convolution_is_measured_by_its_filters_and_batch_norm_is_folded() -> None:
    convolution, norm, last = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(48, 2)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.5, -0.5, 2.0]))
        norm.bias.copy_(torch.tensor([0.3, -0.7, 0.1]))
        assert norm.running_mean is not None
        assert norm.running_var is not None
        norm.running_mean.copy_(torch.tensor([0.2, -0.4, 0.6]))
        norm.running_var.copy_(torch.tensor([0.5, 1.5, 2.5]))
    found = read(convolution, norm, nn.ReLU(), nn.Dropout(), nn.Flatten(), last, shape=(2, 4, 4))
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    weight = convolution.weight.detach() * scale[:, None, None, None]
    assert convolution.bias is not None
    bias = convolution.bias.detach() * scale + norm.bias.detach() - scale * norm.running_mean
    assert (found.k, found.inputs, found.activation) == (1, 32, "relu")
    assert found.c == pytest.approx(float((weight.abs().flatten(1).sum(1) + bias.abs()).max()), rel=1e-6)


def test_a_linear_map_has_no_hidden_layer() -> None:
    last = nn.Linear(3, 1)
    found = read(last)
    assert (found.k, found.c) == (0, 0.0)
    assert l1inf_output(found.k, found.c, found.o).value == pytest.approx(norms(last)[0])


def test_one_layer_called_twice_counts_twice() -> None:
    shared = nn.Linear(3, 3)
    found = read(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(3, 1))
    assert found.k == 2
    assert found.c == pytest.approx(max(norms(shared)))


@pytest.mark.parametrize("shift", [lambda x: x - 0.5, lambda x: x + -0.5, lambda x: torch.sub(x, 0.25, alpha=2)])
def test_shifted_sigmoid_is_recognized(shift: Callable[[Tensor], Tensor]) -> None:
    assert read(nn.Linear(3, 2), Shifted(shift), nn.Linear(2, 1)).activation == "shifted sigmoid"


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ((nn.Linear(3, 2), nn.Sigmoid(), nn.Linear(2, 1)), "'aten.sigmoid.default' at 1 does not vanish at 0"),
        ((nn.Linear(3, 2), Shifted(lambda x: x - 0.4), nn.Linear(2, 1)), "does not vanish at 0"),
        ((nn.Linear(3, 2), Shifted(lambda x: 0.5 - x), nn.Linear(2, 1)), "does not vanish at 0"),
        ((nn.Linear(3, 2), nn.GELU(), nn.Linear(2, 1)), "gelu"),
        ((nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), "one activation"),
        ((nn.Linear(3, 2), nn.Linear(2, 1)), "without an activation between them"),
        ((nn.Linear(3, 2), nn.ReLU(), nn.ReLU(), nn.Linear(2, 1)), "does not follow"),
        ((nn.ReLU(), nn.Linear(3, 1)), "does not follow"),
        ((nn.Linear(3, 2), nn.ReLU()), "last operation is a linear layer"),
        ((Residual(),), "not a chain"),
    ],
)
def test_what_the_theorems_do_not_cover_is_refused(modules: tuple[nn.Module, ...], words: str) -> None:
    with pytest.raises(AssumptionViolated, match=words):
        read(*modules)


def test_pooling_and_maps_of_outputs_are_refused() -> None:
    with pytest.raises(AssumptionViolated, match="max_pool2d"):
        read(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 1), shape=(1, 4, 4))
    with pytest.raises(AssumptionViolated, match="not one vector"):
        read(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 1, 2), shape=(1, 4, 4))


def test_an_output_that_is_a_number_for_each_sample_is_refused() -> None:
    """A layer whose weight is one vector gives no vector of outputs."""

    class Vector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight)

    with pytest.raises(AssumptionViolated, match=r"gives the shape \(1,\), not one vector"):
        read(Vector())


def test_a_module_is_not_a_network() -> None:
    with pytest.raises(InvalidInput, match="trace the model first"):
        l1inf_constants(nn.Linear(2, 1))  # type: ignore[arg-type]


def test_plain_sigmoid_by_name_is_refused() -> None:
    with pytest.raises(AssumptionViolated, match="ERRATA 22"):
        lipschitz("sigmoid")
    with pytest.raises(InvalidInput, match="'gelu'"):
        lipschitz("gelu")
    assert lipschitz("shifted sigmoid") == 0.25


def test_the_layers_reach_does_not_fall_below_the_inputs() -> None:
    assert log_largest(3, 0.0, "relu") == log_largest(0, 7.0, "relu") == 0


def test_numbers_are_checked() -> None:
    for check, value in (
        (lambda v: check_count("k", v, least=0), -1),
        (lambda v: check_count("n", v), 1.5),
        (lambda v: check_count("n", v), True),
        (lambda v: check_number("c", v), float("nan")),
        (lambda v: check_number("c", v), float("inf")),
        (lambda v: check_positive("c", v), 0.0),
        (check_delta, 1.0),
    ):
        with pytest.raises(InvalidInput, match="got"):
            check(value)
