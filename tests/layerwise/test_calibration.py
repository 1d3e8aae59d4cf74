"""Calibration data in every form that is promised, and what is said of data that will not do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tamis
from tamis.errors import DataNotFound, InvalidInput
from tamis.graph import Network
from tamis.layerwise.calibration import FEWEST_BATCHES, LARGEST_BATCH, read_calibration
from tamis.training import Data, load_data
from tamis.training.models import gcn, mlp


class Two(nn.Module):
    """Of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.first(x) + self.second(y)


class OfWhole(nn.Module):
    """Of two inputs with different numbers of rows, which are all one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.first(x).sum(0) + self.second(y).sum(0)


class Words(nn.Module):
    """Of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(7, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x))


@pytest.fixture(scope="module")
def net() -> Network:
    return tamis.trace(nn.Linear(3, 2), torch.zeros(1, 3))


@pytest.fixture(scope="module")
def two() -> Network:
    return tamis.trace(Two(), (torch.zeros(2, 3), torch.zeros(2, 4)))


@pytest.fixture(scope="module")
def whole() -> Network:
    return tamis.trace(OfWhole(), (torch.zeros(5, 3), torch.zeros(6, 4)))


@pytest.fixture(scope="module")
def digits_net() -> Network:
    return tamis.trace(mlp((64, 4, 10)), load_data("digits:test[:1]").example)


def joined(calibration: Any, net: Network) -> tuple[Tensor, ...]:
    """All batches, put together."""
    return tuple(torch.cat(parts) for parts in zip(*read_calibration(calibration, net), strict=True))


def sizes(calibration: Any, net: Network) -> list[int]:
    return [len(batch[0]) for batch in read_calibration(calibration, net)]


X = torch.arange(30.0).reshape(10, 3)
Y = torch.arange(10) % 2


