"""What layers keep at inference: nothing of it may show in results, and it goes when it is out of date."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import parametrize, prune

from tamis.errors import InvalidInput
from tamis.kronecker import inference_cache, tuning
from tamis.kronecker.backends import BACKENDS, DENSE, Backend, Step, as_matrix
from tamis.kronecker.conv import KroneckerConv2d
from tamis.kronecker.families import butterfly, dense, low_rank, monarch
from tamis.kronecker.inference_cache import InferenceCache, is_whole_cheaper
from tamis.kronecker.layer import KroneckerLinear
from tamis.kronecker.multiply import multiply
from tamis.kronecker.pattern import Pattern

pytestmark = pytest.mark.usefixtures("nothing_tuned")
CHAINS: dict[str, list[Pattern]] = {
    "dense": dense(6, 10),
    "low rank": low_rank(6, 10, 3),
    "butterfly": butterfly(16),
    "monarch": monarch(24, 12, 3),
    "square": [Pattern(2, 4, 4, 3)],
}
WAYS = [*(name for name in BACKENDS if name != "triton"), None]
LAYOUTS = ("batch_first", "batch_last")


class Counting:
    """A backend that counts how often weights are prepared, and knows when what was prepared is gone."""

    def __init__(self) -> None:
        self.times = 0
        self.last: weakref.ref[Tensor] | None = None

    def prepare(self, weight: Tensor, pattern: Pattern, layout: str) -> Step:
        self.times += 1
        matrix = as_matrix(weight, pattern)
        self.last = weakref.ref(matrix)
        return lambda x, bias: nn.functional.linear(x, matrix, bias)

    def alive(self) -> bool:
        return self.last is not None and self.last() is not None


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    counter = Counting()
    backend = Backend("counting", lambda *_: "", BACKENDS["reference"].apply, counter.prepare)
    monkeypatch.setitem(BACKENDS, "counting", backend)
    return counter


def layer(name: str = "square", **kwargs: Any) -> KroneckerLinear:
    torch.manual_seed(0)
    return KroneckerLinear(CHAINS[name], **kwargs).eval()


def by_hand(made: KroneckerLinear, x: Tensor) -> Tensor:
    """By the contraction in float64, with the weights as they are now."""
    y = x.double()
    for factor, pattern in reversed(list(zip(made.factors, made.patterns, strict=True))):
        y = multiply(y, factor.detach().double(), pattern, made.layout, "reference")
    if made.bias is None:
        return y
    bias = made.bias.detach().double()
    return y + (bias if made.layout == "batch_first" else bias.reshape(-1, *[1] * (y.dim() - 1)))


def agree(made: KroneckerLinear, batch: tuple[int, ...] = (5,)) -> None:
    x = torch.randn(*batch, made.in_features, dtype=made.factors[0].dtype)
    x = x if made.layout == "batch_first" else x.movedim(-1, 0)
    with torch.no_grad():
        y = made(x)
    assert y.dtype == x.dtype and not y.requires_grad
    torch.testing.assert_close(y.double(), by_hand(made, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", WAYS)
@pytest.mark.parametrize("name", CHAINS)
def test_results_are_those_of_the_factors(name: str, backend: str | None, layout: str, bias: bool) -> None:
    for dtype in (torch.float64,) if backend != "cpu" else (torch.float32,):
        made = layer(name, backend=backend, layout=layout, bias=bias, dtype=dtype)
        for batch in ((), (0,), (1,), (7,), (2, 3)):
            agree(made, batch)
            agree(made, batch)
        assert len(made._cache) == 1


def test_in_float32_they_are_those_of_multiply_to_the_bit() -> None:
    made = layer("monarch", bias=False)
    x = torch.randn(9, made.in_features)
    with torch.no_grad():
        y = x
        for factor, pattern in reversed(list(zip(made.factors, made.patterns, strict=True))):
            y = multiply(y, factor, pattern)
        assert torch.equal(made(x), y)
    convolution = KroneckerConv2d(4, 8, 3, monarch(8, 36, 4), padding=1)
    images = torch.randn(2, 4, 5, 5)
    with torch.no_grad():
        assert torch.equal(convolution.eval()(images), convolution.train()(images))


@pytest.mark.parametrize("batch", [1, 7, 8, 9, 24, 29])
def test_a_long_chain_a_few_vectors_at_a_time_gives_the_same(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = KroneckerLinear(butterfly(32)).eval()
    x = torch.randn(batch, 32)
    with torch.no_grad():
        monkeypatch.setattr(inference_cache, "SLICE_BYTES", 8 * 32 * 4)  # 8 vectors
        sliced = chain(x)
        chain.eval()  # forgets what it kept
        monkeypatch.setattr(inference_cache, "SLICE_BYTES", 2**40)
        torch.testing.assert_close(chain(x), sliced, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(chain(x[None])[0], sliced, rtol=1e-5, atol=1e-6)


def test_weights_are_prepared_once(counting: Counting) -> None:
    made = layer(backend="counting")
    for batch in (5, 5, 6, 40):
        agree(made, (batch,))
    assert counting.times == 1 and len(made._cache) == 1
    with torch.inference_mode():
        made(torch.ones(3, 24))
    assert counting.times == 1


@pytest.mark.parametrize("backend", WAYS)
def test_what_was_prepared_in_inference_mode_serves_outside_of_it(backend: str | None) -> None:
    made = layer("monarch", backend=backend).requires_grad_(False)
    x = torch.randn(3, made.in_features)
    with torch.inference_mode():
        first = made(x)
    assert len(made._cache) == 1 and torch.equal(made(x), first)
    y = made(x)
    y.requires_grad_().sum().backward()
    assert y.grad is not None and len(made._cache) == 1


def changes_in_place(made: KroneckerLinear) -> None:
    with torch.no_grad():
        made.factors[0].mul_(2)


def takes_other_numbers(made: KroneckerLinear) -> None:
    made.factors[0].data = torch.randn(made.factors[0].shape)


def turns_its_numbers(made: KroneckerLinear) -> None:
    made.factors[0].data = made.factors[0].data.transpose(1, 2)


def loads(made: KroneckerLinear) -> None:
    made.load_state_dict({name: torch.randn_like(value) for name, value in made.state_dict().items()})


def loads_and_assigns(made: KroneckerLinear) -> None:
    made.load_state_dict({name: torch.randn_like(value) for name, value in made.state_dict().items()}, assign=True)


def has_another_parameter(made: KroneckerLinear) -> None:
    made.factors[0] = nn.Parameter(torch.randn(made.factors[0].shape))


def sets_its_factors(made: KroneckerLinear) -> None:
    made.set_factors([torch.randn_like(factor) for factor in made.factors], made.bias)


def learns(made: KroneckerLinear) -> None:
    optimizer = torch.optim.SGD(made.parameters(), 0.5)
    made(torch.ones(3, made.in_features)).square().sum().backward()
    optimizer.step()


def is_written_through_data(made: KroneckerLinear) -> None:
    """Which torch does not count, so that the layer has to be told."""
    made.factors[0].data.mul_(3)
    made.eval()


@pytest.mark.parametrize(
    "change",
    [
        changes_in_place,
        takes_other_numbers,
        turns_its_numbers,
        loads,
        loads_and_assigns,
        has_another_parameter,
        sets_its_factors,
        learns,
        is_written_through_data,
    ],
)
def test_other_weights_are_seen(change: Any, counting: Counting) -> None:
    made = layer(backend="counting")
    agree(made)
    for times in (2, 3):
        change(made)
        agree(made)
        assert counting.times == times and len(made._cache) == 1


def test_weights_at_an_address_that_was_freed_are_seen(counting: Counting) -> None:
    """Torch's counter stays where it is when `data` is set: only where numbers lie tells them apart."""
    made = layer(backend="counting", bias=False)
    for number in range(20):
        made.factors[0].data = torch.full(made.factors[0].shape, float(number))
        agree(made)


