"""Whatever users have in Python becomes the same samples in memory, or a clear error."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tamis.errors import InvalidInput
from tamis.training import as_data, load_data
from tamis.training.collection import collect

X, Y = torch.rand(10, 3, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3
PAIRS = TensorDataset(X, Y)


class Refilled:
    """Fills the same tensor with each batch."""

    def __iter__(self) -> Any:
        memory = torch.empty(5, 3)
        for start in (0, 5):
            memory.copy_(X[start : start + 5])
            yield memory, Y[start : start + 5]


FORMS = {
    "a pair": (X, Y),
    "arrays": (X.numpy(), Y.numpy().astype(np.uint8)),
    "float64": (X.double(), Y),
    "a mapping": {"features": X, "label": Y},
    "a Dataset": PAIRS,
    "a DataLoader": DataLoader(PAIRS, 4),
    "one that shuffles": DataLoader(PAIRS, 4, shuffle=True, drop_last=True),
    "a loader that refills its memory": Refilled(),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_same(form: str) -> None:
    stored = collect(FORMS[form], "mine")
    assert torch.equal(stored.inputs, X) and torch.equal(stored.labels, Y)
    assert (stored.classes, stored.has_labels) == (3, True)


@pytest.mark.parametrize("form", [X, TensorDataset(X), DataLoader(TensorDataset(X), 4), [X[:5], X[5:]]])
def test_labels_may_be_unknown(form: Any) -> None:
    stored = collect(form, "mine")
    assert torch.equal(stored.inputs, X) and not stored.has_labels and not stored.labels.any()


def test_numbers_of_words_stay_whole() -> None:
    words = torch.tensor([[3, 1], [2, 2**40]])
    data = as_data(words, "mine")
    assert torch.equal(data.batch(torch.arange(2))[0], words) and data.example.dtype is torch.int64


def test_what_is_kept_is_a_copy() -> None:
    mine = X.clone()
    stored = collect(mine, "mine")
    mine.zero_()
    assert torch.equal(stored.inputs, X)


def test_data_and_names_are_taken_too() -> None:
    data = load_data("digits:test[:5]")
    assert as_data(data, "other") is data and as_data("digits:test[:5]", "other").name == "digits:test[:5]"
    assert as_data((X, Y), "mine").name == "mine"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (5, "mine must be a tensor of inputs, a pair .* a DataLoader, got int: 5"),
        ([], "mine is empty: not one sample came"),
        (torch.zeros(0, 3), "mine is empty"),
        (torch.zeros(4, 3, 2, 2, dtype=torch.uint8), r"mine has uint8 inputs: convert them .*\(x / 255\).float\(\)"),
        (torch.tensor([[0.0, torch.nan]]), "mine has inputs that are not finite"),
        (torch.zeros(3), r"batches N×… of numbers, got torch.float32 \(3,\)"),
        ([X, X[:, :2]], r"inputs of several shapes: \(2,\), \(3,\)"),
        ([(X, Y), X], "labels in 1 of 2 batches"),
        ([(X, Y, Y)], "a batch must be inputs and labels, got 3 items"),
        ((X, Y[:5]), r"10 samples need as many class numbers from 0 on, got torch.int64 of shape \(5,\)"),
        ((X, X[:, 0]), "class numbers from 0 on, got torch.float32"),
        ((X, -Y), "class numbers from 0 on"),
        ([(X, ["a"] * 10)], "labels must be class numbers, got"),
    ],
)
def test_what_is_wrong_is_said(source: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        collect(source, "mine")
