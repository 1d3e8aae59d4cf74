"""Data in every form gives the same samples, the same fingerprint, and clear errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import tamis
from tamis.errors import InvalidInput
from tamis.training import load_data
from tamis.verification.samples import BATCH, Batch, Fingerprint, iterate_batches

X = torch.randn(BATCH + 17, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(len(X)) % 3


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    return tamis.trace(nn.Linear(6, 3), X[:1])


def whole(inputs: Any, labels: Any, net: tamis.Network) -> tuple[Tensor, Tensor | None]:
    batches = list(iterate_batches(inputs, labels, net))
    labelled = all(batch.labels is not None for batch in batches)
    return (
        torch.cat([batch.inputs[0] for batch in batches]),
        torch.cat([batch.labels for batch in batches if batch.labels is not None]) if labelled else None,
    )


def loader(*tensors: Tensor) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*tensors), batch_size=50)


@pytest.mark.parametrize(
    "form", ["tensors", "arrays", "a loader", "a Dataset", "mappings", "an .npz file", ".npy files", "float64"]
)
def test_all_forms_give_the_same(form: str, net: tamis.Network, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X.numpy(), y=Y.numpy())
    np.save(tmp_path / "x.npy", X.numpy())
    np.save(tmp_path / "y.npy", Y.numpy())
    forms = {
        "tensors": (X, Y),
        "arrays": (X.numpy(), Y.numpy()),
        "a loader": (loader(X, Y), None),
        "a Dataset": (TensorDataset(X, Y), None),
        "mappings": ([{"target": Y[:9], "features": X[:9]}, {"target": Y[9:], "features": X[9:]}], None),
        "an .npz file": (str(tmp_path / "data.npz"), None),
        ".npy files": (f"{tmp_path / 'x.npy'},{tmp_path / 'y.npy'}", None),
        "float64": (X.double(), Y.int()),
    }
    inputs, labels = whole(*forms[form], net)
    assert torch.equal(inputs, X) and labels is not None and torch.equal(labels, Y)


def test_a_dataset_brings_its_labels() -> None:
    data = load_data("digits:test[:300]")
    net = tamis.trace(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data.example)
    inputs, labels = whole(data, None, net)
    assert torch.equal(inputs, data.normalised()) and labels is not None and torch.equal(labels, data.labels)


@pytest.mark.parametrize("form", ["tensors", "a loader", "an .npz file"])
def test_labels_may_be_unknown(form: str, net: tamis.Network, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X.numpy())
    source = {"tensors": X, "a loader": loader(X), "an .npz file": str(tmp_path / "data.npz")}[form]
    inputs, labels = whole(source, None, net)
    assert torch.equal(inputs, X) and labels is None


@given(cuts=st.lists(st.integers(1, len(X) - 1), unique=True).map(sorted))
def test_the_fingerprint_does_not_depend_on_the_batches(cuts: list[int]) -> None:
    one, other = Fingerprint(), Fingerprint()
    one.add(Batch((X,), Y))
    for inputs, labels in zip(X.tensor_split(cuts), Y.tensor_split(cuts), strict=True):
        other.add(Batch((inputs,), labels))
    assert (one.inputs, one.labels) == (other.inputs, other.labels)


@pytest.mark.parametrize("change", ["a bit", "the order", "a sample less", "the dtype", "the shape"])
def test_any_change_changes_the_fingerprint(change: str) -> None:
    flipped = X.clone()
    flipped.view(torch.int32)[5, 3] ^= 1
    changed = {
        "a bit": flipped,
        "the order": X.flip(0),
        "a sample less": X[:-1],
        "the dtype": X.double(),
        "the shape": X.view(-1, 2, 3),
    }[change]
    one, other = Fingerprint(), Fingerprint()
    one.add(Batch((X,), None))
    other.add(Batch((changed,), None))
    assert one.inputs != other.inputs


WRONG: dict[str, tuple[Any, Any, str]] = {
    "nothing": (X[:0], None, "there is no data"),
    "an empty batch": ([X[:0]], None, "batch 1 is empty"),
    "another shape": (torch.zeros(4, 5), None, r"batch 1: input .* must have shape .*6.* got \(4, 5\)"),
    "NaN": (torch.full((4, 6), torch.nan), None, r"is nan at \[0, 0\], which is not finite"),
    "integers": (torch.zeros(4, 6, dtype=torch.int64), None, "is torch.int64, the network takes torch.float32"),
    "too few labels": (X[:4], Y[:3], r"4 samples need as many labels, got shape \(3,\)"),
    "labels that are no numbers of classes": (X[:4], torch.zeros(4), "must be class numbers, got float32"),
    "a number": (3, None, "must be a tensor, a dataset or its name, or a DataLoader, got 3"),
    "labels beside a loader": (loader(X, Y), Y, "labels come with the batches of a DataLoader"),
    "a batch of something else": ([{X}], None, "a batch must be 1 tensor"),
    "a mapping without inputs": ([{"labels": Y}], None, "the network takes input, and a batch has labels: name what"),
    "more than labels": ([(X, Y, Y)], None, "and labels may follow; got 3 items"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said(wrong: str, net: tamis.Network) -> None:
    inputs, labels, message = WRONG[wrong]
    with pytest.raises(InvalidInput, match=message):
        list(iterate_batches(inputs, labels, net))


def test_a_network_without_batches_is_refused() -> None:
    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    net = tamis.trace(Mixing(), torch.randn(4, 3))
    with pytest.raises(InvalidInput, match="takes no batches"):
        list(iterate_batches(torch.randn(4, 3), None, net))
