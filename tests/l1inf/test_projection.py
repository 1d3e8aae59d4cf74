"""The projection onto the ℓ1 ball against exact arithmetic, its optimality conditions, and the sorting of the text."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tamis.errors import InvalidInput
from tamis.kernels import dispatch
from tamis.l1inf import projection
from tamis.l1inf.projection import project, project_

DTYPES = [torch.float32, torch.float64]
hidden_or_not = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)


@pytest.fixture(params=["native", "stand-in"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "tamis._native", None)
    elif dispatch.native() is None:
        pytest.skip(dispatch.explain_native())


scales = st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 7.0, 1e8, 1e30])
ties = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0**-30, -(2.0**40)])
entries = st.one_of(ties, st.builds(lambda a, b: a * b, scales, st.floats(-1, 1)))
columns = st.lists(entries, min_size=1, max_size=70)
radii = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 1e-30, 1e30]), st.floats(1e-6, 1e6))


def exactly(column: list[float], c: float) -> list[Fraction]:
    """The projection in rational numbers, by sorting."""
    sizes = sorted((abs(Fraction(value)) for value in column), reverse=True)
    if sum(sizes) <= Fraction(c):
        return [Fraction(value) for value in column]
    theta, total = sizes[0], Fraction(0)
    for place, size in enumerate(sizes, 1):
        total += size
        if size - (total - Fraction(c)) / place > 0:
            theta = (total - Fraction(c)) / place
    return [(1 if value > 0 else -1) * max(abs(Fraction(value)) - theta, Fraction(0)) for value in column]


def allowed(dtype: torch.dtype, length: int, c: float) -> float:
    """By how much rounding may move an entry."""
    info = torch.finfo(dtype)
    return info.eps * c * (length + 1 if dtype == torch.float64 else 1) + info.tiny


@pytest.mark.usefixtures("form")
@hidden_or_not
@given(columns, radii, st.sampled_from(DTYPES), st.booleans())
def test_it_is_the_projection_of_exact_arithmetic(
    column: list[float], c: float, dtype: torch.dtype, biased: bool
) -> None:
    values = torch.tensor([column], dtype=dtype)
    if biased:
        weight, bias = project(values[:, 1:], c, values[:, 0])
        result = torch.cat([bias[:, None], weight], 1)
    else:
        result = project(values, c)
    for found, expected in zip(result[0].tolist(), exactly(values[0].tolist(), c), strict=True):
        assert abs(Fraction(found) - expected) <= allowed(dtype, len(column), c)


@pytest.mark.usefixtures("form")
@hidden_or_not
@given(st.lists(columns, min_size=1, max_size=4), radii, st.sampled_from(DTYPES))
def test_the_conditions_of_optimality_hold(many: list[list[float]], c: float, dtype: torch.dtype) -> None:
    width = max(map(len, many))
    values = torch.tensor([column + [0.0] * (width - len(column)) for column in many], dtype=dtype)
    result = project(values, c)
    for column, projected in zip(values.double(), result.double(), strict=True):
        most = allowed(dtype, width, c)
        assert math.fsum(projected.abs().tolist()) <= c * (1 + 1e-6)
        if torch.equal(column, projected):
            continue
        assert math.fsum(projected.abs().tolist()) >= c * (1 - 1e-6) - width * most
        taken = [Fraction(v) - Fraction(p) for v, p in zip(column.tolist(), projected.tolist(), strict=True)]
        support = [i for i, p in enumerate(projected.tolist()) if p]
        theta = max(abs(each) for each in taken)
        assert all(projected[i] * column[i] > 0 for i in support)  # no sign changes
        assert all(abs(abs(taken[i]) - theta) <= 2 * most for i in support)  # the residual is θ on the support
        assert all(abs(Fraction(float(column[i]))) <= theta + Fraction(most) for i in range(width) if i not in support)


@pytest.mark.usefixtures("form")
@hidden_or_not
@given(columns, radii, st.sampled_from(DTYPES))
def test_a_projection_is_its_own_projection(column: list[float], c: float, dtype: torch.dtype) -> None:
    once = project(torch.tensor([column], dtype=dtype), c)
    if c == 0 or c > 1e-20:  # below, entries of float32 have fewer digits
        assert torch.equal(project(once, c), once)


@pytest.mark.usefixtures("form")
@hidden_or_not
@given(columns, columns, st.floats(1e-3, 1e3))
def test_it_brings_no_two_points_further_apart(one: list[float], other: list[float], c: float) -> None:
    width = min(len(one), len(other))
    pair = torch.tensor([one[:width], other[:width]], dtype=torch.float64)
    before, after = ((each[0] - each[1]).norm() for each in (pair, project(pair, c)))
    assert after <= before * (1 + 1e-12) + allowed(torch.float64, width, c) * 2 * width


def by_sorting(columns: Tensor, c: float) -> Tensor:
    """Algorithm 2 of the text, for all columns at once."""
    sizes = columns.double().abs().sort(1, descending=True).values
    places = torch.arange(1, columns.shape[1] + 1)
    thresholds = (sizes.cumsum(1) - c) / places
    last = (sizes > thresholds).sum(1, keepdim=True) - 1
    return columns.sign() * (columns.double().abs() - thresholds.gather(1, last).clamp(min=0)).clamp(min=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("count", "width"), [(1, 1), (3, 31), (40, 257), (300, 1000), (5, 30_000)])
def test_the_kernel_the_stand_in_and_the_sorting_agree(
    dtype: torch.dtype, count: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dispatch.native() is None:
        pytest.skip(dispatch.explain_native())
    generator = torch.Generator().manual_seed(width)
    weight = torch.randn(count, width, generator=generator, dtype=dtype) ** 3
    bias = torch.randn(count, generator=generator, dtype=dtype)
    for c in (1e-6, 0.3, 20.0, 1e9):
        native = torch.cat([each.view(count, -1) for each in project(weight, c, bias)], 1)
        monkeypatch.setitem(sys.modules, "tamis._native", None)
        stand_in = torch.cat([each.view(count, -1) for each in project(weight, c, bias)], 1)
        monkeypatch.undo()
        close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": allowed(dtype, width, c)}
        torch.testing.assert_close(native, stand_in, **close)
        sorting = by_sorting(torch.cat([weight, bias[:, None]], 1), c).to(dtype)
        torch.testing.assert_close(native, sorting, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=1e-10)


def dropping_one_by_one(width: int) -> tuple[list[float], int]:
    """A column whose largest gap alone is dropped at each step, as long as float64 can tell; and how many steps."""
    gaps, excess = [0.0] * width, 1e-15  # gaps of 0: the support
    mean = 1 / width
    steps = 0
    while mean + excess < 1:
        gaps.append(mean + excess)
        mean += excess / len(gaps)
        excess *= 1.1 * len(gaps)  # less than that, and two gaps would go at once
        steps += 1
    return [2.0 - gap for gap in gaps], steps


@pytest.mark.usefixtures("form")
def test_columns_that_take_many_steps() -> None:
    slow, steps = dropping_one_by_one(3)
    assert steps >= 10
    ladder = [1 - 0.9 ** (60 - i) for i in range(60)]
    for column in (slow, slow[::-1], ladder, [2.0**-i for i in range(60)], [float(i**4) for i in range(800)]):
        for c in (1e-3, 0.5, 1.0, 1.9):
            result = project(torch.tensor([column], dtype=torch.float64), c)
            for found, expected in zip(result[0].tolist(), exactly(column, c), strict=True):
                assert abs(Fraction(found) - expected) <= allowed(torch.float64, len(column), c)


@pytest.mark.usefixtures("form")
def test_the_memory_around_is_left_alone_and_views_are_taken() -> None:
    whole = torch.randn(12, 40, generator=torch.Generator().manual_seed(0))
    before = whole.clone()
    result = project(whole[2:9:2, 3:33:3], 0.5)
    assert torch.equal(whole, before)
    assert torch.equal(result, project(whole[2:9:2, 3:33:3].contiguous(), 0.5))
    project_(whole[4:8], 0.5)
    assert torch.equal(whole[:4], before[:4]) and torch.equal(whole[8:], before[8:])
    assert torch.equal(whole[4:8], project(before[4:8], 0.5))


@pytest.mark.usefixtures("form")
def test_c_of_0_gives_zeros() -> None:
    weight, bias = project(torch.randn(4, 3, 2, 2), 0, torch.randn(4))
    assert not weight.any() and not bias.any() and weight.shape == (4, 3, 2, 2)


@pytest.mark.usefixtures("form")
def test_empty_layers() -> None:
    assert project(torch.zeros(0, 5), 1.0).shape == (0, 5)
    assert project(torch.zeros(3, 0), 1.0).shape == (3, 0)
    assert torch.equal(project(torch.zeros(3, 0), 1.0, torch.tensor([2.0, -3.0, 0.5]))[1], torch.tensor([1, -1, 0.5]))


LAYERS = [
    nn.Linear(7, 5),
    nn.Linear(7, 5, bias=False),
    nn.Conv1d(6, 4, 3, groups=2),
    nn.Conv2d(3, 4, (3, 2)),
    nn.Conv3d(2, 3, 2),
    nn.ConvTranspose1d(4, 6, 3),
    nn.ConvTranspose2d(4, 6, (3, 2), groups=2),
    nn.ConvTranspose2d(4, 6, 2, bias=False),
]


def impulse_norms(layer: nn.Module) -> Tensor:
    """What the neurons of a layer can make of inputs in [−1, 1] at most: the ℓ1-norms of their incoming weights."""
    weight = layer.weight.detach().double().abs()
    if isinstance(layer, nn.Linear) or "Transpose" not in type(layer).__name__:
        norms = [float(each.sum()) for each in weight]
    else:
        outputs, inputs = weight.shape[1], weight.shape[0] // layer.groups
        norms = [
            float(weight[group * inputs : (group + 1) * inputs, output].sum())
            for group in range(layer.groups)
            for output in range(outputs)
        ]
    total = torch.tensor(norms, dtype=torch.float64)
    return total if layer.bias is None else total + layer.bias.detach().double().abs()


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_layouts(layer: nn.Module) -> None:
    transposed, groups = "Transpose" in type(layer).__name__, getattr(layer, "groups", 1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(1))
    c = float(impulse_norms(layer).median())
    where = {"transposed": transposed, "groups": groups}
    found = project(layer.weight, c, layer.bias, **where)
    weight, bias = found if layer.bias is not None else (found, None)
    before = impulse_norms(layer)
    version = layer.weight._version
    project_(layer.weight, c, layer.bias, **where)
    assert torch.equal(layer.weight, weight) and (bias is None or torch.equal(layer.bias, bias))
    assert layer.weight._version > version
    after = impulse_norms(layer)
    torch.testing.assert_close(after, before.clamp(max=c), rtol=1e-6, atol=0)
    if isinstance(layer, nn.ConvTranspose2d) and layer.bias is None:  # what a unit at every input gives, at one output
        last = nn.functional.conv_transpose2d(torch.ones(1, 4, 1, 1), layer.weight.detach().abs())
        assert float(last.sum((2, 3)).max()) <= c * (1 + 1e-6)


@pytest.mark.usefixtures("form")
def test_channels_last_weights_are_projected_in_place() -> None:
    layer = nn.Conv2d(8, 4, 3).to(memory_format=torch.channels_last)
    expected, _ = project(layer.weight.detach().contiguous(), 0.5, layer.bias.detach())
    assert not layer.weight.is_contiguous()
    project_(layer.weight, 0.5, layer.bias)
    torch.testing.assert_close(layer.weight.detach(), expected)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("c", [0.0, 0.7, 2.0, 100.0])
def test_the_gradient(c: float, biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 2, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(3, generator=generator, dtype=torch.float64, requires_grad=True)
    inputs = (weight, bias) if biased else (weight,)
    assert torch.autograd.gradcheck(lambda w, *b: project(w, c, *b), inputs)
    assert torch.autograd.gradgradcheck(lambda w, *b: project(w, c, *b), inputs)


def test_the_gradient_of_a_transposed_convolution() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, b: project(w, 1.0, b, transposed=True, groups=2), (weight, bias))


@pytest.mark.parametrize("c", [-1.0, -1e-300, math.nan, math.inf, "1", None, True, 1j])
def test_radii_that_are_none(c: object) -> None:
    with pytest.raises(InvalidInput, match="must be a number ≥ 0") as error:
        project(torch.ones(2, 2), c)  # type: ignore[arg-type]
    assert repr(c) in str(error.value)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_that_are_not_finite(value: float, dtype: torch.dtype) -> None:
    for width in (1, 3, 100):
        weight = torch.ones(5, width, dtype=dtype)
        weight[3, -1] = value
        with pytest.raises(InvalidInput, match=f"a weight of output 3 is {value}"):
            project(weight, 1.0)
        bias = torch.zeros(5, dtype=dtype)
        bias[2] = value
        with pytest.raises(InvalidInput, match=f"a bias of output 2 is {value}"):
            project(torch.ones(5, width, dtype=dtype), 1000.0, bias)


def test_sums_that_overflow_are_no_infinities() -> None:
    huge = torch.full((1, 4), 1.5e308, dtype=torch.float64)
    assert project(huge, 2.0).tolist() == [[0.5] * 4]
    assert project(torch.full((1, 4), 3e38), 2.0).tolist() == [[0.5] * 4]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="float16"):
        project(torch.ones(2, 2, dtype=torch.float16), 1.0)
    with pytest.raises(InvalidInput, match=r"shape \(3,\)"):
        project(torch.ones(3), 1.0)
    with pytest.raises(InvalidInput, match=r"shape \(3,\), and the weight has 2 outputs"):
        project(torch.ones(2, 2), 1.0, torch.ones(3))
    with pytest.raises(InvalidInput, match=r"float64 on cpu, and the weight torch\.float32"):
        project(torch.ones(2, 2), 1.0, torch.ones(2, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="groups=3 must divide the 4 inputs"):
        project(torch.ones(4, 2, 2), 1.0, transposed=True, groups=3)
    with pytest.raises(InvalidInput, match="got list"):
        project([[1.0]], 1.0)  # type: ignore[call-overload]


def test_the_kernel_refuses_arrays_that_do_not_agree() -> None:
    extension = dispatch.native()
    if extension is None:
        pytest.skip(dispatch.explain_native())
    rows, row = np.ones((3, 4), np.float32), np.ones(3)
    for arguments in (
        (rows, None, 1.0, 0.0, rows[:2], None, row),
        (rows, None, 1.0, 0.0, rows, None, row[:2]),
        (rows, row.astype(np.float32), 1.0, 0.0, rows, None, row),
        (rows, None, -1.0, 0.0, rows, None, row),
        (rows, None, math.nan, 0.0, rows, None, row),
    ):
        with pytest.raises(ValueError, match="project_l1"):
            extension.project_l1(*arguments, 1)


@pytest.mark.usefixtures("form")
def test_many_threads_and_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(700, 1500, generator=torch.Generator().manual_seed(0))
    one = project(weight, 1.0)
    monkeypatch.setattr(projection, "ENTRIES_AT_ONCE", 100_000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert torch.equal(project(weight, 1.0), one)
