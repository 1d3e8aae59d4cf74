"""Messages: every bit of a network comes back from exactly the bits that were counted, and these are few."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from any_tensors import masked_tensors, quantized_tensors, raw, same
from artifact.literal import Reader, read_tensor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tamis
from tamis.artifact import arithmetic
from tamis.artifact.arithmetic import Receiver, Sender
from tamis.artifact.code_length import Message, decode, message
from tamis.artifact.codes import Codes
from tamis.artifact.compressed import Compressed
from tamis.artifact.encodings import Decoded
from tamis.artifact.tensor_message import receive_tensor, send_tensor
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters
from tamis.training.models import resnet20

some = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
anything = (masked_tensors() | quantized_tensors()).filter(lambda each: each.tensor.numel() > 0)


def sent(content: Decoded) -> tuple[bytes, int]:
    sender = Sender()
    send_tensor(sender, content.tensor, content.codes, content.mask)
    data, bits, _ = sender.finish()
    return data, bits


def received(data: bytes, like: Tensor) -> tuple[Tensor, int]:
    receiver = Receiver(data)
    return receive_tensor(receiver, tuple(like.shape), like.dtype), receiver.finish()


def binary(told: Message) -> str:
    return "".join(f"{byte:08b}" for byte in told.data)[: told.bits]


@cache
def layer(rows: int, columns: int, dtype: torch.dtype, bias: bool) -> tamis.Network:
    return tamis.trace(nn.Linear(columns, rows, bias).to(dtype), torch.zeros(2, columns, dtype=dtype))


def linear(weight: Tensor, bias: Tensor | None = None) -> tamis.Network:
    net = layer(weight.shape[0], weight.shape[1], weight.dtype, bias is not None)
    return net.with_params({"weight": weight} | ({} if bias is None else {"bias": bias}))


def bits_of(weight: Tensor) -> int:
    return message(linear(weight)).bits


def assert_told(small: Any, prior: Any = None) -> Message:
    told_it = message(small, prior)
    network = small.network if isinstance(small, Compressed) else small
    blank = {name: torch.empty_like(value, device="meta") for name, value in network.params.items()}
    for like in (network, blank):
        again = decode(told_it.data, like, prior)
        assert again.bits == told_it.bits == sum(told_it.parts.values())
        assert again.keys() == network.params.keys()
        assert all(same(again[name], value) for name, value in network.params.items())
    assert len(told_it.data) == math.ceil(told_it.bits / 8) and min(told_it.parts.values()) >= 0
    return told_it


# -- one tensor ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["as they are", "as bytes"])
def long_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "as bytes":
        monkeypatch.setattr(arithmetic, "MOST_STEPS", 100)
        monkeypatch.setattr(arithmetic, "MOST_FIELD_BITS", 100)


@pytest.mark.usefixtures("long_rows")
@some
@given(anything)
def test_any_tensor_comes_back_bit_for_bit(content: Decoded) -> None:
    data, bits = sent(content)
    again, used = received(data, content.tensor)
    assert same(again, content.tensor) and used == bits


@some
@given(anything, st.binary(min_size=1, max_size=9))
def test_a_reader_written_from_the_specification_reads_the_same(content: Decoded, more: bytes) -> None:
    data, bits = sent(content)
    reader = Reader("".join(f"{byte:08b}" for byte in data)[:bits] + "".join(f"{byte:08b}" for byte in more))
    dtype = str(content.tensor.dtype).removeprefix("torch.")
    found = read_tensor(reader, tuple(content.tensor.shape), dtype)
    assert reader.end() == bits
    if isinstance(found, bytes):
        assert found == raw(content.tensor)
        return
    (number,), levels, units, scales, indices = found
    dtyped = {8: np.int64, 4: np.int32, 2: np.int16}[content.tensor.itemsize]

    def floats(row: list[int], shape: list[int]) -> Tensor:
        whole = np.array(row, dtype=np.uint64).astype(f"u{content.tensor.itemsize}").view(dtyped)
        return torch.from_numpy(whole).view(content.tensor.dtype).reshape(shape)

    steps = number - 1
    regular = torch.tensor([(2 * j - steps) / steps for j in range(number)], dtype=torch.float64)
    its_levels = floats(levels, [number]) if levels else regular.to(content.tensor.dtype)
    kept = torch.tensor(indices).reshape(content.tensor.shape) >= 0
    places = torch.tensor(indices).clamp_min(0).reshape(content.tensor.shape)
    codes = Codes(places.to(torch.uint8 if number <= 256 else torch.int32), its_levels, floats(scales, units))
    assert same(codes.values(kept), content.tensor)


@pytest.mark.usefixtures("long_rows")
@some
@given(anything, st.binary(max_size=60), st.data())
def test_forged_bits_are_a_tensor_of_the_right_kind_or_refused(
    content: Decoded, noise: bytes, data: st.DataObject
) -> None:
    told_it, _ = sent(content)
    at = data.draw(st.integers(0, len(told_it)))
    for forged in (noise, told_it[:at], told_it[:at] + noise, noise + told_it[at:]):
        try:
            again, used = received(forged, content.tensor)
        except CorruptArtifact:
            continue
        assert again.shape == content.tensor.shape and again.dtype is content.tensor.dtype and used <= 8 * len(forged)


# -- how short -----------------------------------------------------------------------------------------------------


def ternary(count: int, seed: int = 0) -> Tensor:
    """Indices of three levels that carry 1.2 bits each."""
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(torch.tensor([0.155, 0.69, 0.155]), count, True, generator=generator).byte()


def entropy(indices: Tensor) -> float:
    shares = indices.reshape(-1).bincount() / indices.numel()
    return -float((shares * shares.log2()).nan_to_num().sum()) * indices.numel()


def test_a_thousand_ternary_weights_take_little_more_than_their_entropy() -> None:
    indices = ternary(1000).reshape(20, 50)
    assert entropy(indices) == pytest.approx(1200, abs=40)
    codes = Codes(indices, torch.tensor([-1.0, 0, 1]), torch.tensor([[0.0371]]))
    net = linear(codes.values())
    for small in (Compressed(net, codes={"weight": codes}), net):
        assert assert_told(small).bits < entropy(indices) + 60  # a scale of 24 + 8 bits, two branches
    assert entropy(indices) - 12 < message(net).bits


def test_zeros_are_told_once_whether_they_are_pruned_or_a_level() -> None:
    indices = ternary(2000).reshape(40, 50)
    codes = Codes(indices, torch.tensor([-1.0, 0, 1]), torch.tensor([[0.0371]]))
    mask = indices != 1
    plain = Compressed(linear(codes.values()), codes={"weight": codes})
    pruned = Compressed(linear(codes.values()), {"weight": mask}, codes={"weight": codes})
    assert abs(message(plain).bits - assert_told(pruned).bits) <= 1
    binary_codes = Codes((indices == 2).byte(), torch.tensor([-1.0, 1]), torch.tensor([[0.0371]]))
    without_zero = Compressed(linear(binary_codes.values(mask)), {"weight": mask}, codes={"weight": binary_codes})
    assert assert_told(without_zero).bits < entropy(indices) + 60


@pytest.mark.parametrize(
    ("number", "dtype"),
    [(2, torch.float32), (16, torch.float32), (3, torch.float64), (8, torch.bfloat16), (4, torch.bfloat16)],
)
def test_equispaced_levels_cost_one_scale(number: int, dtype: torch.dtype) -> None:
    """With their codes, or found in the weights; levels elsewhere cost numbers."""
    indices = torch.randint(number, (30, 40), generator=torch.Generator().manual_seed(0)).byte()
    indices[0, :number] = torch.arange(number)
    steps = number - 1
    levels = torch.tensor([(2 * j - steps) / steps for j in range(number)], dtype=torch.float64).to(dtype)
    codes = Codes(indices, levels, torch.tensor([[0.0371]], dtype=dtype))
    net = linear(codes.values())
    scale = 8 * dtype.itemsize + 6 + 4  # and exponents of 11 bits
    budget = 1200 * math.log2(number) + scale + number * 7 + 10
    for small in (Compressed(net, codes={"weight": codes}), net):
        assert assert_told(small).bits < budget


def test_scales_for_each_row_are_found_and_cost_what_they_need() -> None:
    signs = torch.where(ternary(2000).reshape(40, 50) == 1, -1.0, 1.0)
    scales = torch.rand(40, 1, generator=torch.Generator().manual_seed(0)) + 0.1
    any_scale, short, power = (
        bits_of(signs * each) for each in (scales, scales.bfloat16().float(), torch.full((40, 1), 0.5))
    )
    weights = 2000 * 0.9 + 20
    assert any_scale < weights + 40 * (23 + 3) + 30
    assert short < weights + 40 * (7 + 3) + 30 and power < weights + 30
    codes = Codes((signs > 0).byte(), torch.tensor([-1.0, 1]), scales)
    assert message(Compressed(linear(codes.values()), codes={"weight": codes})).bits <= any_scale + 1


@pytest.mark.parametrize(
    ("weight", "most"),
    [
        (torch.zeros(40, 50), 16),
        (torch.full((40, 50), 0.1), 40),
        (torch.randn(40, 50, generator=torch.Generator().manual_seed(0)), 2000 * (1 + 23 + 2.8)),
        (torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).bfloat16().float(), 2000 * (1 + 7 + 2.8)),
        (torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).half().float(), 2000 * (1 + 10 + 2.9)),
        (torch.randint(-7, 8, (40, 50), generator=torch.Generator().manual_seed(0)).float(), 2000 * 4 + 200),
        (torch.eye(50)[:40] * torch.rand(50, generator=torch.Generator().manual_seed(0)), 40 * 28 + 2000 * 0.16),
    ],
    ids=["zeros", "constant", "float32", "bfloat16", "float16", "integers", "diagonal"],
)
def test_what_numbers_need_and_no_more(weight: Tensor, most: float) -> None:
    assert assert_told(linear(weight)).bits < most + 20


# -- networks ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def convolutional() -> tuple[tamis.Network, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Flatten()
    )
    module.append(nn.Linear(4 * 16, 10)).train()(torch.randn(16, 2, 8, 8))
    data = torch.randn(20, 2, 8, 8)
    return tamis.trace(module.eval(), data[:2]), data


@pytest.fixture(scope="module")
def dense_bits(convolutional: tuple[tamis.Network, Tensor]) -> int:
    net, _ = convolutional
    dense = assert_told(net)
    assert dense.bits < 8 * sum(value.nbytes for value in net.params.values())
    return dense.bits


@pytest.fixture(scope="module")
def pruned(convolutional: tuple[tamis.Network, Tensor], dense_bits: int) -> tuple[Compressed, int]:
    """A pruned network, and the bits of its message."""
    small = tamis.prune(convolutional[0], 0.8)
    bits = assert_told(small).bits
    assert bits < dense_bits
    return small, bits


@pytest.mark.parametrize("levels", [2, 3, 16])
def test_pruned_and_quantized_networks(
    convolutional: tuple[tamis.Network, Tensor], dense_bits: int, pruned: tuple[Compressed, int], levels: int
) -> None:
    net, data = convolutional
    quantized = tamis.quantize(net, data, levels=levels, method="msq", progress=False)
    both = tamis.quantize(pruned[0], data, levels=levels, method="msq", per="layer", progress=False)
    assert assert_told(quantized).bits < dense_bits and assert_told(both).bits < pruned[1]
    assert {"6.weight/indices", "6.weight/scales", "1.running_var/values"} <= message(quantized).parts.keys()


def test_what_the_prior_has_costs_one_bit(convolutional: tuple[tamis.Network, Tensor]) -> None:
    net, _ = convolutional
    assert assert_told(net, net).bits == len(net.params)
    quantized = net.with_params({"6.weight": net.params["6.weight"].sign() * 0.1})
    alone = {name: value for name, value in net.params.items() if name != "6.weight"}
    told_it = assert_told(quantized, net)
    assert told_it.bits < assert_told(quantized).bits
    assert sum(told_it.parts[f"{name}/prior"] for name in alone) in range(len(alone) - 1, len(alone) + 2)
    assert message(quantized, net.state_dict()).data == told_it.data
    assert assert_told(quantized, alone).bits <= told_it.bits  # no bit for what it does not have


def test_a_prior_is_one_bit_longer_where_it_does_not_help() -> None:
    net = linear(torch.randn(20, 30, generator=torch.Generator().manual_seed(0)))
    other = linear(torch.randn(20, 30, generator=torch.Generator().manual_seed(1)))
    assert message(net, other).bits - message(net).bits in (0, 1, 2)


def test_tied_weights_are_told_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x).relu())

    torch.manual_seed(0)
    model = Tied()
    net = tamis.trace(model, torch.zeros(2, 6))
    assert not any(name.startswith("two.weight") for name in assert_told(net).parts)
    assert message(net, model.state_dict()).bits == len(net.params)


@pytest.mark.slow
def test_resnet20(tmp_path: Any) -> None:
    torch.manual_seed(0)
    net = tamis.trace(resnet20(), torch.zeros(2, 3, 32, 32))
    pruned = tamis.prune(net, 0.9, by="magnitude")
    told_it = assert_told(pruned)
    pruned.save(tmp_path / "small.tamis")
    assert told_it.bits < 8 * pruned.nbytes


def test_all_dtypes_and_empty_tensors() -> None:
    state = {
        "empty": torch.zeros(0, 3),
        "flag": torch.tensor([True, False, True]),
        "count": torch.tensor(12345),
        "minus": torch.tensor([-(2**63), 2**63 - 1, 0]),
        "octets": torch.arange(256).byte(),
        "halves": torch.tensor([1.0, math.inf, math.nan, -0.0], dtype=torch.float16),
        "eights": torch.tensor([1.0, -0.5, 448.0]).to(torch.float8_e4m3fn),
        "doubles": torch.tensor([math.pi, 1e-310]).double(),
    }

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in state.items():
                self.register_buffer(name, value)

        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    net = tamis.trace(Held(), torch.zeros(2))
    assert set(net.params) == set(state)
    parts = assert_told(net).parts
    assert not any(name.startswith("empty") for name in parts) and parts["count/values"] < 23


# -- a code for bounds ---------------------------------------------------------------------------------------------


def test_no_message_is_the_beginning_of_another_and_kraft_holds() -> None:
    """Every network of three ternary weights, each with one of two scales and one of two biases."""
    net = linear(torch.zeros(1, 3), torch.zeros(1))
    messages = set()
    for weights in product([-1.0, 0.0, 1.0], repeat=3):
        for scale in (0.5, 0.1):
            weight = scale * torch.tensor(weights).reshape(1, 3).masked_fill(torch.tensor([weights]) == 0, 0)
            for bias in (torch.zeros(1), torch.tensor([0.3])):
                messages.add(binary(message(net.with_params({"weight": weight, "bias": bias}))))
    assert len(messages) == 2 * (2 * 26 + 1)
    assert not any(one.startswith(other) or other.startswith(one) for one, other in combinations(messages, 2))
    assert sum(2.0 ** -len(each) for each in messages) <= 1


def test_whatever_follows_changes_nothing(convolutional: tuple[tamis.Network, Tensor]) -> None:
    net, data = convolutional
    small = tamis.quantize(net, data, levels=3, method="msq", progress=False)
    told_it = message(small, net)
    rest = -told_it.bits % 8
    for more in (b"\xff" * 20, b"\0" * 20, bytes(range(50))):
        data_and_more = told_it.data[:-1] + bytes([told_it.data[-1] | more[0] & (1 << rest) - 1]) + more
        again = decode(data_and_more, net, net)
        assert again.bits == told_it.bits and all(same(again[name], value) for name, value in small.params.items())


def test_the_same_network_gives_the_same_message(convolutional: tuple[tamis.Network, Tensor]) -> None:
    net, data = convolutional
    small = tamis.quantize(net, data, levels=4, method="msq", progress=False)
    assert message(small).data == message(small).data
    shuffled = small.network.replace(params=dict(reversed(small.params.items())))
    assert message(Compressed(shuffled, small.masks, codes=small.codes)).data == message(small).data


def test_truncated_messages_are_refused(convolutional: tuple[tamis.Network, Tensor]) -> None:
    net, _ = convolutional
    told_it = message(net)
    for length in (0, 1, 10, len(told_it.data) // 2, len(told_it.data) - 1):
        with pytest.raises(CorruptArtifact, match="message"):
            decode(told_it.data[:length], net)


def test_wrong_arguments_are_named(convolutional: tuple[tamis.Network, Tensor]) -> None:
    net, _ = convolutional
    with pytest.raises(InvalidInput, match="message needs a Compressed or a Network, got Linear"):
        message(nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="got int"):
        decode(b"", 3)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameters, match=r"the prior has 7\.weight, which are not in the network"):
        message(net, {"7.weight": torch.zeros(2)})
    with pytest.raises(InvalidParameters, match=r"'6\.bias' is torch\.float32 of shape \(3,\) in the prior"):
        message(net, {"6.bias": torch.zeros(3)})
    with pytest.raises(InvalidParameters, match=r"'x' is torch\.complex64"):
        decode(b"", {"x": torch.zeros(2, dtype=torch.complex64)})
