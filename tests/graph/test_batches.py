"""Batches in every form that loaders give them are told apart into inputs and labels."""

from collections import UserDict
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tamis.errors import InvalidInput
from tamis.graph.batches import LABELS, batches_from, batches_in, split_batch

X, Y, Z = torch.rand(4, 3), torch.arange(4), torch.rand(4, 2)


@pytest.mark.parametrize(
    "batch",
    [(X, Y), [X, Y], {"x": X, "y": Y}, {"y": Y, "image": X}, {"image": X, "labels": Y, "name": ["a"] * 4}]
    + [UserDict({label: Y, "pixels": X}) for label in LABELS],
)
def test_inputs_and_labels(batch: Any) -> None:
    inputs, rest = split_batch(batch, ("x",), "data")
    assert len(inputs) == len(rest) == 1 and inputs[0] is X and rest[0] is Y


@pytest.mark.parametrize("batch", [X, (X,), [X], {"x": X}, {"anything": X, "id": 5}])
def test_inputs_alone(batch: Any) -> None:
    inputs, rest = split_batch(batch, ("x",), "data")
    assert inputs[0] is X and rest == ()


def test_several_inputs_are_found_by_their_names_and_y_may_be_one() -> None:
    inputs, rest = split_batch({"label": Y, "y": Z, "x": X}, ("x", "y"), "data")
    assert inputs[0] is X and inputs[1] is Z and rest[0] is Y


@pytest.mark.parametrize(
    ("batch", "names", "message"),
    [
        ({"a": X, "b": Z, "label": Y}, ("x",), "data: the network takes x, and a batch has a, b, label: name what"),
        ({"x": X, "label": Y}, ("x", "mask"), "the network takes x, mask, and a batch has x, label"),
        ({"x": 5}, ("x",), "the network takes x, and a batch has x"),
        ({"label": Y}, ("x",), "the network takes x, and a batch has label"),
        ("text", ("x",), r"data: a batch must be 1 tensor\(s\) of inputs, and labels may follow; got str"),
        ((torch.tensor(3.0),), ("x",), r"must be 1 tensor\(s\) of inputs"),
        (X, ("x", "mask"), r"must be 2 tensor\(s\) of inputs, .* got Tensor \['Tensor'\]"),
    ],
)
def test_what_cannot_be_told_apart(batch: Any, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        split_batch(batch, names, "data")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


class Strange(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        return object()


@pytest.mark.parametrize("dataset", [TensorDataset(X, Y), Stream()])
def test_the_samples_of_a_dataset(dataset: Dataset[Any]) -> None:
    batches = [split_batch(batch, ("x",), "data") for batch in batches_in(dataset, 3, "data")]
    assert [len(inputs[0]) for inputs, _ in batches] == [3, 1]
    assert torch.equal(torch.cat([inputs[0] for inputs, _ in batches]), X)
    assert torch.equal(torch.cat([rest[0] for _, rest in batches]), Y)


def test_samples_that_are_no_tensors() -> None:
    with pytest.raises(InvalidInput, match=r"data: samples of Strange do not go into a batch: .* a transform"):
        list(batches_in(Strange(), 2, "data"))


class Ragged(Dataset[Any]):
    """Samples of several sizes."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        return torch.zeros(place + 1)


class Broken(Ragged):
    """Looks for what is not there."""

    def __getitem__(self, place: int) -> Any:
        return {"image": X[place]}["levels=3"]


def test_samples_of_several_sizes() -> None:
    with pytest.raises(
        InvalidInput, match=r"'m:d': samples of Ragged do not .* got \[1\] at entry 0 and \[2\] at entry 1"
    ):
        list(batches_in(Ragged(), 2, "'m:d'"))
    with pytest.raises(InvalidInput, match=r"'m:d' failed: RuntimeError: stack expects each tensor to be equal size"):
        list(batches_from(DataLoader(Ragged(), 2), "'m:d'"))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_code_of_the_user_raises_is_said_of_its_data(workers: int) -> None:
    with pytest.raises(InvalidInput, match=r"^'m:d' failed: KeyError: 'levels=3'$"):
        list(batches_from(DataLoader(Broken(), 2, num_workers=workers), "'m:d'"))
    with pytest.raises(InvalidInput, match=r"^'m:d' failed: KeyError: 'levels=3'$"):
        list(batches_in(Broken(), 2, "'m:d'"))


MANY = TensorDataset(torch.arange(40))


class Shuffled:
    """Batches of the user, in another order each time."""

    def __init__(self) -> None:
        self.asked = 0

    def __iter__(self) -> Any:
        self.asked += 1
        return iter([[self.asked, 0], [1]])


@pytest.mark.parametrize(
    ("loader", "sampler"),
    [
        (DataLoader(MANY, 8, sampler=SubsetRandomSampler(range(40))), "SubsetRandomSampler"),
        (DataLoader(MANY, 8, sampler=WeightedRandomSampler([1.0] * 40, 40)), "WeightedRandomSampler"),
        (DataLoader(MANY, 8, sampler=RandomSampler(MANY, num_samples=10)), "RandomSampler"),
        (DataLoader(MANY, 8, sampler=RandomSampler(range(10))), "RandomSampler"),
        (DataLoader(MANY, 8, sampler=RandomSampler(MANY, replacement=True)), "RandomSampler"),
        (DataLoader(MANY, batch_sampler=BatchSampler(SubsetRandomSampler(range(9)), 4, False)), "SubsetRandomSampler"),
        (DataLoader(MANY, batch_sampler=Shuffled()), "Shuffled"),  # type: ignore[arg-type]
    ],
)
def test_what_is_drawn_at_random_is_refused(loader: DataLoader[Any], sampler: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^'m:d' draws its samples by a {sampler}, .* pass its Dataset, or a Data"):
        list(batches_from(loader, "'m:d'"))
    assert list(batches_from(loader, "calibration", as_drawn=True))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(MANY, 8, shuffle=True, drop_last=True),
        DataLoader(MANY, batch_sampler=BatchSampler(RandomSampler(MANY), 7, True)),
        DataLoader(MANY, batch_sampler=BatchSampler(SequentialSampler(MANY), 7, False)),
        DataLoader(MANY, batch_sampler=[[place] for place in range(40)]),
    ],
)
def test_the_order_is_that_of_the_dataset(loader: DataLoader[Any]) -> None:
    assert torch.equal(torch.cat([batch for (batch,) in batches_from(loader, "data")]), torch.arange(40))


def test_a_stream_has_its_own_order() -> None:
    assert len(list(batches_from(DataLoader(Stream(), 3), "data"))) == 2
