"""The rates of GPFQ beside what iteration (2) does on the data that the theorems speak of: no constant grows."""

import math

import pytest
import torch
from torch import Tensor

from experiments.gpfq_decay import bound
from tamis.bounds.gpfq_rates import gpfq_in_subspace, gpfq_new_data, gpfq_relative_error
from tamis.errors import AssumptionViolated, InvalidInput

EPSILON, NEURONS = 0.05, 24


def weights(width: int, generator: torch.Generator) -> Tensor:
    """Uniform over the numbers of [−1, 1] that keep a distance ε from −1, 0 and 1."""
    sizes = EPSILON + (1 - 2 * EPSILON) * torch.rand(NEURONS, width, generator=generator, dtype=torch.float64)
    return sizes * (1 - 2 * torch.randint(2, sizes.shape, generator=generator))


def quantized(w: Tensor, data: Tensor) -> Tensor:
    """Iteration (2), line by line."""
    state, q = torch.zeros(len(w), len(data), dtype=torch.float64), torch.zeros_like(w)
    for t in range(w.shape[1]):
        column = data[:, t]
        q[:, t] = (w[:, t] + state @ column / (column @ column)).round().clamp(-1, 1)
        state += (w[:, t] - q[:, t])[:, None] * column
    return q


def errors(width: int, m: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, w − q, and the data."""
    generator = torch.Generator().manual_seed(seed)
    w = weights(width, generator)
    data = torch.randn(m, width, generator=generator, dtype=torch.float64)
    return w, w - quantized(w, data), data


@pytest.mark.parametrize(("width", "m"), [(64, 32), (1024, 8), (16384, 512)])
def test_theorem_2_is_the_shape_of_the_decay(width: int, m: int) -> None:
    rate = gpfq_relative_error(m, width, math.sqrt(width))
    assert rate.value == pytest.approx(bound(width, m))
    assert rate.source == "lybrand2021gpfq, Theorem 2"


def test_theorem_2_constant_does_not_grow() -> None:
    constants = []
    for width, m in ((64, 4), (256, 4), (1024, 4), (1024, 16), (1024, 64)):
        w, difference, data = errors(width, m)
        relative = (difference @ data.T).norm(dim=1) / (w @ data.T).norm(dim=1)
        rates = torch.tensor([gpfq_relative_error(m, width, float(row.norm())).value for row in w])
        constants.append(float((relative / rates).median()))
    assert max(constants) <= 1.5 * constants[0]


def test_theorem_3_constant_does_not_grow() -> None:
    constants = []
    for width, m in ((64, 4), (256, 4), (1024, 4), (1024, 16)):
        _, difference, data = errors(width, m)
        directions = torch.linalg.svd(data, full_matrices=False).Vh
        generator = torch.Generator().manual_seed(1)
        new = torch.randn(50, m, generator=generator, dtype=torch.float64) @ directions
        constants.append(float((difference @ new.T).abs().median()) / gpfq_new_data(m, width, 1.0).value)
    assert max(constants) <= 1.5 * constants[0]


def test_lemma_15_depends_on_the_dimension_and_not_on_the_samples() -> None:
    """X = ZA gives the same q as A, whatever orthonormal Z: so does the error."""
    width, d, m = 256, 4, 32
    generator = torch.Generator().manual_seed(0)
    w = weights(width, generator)
    a = torch.randn(d, width, generator=generator, dtype=torch.float64)
    z = torch.linalg.qr(torch.randn(m, d, generator=generator, dtype=torch.float64)).Q
    low, high = quantized(w, a), quantized(w, z @ a)
    assert torch.equal(low, high)
    assert gpfq_in_subspace(d, width, 1.0).value < gpfq_in_subspace(m, width, 1.0).value


def test_lemma_15_constant_does_not_grow() -> None:
    constants = []
    for width, d in ((64, 4), (512, 4), (512, 16), (512, 64)):
        _, difference, data = errors(width, d)
        constants.append(float((difference @ data.T).norm(dim=1).median()) / gpfq_in_subspace(d, width, 1.0).value)
    assert max(constants) <= 1.5 * constants[0]


def test_remark_4() -> None:
    """With σ_z = σ √(N₀/m) and N₀ ≫ m, Theorem 3 is of the order of σ m^{3/2} log N₀."""
    m, width, sigma = 8, 10**8, 0.3
    rate = gpfq_new_data(m, width, sigma * math.sqrt(width / m))
    assert rate.value == pytest.approx(sigma * m**1.5 * math.log(width), rel=1e-3)


def test_what_the_theorems_do_not_cover_is_refused() -> None:
    with pytest.raises(AssumptionViolated, match=r"\[−1, 1\]"):
        gpfq_relative_error(8, 16, 4.1)
    with pytest.raises(AssumptionViolated, match="N₀ = 8, m = 8"):
        gpfq_new_data(8, 8, 1.0)
    with pytest.raises(InvalidInput, match="weight_norm = 0"):
        gpfq_relative_error(8, 16, 0.0)
    with pytest.raises(InvalidInput, match="width = 1"):
        gpfq_in_subspace(8, 1, 1.0)


def test_they_say_what_is_proved() -> None:
    for rate in (gpfq_relative_error(8, 16, 2.0), gpfq_new_data(8, 16, 1.0), gpfq_in_subspace(8, 16, 1.0)):
        assert any("first" in assumption for assumption in rate.assumptions)
        assert math.prod(rate.terms.values()) > 0