def test_another_dtype_and_device(counting: Counting) -> None:
    made = layer(backend="counting")
    agree(made)
    assert counting.alive()
    made.double()
    assert not counting.alive() and len(made._cache) == 0
    agree(made)
    made.to("meta")
    assert len(made._cache) == 0 and made(torch.empty(2, 24, dtype=torch.float64, device="meta")).shape == (2, 24)


def test_memory_goes_with_the_layer_and_with_training(counting: Counting) -> None:
    made = layer(backend="counting")
    agree(made)
    assert counting.alive()
    made.train()
    assert not counting.alive()
    agree(made)  # while training nothing is kept
    assert counting.times == 1 and len(made._cache) == 0
    made.eval()
    agree(made)
    assert counting.alive()
    del made
    assert not counting.alive()


def test_few_kinds_of_inputs_are_kept() -> None:
    made = layer()
    for precision in ("highest", "high", "medium", "highest"):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            for backend in ("bmm", "dense"):
                made.backend = backend
                agree(made)
        finally:
            torch.set_float32_matmul_precision(before)
        assert 1 <= len(made._cache) <= 4


def test_copies_begin_with_nothing() -> None:
    made = layer("monarch")
    agree(made)
    assert len(made._cache) == 1
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), copy.copy(InferenceCache())):
        assert len(other if isinstance(other, InferenceCache) else other._cache) == 0
    agree(copy.deepcopy(made))
    old = made.__reduce_ex__(2)[2]
    assert isinstance(old, dict)
    again = KroneckerLinear.__new__(KroneckerLinear)
    again.__setstate__({name: value for name, value in old.items() if name != "_cache"})  # of an earlier version
    agree(again)
    assert "_cache" not in made.state_dict()


