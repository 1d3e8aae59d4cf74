"""Lemma 2 against a search over inputs and networks of the class, and where it is attained."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from l1inf_members import ascend, draw, outputs, within
from torch import Tensor

from tamis.bounds.l1inf_output import l1inf_output
from tamis.errors import InvalidInput

some = settings(max_examples=50, deadline=None)

SIZES = st.floats(0, 10)


@pytest.mark.parametrize("c", [0.3, 2.5])
@pytest.mark.parametrize(("k", "activation"), [(0, "relu"), (2, "relu"), (2, "tanh"), (2, "shifted sigmoid")])
def test_no_network_of_the_class_exceeds_it(k: int, c: float, activation: str) -> None:
    generator = torch.Generator().manual_seed(k)
    layers = draw([3, *[4] * k, 2], 64, generator)
    x = torch.randn(64, 1, 3, generator=generator, dtype=torch.float64)

    def largest(parameters: list[Tensor]) -> Tensor:
        *weights, point = parameters
        return outputs(within(weights, c, 0.7), point.clamp(-1, 1), activation).abs().amax((1, 2))

    parameters = [*layers, x]
    ascend(parameters, largest)
    bound = l1inf_output(k, c, 0.7, activation)
    assert float(largest(parameters).max()) <= bound.value * (1 + 1e-12)


@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize("c", [0.5, 3.0])
def test_it_is_attained_by_a_path_or_by_the_last_bias(k: int, c: float) -> None:
    layers = [torch.zeros(1, 1, 2, dtype=torch.float64) for _ in range(k + 1)]
    for layer in layers[:-1]:
        layer[0, 0, 1] = c
    layers[-1][0, 0, 1 if c > 1 else 0] = 0.7
    value = outputs(layers, torch.ones(1, 1, 1, dtype=torch.float64), "relu")
    assert float(value) == pytest.approx(l1inf_output(k, c, 0.7).value)


@some
@given(st.integers(0, 6), SIZES, SIZES, SIZES)
def test_it_grows_with_its_arguments(k: int, c: float, o: float, more: float) -> None:
    here = l1inf_output(k, c, [o, 0.1])
    assert here.value <= l1inf_output(k, c + more, [o, 0.1]).value
    assert here.value <= l1inf_output(k, c, [o + more, 0.1]).value
    assert here.value <= l1inf_output(k + 1, c, [o, 0.1]).value


def test_deep_networks_have_a_logarithm() -> None:
    bound = l1inf_output(200, 1e4, 1.0)
    assert bound.value == math.inf
    assert bound.log_value == pytest.approx(200 * math.log(1e4))


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="o = -1"):
        l1inf_output(1, 1.0, [0.5, -1.0])