# -- forms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "calibration",
    [
        X,
        (X,),
        X.double(),
        X.numpy(),
        X.numpy().astype(np.float64),
        X.double().requires_grad_(),
        [X[:4], X[4:]],
        [(X[:4],), [X[4:]]],
        [(X[:4], torch.zeros(4)), (X[4:], "labels of any kind")],
        DataLoader(TensorDataset(X, torch.arange(10)), batch_size=4),
        Data(X, torch.zeros(10, dtype=torch.int64), "mine"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_input(net: Network, calibration: Any) -> None:
    (found,) = joined(calibration, net)
    assert torch.equal(found, X) and found.dtype is torch.float32


def test_a_generator(net: Network) -> None:
    def batches() -> Iterator[Tensor]:
        yield from X.split(3)

    assert torch.equal(joined(batches(), net)[0], X)


def test_a_loader_may_use_its_memory_again(net: Network) -> None:
    buffer = torch.empty_like(X[:2])
    refilled = (buffer.copy_(part) for part in X.split(2))
    kept = list(read_calibration(refilled, net))
    assert torch.equal(torch.cat([batch for (batch,) in kept]), X)


@pytest.mark.parametrize("of", [lambda x: x, lambda x: x.numpy()], ids=["tensors", "arrays"])
def test_several_inputs(two: Network, of: Any) -> None:
    y = torch.randn(10, 4)
    first, second = joined((of(X), of(y)), two)
    assert torch.equal(first, X) and torch.equal(second, y)
    assert [len(x) for x, _ in read_calibration((of(X), of(y)), two)] == [2] * 5


def test_batches_of_several_inputs(two: Network) -> None:
    y, labels = torch.randn(10, 4), torch.arange(10)
    for loader in ([(X, y)], [[X, y]], DataLoader(TensorDataset(X, y, labels), batch_size=3)):
        first, second = joined(loader, two)
        assert torch.equal(first, X) and torch.equal(second, y)


def test_datasets_and_their_names(digits_net: Network, tmp_path: Path) -> None:
    data = load_data("digits:train[:50]")
    for calibration in ("digits:train[:50]", data):
        assert torch.equal(joined(calibration, digits_net)[0], data.normalised())
    path = tmp_path / "mine.npz"
    np.savez(path, x=data.inputs.numpy().astype(np.float32), y=data.labels.numpy())
    expected = load_data(str(path)).normalised()
    for calibration in (str(path), path):
        assert torch.equal(joined(calibration, digits_net)[0], expected)
    assert torch.equal(joined(f"{path}[:7]", digits_net)[0], expected[:7])


def test_a_file_needs_no_labels(digits_net: Network, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((4, 1, 8, 8), dtype=np.float32)
    np.savez(tmp_path / "mine.npz", x=x)
    batches = list(read_calibration(tmp_path / "mine.npz", digits_net))
    assert np.array_equal(torch.cat([batch for (batch,) in batches]).numpy(), x)


def test_a_graph_is_one_sample() -> None:
    net = tamis.trace(gcn(), torch.zeros(12, 8))
    assert not net.batched
    x = torch.randn(12, 8)
    assert torch.equal(next(read_calibration(x, net))[0], x) and sizes(x, net) == [12]
    assert sizes([x, x + 1], net) == [12, 12]
    with pytest.raises(InvalidInput, match=r"batch 1: input .* must have shape \(12, 8\), got \(24, 8\)"):
        list(read_calibration(torch.cat([x, x]), net))


def test_inputs_of_a_whole_need_not_be_of_one_length(whole: Network) -> None:
    x, y = torch.randn(5, 3), torch.randn(6, 4)
    (batch,) = read_calibration((x, y), whole)
    assert torch.equal(batch[0], x) and torch.equal(batch[1], y)


def test_integers(net: Network) -> None:
    words = tamis.trace(Words(), torch.zeros(2, 5, dtype=torch.int64))
    x = torch.randint(7, (10, 5))
    found = joined(x, words)[0]
    assert torch.equal(found, x) and found.dtype is torch.int64
    with pytest.raises(InvalidInput, match=r"batch 1: input 'x' is torch.float32, the network takes torch.int64"):
        list(read_calibration(x.float(), words))
    for wrong in (X.to(torch.uint8), X.long(), X.bool()):
        with pytest.raises(InvalidInput, match=rf"input 'input' is {wrong.dtype}, the network takes torch.float32"):
            list(read_calibration(wrong, net))


@pytest.mark.parametrize("samples", [1, 2, 4, 5, 6, 8, 11, 16, 127, 639, 640, 641, 1000])
def test_batches_are_not_too_large_and_enough_to_hold_one_out(net: Network, samples: int) -> None:
    found = sizes(torch.zeros(samples, 3), net)
    assert sum(found) == samples and max(found) <= LARGEST_BATCH
    assert len(found) >= min(samples, FEWEST_BATCHES)
    assert found == sizes(Data(torch.zeros(samples, 3), torch.zeros(samples, dtype=torch.int64), "mine"), net)


def test_nothing_is_changed(net: Network) -> None:
    x = X.clone().requires_grad_()
    list(read_calibration(x, net))
    assert torch.equal(x, X) and x.requires_grad and x.grad is None


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite(net: Network, value: float) -> None:
    x = X.clone()
    x[7, 1] = value
    x[9, 2] = value
    expected = rf"calibration batch 4: input 'input' has 1 entries that are not finite, the first at \(1, 1\): {value}"
    with pytest.raises(InvalidInput, match=expected):
        list(read_calibration(x, net))


@pytest.mark.parametrize("calibration", [[], iter(()), DataLoader([]), torch.zeros(0, 3), np.zeros((0, 3)), ()])
def test_no_data(net: Network, calibration: Any) -> None:
    with pytest.raises(InvalidInput, match="there is no calibration data: it has no batches"):
        list(read_calibration(calibration, net))


def test_an_empty_batch_among_others(net: Network) -> None:
    with pytest.raises(InvalidInput, match=r"calibration batch 2 is empty: input 'input' has shape \(0, 3\)"):
        list(read_calibration([X, X[:0], X], net))


@pytest.mark.parametrize("calibration", [torch.zeros(10, 4), torch.zeros(10), torch.zeros(10, 3, 1), [X, X.T]])
def test_wrong_shapes(net: Network, calibration: Any) -> None:
    with pytest.raises(InvalidInput, match=r"calibration batch [12]: input 'input' must have shape \(batch, 3\), got "):
        list(read_calibration(calibration, net))


def test_a_number(net: Network) -> None:
    with pytest.raises(InvalidInput, match="there is no calibration data"):
        list(read_calibration(torch.tensor(1.0), net))


@pytest.mark.parametrize("calibration", [None, 5, 0.5, object()])
def test_wrong_kinds(net: Network, calibration: Any) -> None:
    kind = type(calibration).__name__
    with pytest.raises(InvalidInput, match=f"a tensor, a dataset or its name, or a DataLoader, got {kind}"):
        list(read_calibration(calibration, net))


@pytest.mark.parametrize("batch", ["batch", 5, None, (), (np.zeros((2, 3)),), ("x", X)])
def test_wrong_kinds_of_batches(net: Network, batch: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"must be 1 tensor\(s\) of inputs, .*; got {type(batch).__name__}"):
        list(read_calibration([batch], net))


@pytest.mark.parametrize(
    "calibration",
    [TensorDataset(X, Y), [{"label": Y, "image": X}], [{"input": X, "mask": X}], DataLoader([{"x": x} for x in X], 4)],
    ids=["a Dataset", "a mapping", "by the input's name", "a loader of mappings"],
)
def test_datasets_and_mappings(net: Network, calibration: Any) -> None:
    assert torch.equal(torch.cat([batch[0] for batch in read_calibration(calibration, net)]), X)


def test_wrong_numbers_of_inputs(net: Network, two: Network) -> None:
    with pytest.raises(InvalidInput, match=r"takes 1 input\(s\) \['input'\], got 2"):
        list(read_calibration((X, X), net))
    with pytest.raises(InvalidInput, match=r"takes 2 input\(s\) \['x', 'y'\], got 1"):
        list(read_calibration(X, two))
    with pytest.raises(InvalidInput, match=r"must be 2 tensor\(s\) of inputs, .*; got Tensor \['Tensor'\]"):
        list(read_calibration([X], two))


def test_different_lengths(two: Network) -> None:
    with pytest.raises(InvalidInput, match=r"different numbers of samples: \[10, 9\]"):
        list(read_calibration((X, torch.zeros(9, 4)), two))


def test_data_that_is_not_there(net: Network, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="nowhere"):
        list(read_calibration(tmp_path / "nowhere.npz", net))
    with pytest.raises(DataNotFound, match="no_such_data"):
        list(read_calibration("no_such_data", net))