def test_gradients_flow_as_before() -> None:
    made = layer("monarch")
    agree(made)
    x = torch.randn(3, made.in_features, requires_grad=True)
    made(x).sum().backward()
    assert x.grad is not None and all(parameter.grad is not None for parameter in made.parameters())
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    x.grad = None
    made(x).sum().backward()
    want = made.dense_weight().sum(0).expand(3, -1)
    torch.testing.assert_close(x.grad, want)


def test_inference_tensors_count_no_changes_and_are_not_kept() -> None:
    with torch.inference_mode():
        made = layer("monarch")
        x = torch.randn(3, made.in_features)
        first = made(x)
        made.factors[0].mul_(2)
        made.bias.zero_()  # type: ignore[union-attr]
        assert not torch.allclose(made(x), first) and len(made._cache) == 0


@pytest.mark.usefixtures("compiling_anew")
@pytest.mark.parametrize("backend", ["dense", pytest.param("bmm", marks=pytest.mark.slow), None])
def test_what_torch_looks_at_is_not_kept(backend: str | None) -> None:
    made = layer("monarch", backend=backend)
    x = torch.randn(4, made.in_features)
    with torch.no_grad():
        want = made.train()(x)
        made.eval()
        exported = torch.export.export(made, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.testing.assert_close(exported.module()(x), want)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own making
            compiled = torch.compile(made, backend="eager", fullgraph=True)
            torch.testing.assert_close(compiled(x), want)
        torch.testing.assert_close(torch.func.vmap(made)(x), want)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert made(mode.from_tensor(x)).shape == want.shape
        with torch.autocast("cpu", torch.bfloat16):
            made(x)
        assert len(made._cache) == 0
        torch.testing.assert_close(made(x), want)
        assert len(made._cache) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.testing.assert_close(torch.compile(made, backend="eager", fullgraph=True)(x), want)


def test_a_parametrized_factor_is_computed_in_every_call() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    made = layer(bias=False)
    x = torch.randn(3, made.in_features)
    with torch.no_grad():
        want = 2 * made(x)
        parametrize.register_parametrization(made.factors, "0", Doubled())
        torch.testing.assert_close(made(x), want)


def test_a_parametrized_bias_is_computed_in_every_call() -> None:
    class Doubled(nn.Module):
        def forward(self, bias: Tensor) -> Tensor:
            return 2 * bias

    made = layer()
    with torch.no_grad():
        agree(made)
        parametrize.register_parametrization(made, "bias", Doubled())
        agree(made)
        made.parametrizations["bias"].original.mul_(3)  # type: ignore[index, union-attr, operator]
        agree(made)


def test_pruned_factors_are_computed_in_every_call() -> None:
    made = layer("monarch")
    agree(made)
    prune.l1_unstructured(made.factors, "0", 0.5)
    x = torch.randn(3, made.in_features)
    with torch.no_grad():
        torch.testing.assert_close(made(x).double(), by_hand(made, x), rtol=1e-5, atol=1e-5)
        prune.remove(made.factors, "0")  # after which it is the last of the list's parameters
        torch.testing.assert_close(made(x).double(), by_hand(made, x), rtol=1e-5, atol=1e-5)


def test_factors_of_one_shape_do_not_change_places() -> None:
    made = KroneckerLinear([(2, 3, 3, 2), (2, 3, 3, 2)], bias=False).eval()
    parametrize.register_parametrization(made.factors, "0", nn.Identity())
    parametrize.remove_parametrizations(made.factors, "0")
    agree(made)


@pytest.mark.parametrize("backend", [None, "dense", "bmm"])
def test_weights_of_another_shape_are_refused_as_in_training(backend: str | None) -> None:
    made = layer(backend=backend)
    agree(made)
    x = torch.randn(3, made.in_features)
    for data in (made.factors[0].data[:1], torch.randn(2, 8, 4, 3)):
        made.factors[0].data = data
        with (
            pytest.raises(InvalidInput, match=r"the weight of the pattern \(2, 4, 4, 3\) has that shape"),
            torch.no_grad(),
        ):
            made(x)


@pytest.mark.parametrize("backend", WAYS)
def test_a_bias_with_other_strides_or_of_one_entry_is_read_rightly(backend: str | None) -> None:
    made = layer(backend=backend)
    agree(made)
    made.bias.data = torch.randn(48)[::2]  # type: ignore[union-attr]
    agree(made)
    made.bias.data = torch.randn(1)  # type: ignore[union-attr]
    agree(made)


def test_a_meta_tensor_under_autocast() -> None:
    made = layer().to("meta")
    with torch.no_grad(), torch.autocast("cpu"):
        assert made(torch.empty(5, 24, device="meta")).shape == (5, 24)


def test_weights_can_be_exchanged_after_inference() -> None:
    made = layer(backend="dense")
    agree(made)
    state = {name: torch.randn_like(value) for name, value in made.state_dict().items()}
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        made.load_state_dict(state)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
    agree(made)


@pytest.mark.parametrize("backend", WAYS)
def test_weights_that_lie_in_a_larger_tensor_change_with_it_and_are_not_kept(backend: str | None) -> None:
    made = layer("monarch", bias=False, backend=backend)
    agree(made)
    vector = torch.randn(sum(factor.numel() for factor in made.factors))
    nn.utils.vector_to_parameters(vector, made.parameters())
    agree(made)
    vector.mul_(2)
    agree(made)


@pytest.mark.parametrize("backend", ["cpu", "bmm", None])
def test_numbers_that_torch_has_yet_to_negate(backend: str | None) -> None:
    made = layer("monarch", backend=backend)
    x = torch.randn(3, made.in_features)
    with torch.no_grad():
        torch.testing.assert_close(made(torch._neg_view(x)), made(-x))
        numbers = made.factors[0].data
        made.factors[0].data = torch._neg_view(numbers)  # at the same address
        torch.testing.assert_close(made(x).double(), by_hand(made, x), rtol=1e-5, atol=1e-5)
        made.factors[0].data = numbers
        torch.testing.assert_close(made(x).double(), by_hand(made, x), rtol=1e-5, atol=1e-5)
        assert len(made._cache) == 1


def test_after_a_fused_optimizer_eval_forgets() -> None:
    made = layer()
    optimizer = torch.optim.SGD(made.parameters(), 0.5, fused=True)
    for _ in range(2):
        agree(made)
        made.train()(torch.ones(3, made.in_features)).square().sum().backward()
        optimizer.step()
        made.eval()
        agree(made)


def test_another_bias_is_seen() -> None:
    made = layer()
    agree(made)
    made.bias = nn.Parameter(torch.randn_like(made.bias))  # type: ignore[arg-type]
    agree(made)
    with torch.no_grad():
        made.bias.mul_(2)
    agree(made)
    made.bias = nn.Parameter(made.bias.double())  # which is added after the product, in float64
    x = torch.randn(2, made.in_features)
    with torch.no_grad():
        assert made(x).dtype == torch.float64
        torch.testing.assert_close(made(x), by_hand(made, x), rtol=1e-5, atol=1e-5)
    made.bias = None
    agree(made)


def test_threads_share_what_is_kept() -> None:
    made, failures = layer("monarch", backend="dense"), []
    inputs = [torch.randn(batch, made.in_features) for batch in (1, 3, 8, 20)]
    wanted = [by_hand(made, x) for x in inputs]

    def work(start: int) -> None:
        try:
            with torch.no_grad():
                for step in range(60):
                    place = (start + step) % len(inputs)
                    torch.testing.assert_close(made(inputs[place]).double(), wanted[place], rtol=1e-4, atol=1e-5)
                    if step % 20 == 10:
                        made._cache.clear()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_what_is_tuned_is_chosen_from_then_on(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    made = layer()
    agree(made)
    monkeypatch.setattr(
        tuning, "time_in_turns", lambda tasks, device: {n: 0.1 if n == "counting" else 1.0 for n in tasks}
    )
    tuning.tune(made.patterns[0], 5)
    agree(made)
    assert counting.times == 1
    agree(made, (300,))  # of a size that was not tuned
    assert counting.times == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_whole_product_is_one_matrix_where_that_is_cheaper(dtype: torch.dtype, layout: str) -> None:
    torch.manual_seed(0)
    chain = [Pattern(1, 32, 8, 2), Pattern(2, 8, 8, 1)]
    made = KroneckerLinear(chain, layout=layout, backend="dense", dtype=dtype).eval()
    assert is_whole_cheaper(chain, [DENSE, DENSE], made.factors[0])  # 64 · 16 instead of 64 · 16 + 16 · 16
    x = torch.randn(9, 16).to(dtype)
    x = x if layout == "batch_first" else x.T
    with torch.no_grad():
        found, want = made(x).double(), by_hand(made, x)
    (prepared,) = made._cache._prepared.values()
    assert len(prepared.steps) == 1
    assert float((found - want).norm()) <= 2 * torch.finfo(dtype).eps * float(want.norm())


def test_factors_stay_apart_where_that_is_cheaper() -> None:
    made = layer("low rank", backend="dense")
    agree(made)
    (prepared,) = made._cache._prepared.values()
    both = [DENSE, DENSE]
    assert len(prepared.steps) == 2 and not is_whole_cheaper(made.patterns, both, made.factors[0])
    square = [Pattern(1, 192, 48, 2), Pattern(2, 48, 192, 1)]  # of rank 96
    assert not is_whole_cheaper(square, both, torch.empty(0))
    on_gpu: Any = type("OnGpu", (), {"is_cuda": True, "dtype": torch.float16})()
    assert is_whole_cheaper(square, both, on_gpu)  # 768 numbers moved instead of 960
    on_gpu.dtype = torch.float32
    assert not is_whole_cheaper(square, both, on_gpu)


def test_what_was_tuned_is_not_replaced_by_one_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_cache, "is_whole_cheaper", lambda *_: True)
    made = layer("monarch")
    agree(made)
    (prepared,) = made._cache._prepared.values()
    assert len(prepared.steps) == 1  # one matrix of the whole
    monkeypatch.setattr(tuning, "time_in_turns", lambda tasks, device: {n: 0.1 if n == "bmm" else 1.0 for n in tasks})
    tuning.tune(made.patterns[0], 5)
    agree(made)
    assert [len(prepared.steps) for prepared in made._cache._prepared.values()] == [1, 2]


def test_of_ways_that_are_not_dense_the_numbers_that_they_move_are_counted() -> None:
    on_gpu: Any = type("OnGpu", (), {"is_cuda": True, "dtype": torch.float16})()
    bmm = BACKENDS["bmm"]
    assert is_whole_cheaper(butterfly(4096), [bmm] * 12, on_gpu)  # 4096² multiplications, and 12 · 8192 numbers
    assert not is_whole_cheaper(butterfly(8192), [bmm] * 13, on_gpu)
    assert not is_whole_cheaper(butterfly(16), [bmm] * 4, torch.empty(0))
