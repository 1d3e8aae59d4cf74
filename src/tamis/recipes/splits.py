"""Data is split into parts for training, search and certification, without a sample in common."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from tamis.errors import InvalidInput
from tamis.training import Data, as_data


@dataclass(frozen=True)
class Splits:
    """Splits are the parts of the data that a recipe names.

    Attributes:
        train: what steps train on.
        held_out: what a search compares networks on; no step trains on it, and no certificate speaks of it. None where
            nothing is compared.
        calibration: some of `train`, for the steps that go layer by layer.
        test: what the certificate speaks of; no step and no search sees it.
        has_labels: whether the labels of `train` mean anything.
        test_has_labels: whether those of `test` do.
        digests: by name, what says which data it is.
    """

    train: Data
    held_out: Data | None
    calibration: Data
    test: Data
    has_labels: bool
    test_has_labels: bool
    digests: dict[str, dict[str, Any]]

    @property
    def searched(self) -> Data:
        """Return the held-out data, or raise InvalidInput where there is none: a search needs it."""
        if self.held_out is None:
            raise InvalidInput("a search needs data to compare networks on: say which part of it is held_out")
        return self.held_out


def load_splits(
    train: Any, test: Any, held_out: float | None, held_out_from: str, calibration: int, seed: int
) -> Splits:
    """Load the training data and the test data, and set part of one of them aside.

    Args:
        train, test: datasets, as `tamis.training.as_data` takes them.
        held_out: which part is set aside; None: none is.
        held_out_from: of what: "train" or "test".
        calibration: how many training samples the layer-by-layer steps see, or all if there are fewer.
        seed: of the choice.

    Raises:
        InvalidInput: the training data and the test data have samples in common, or too few to set any aside.
        DataNotFound: it is not there.
    """
    everything, test_data = as_data(train, "the training data"), as_data(test, "the test data")
    # Of everything, before some of it is set aside: neither part may have seen a test sample.
    refuse_overlap(everything, test_data)
    from_test = held_out_from == "test"
    source = test_data if from_test else everything
    # Equal samples go the same way, so that the two parts have none in common.
    aside, rest = (None, source) if held_out is None else source.set_aside(held_out, seed)
    remaining = everything if from_test else rest
    # Calibration is drawn with a seed of its own, so that it does not repeat the draw of what was set aside.
    return Splits(
        train=remaining,
        held_out=aside,
        calibration=remaining[
            torch.randperm(len(remaining), generator=torch.Generator().manual_seed(seed + 1))[:calibration]
        ],
        test=rest if from_test else test_data,
        has_labels=everything.has_labels,
        test_has_labels=test_data.has_labels,
        # Of all the data: the parts follow from it by the share and the seed, which the recipe has.
        digests={"train": describe_data(everything), "test": describe_data(test_data)},
    )


def refuse_overlap(train: Data, test: Data) -> None:
    """Raise InvalidInput where an input is in both: a certificate on it would say nothing about new inputs."""
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        return  # of which a network takes one at most; whoever checks the inputs says which
    # As a network is fed with them, and as stored, where they are stored alike: another mean hides no equal one.
    ways = [_digest_as_fed, _digest_as_stored] if train.inputs.dtype is test.inputs.dtype else [_digest_as_fed]
    for digests in ways:
        places = {digest: place for place, digest in enumerate(digests(train))}
        shared = [(places[digest], place) for place, digest in enumerate(digests(test)) if digest in places]
        if shared:
            first, second = shared[0]
            raise InvalidInput(
                f"'{train.name}' and '{test.name}' have {len(shared):,} of {len(test):,} samples in common (the first: "
                f"sample {first} of the one is sample {second} of the other): a certificate needs data that nothing "
                "was made with"
            )


def describe_data(data: Data) -> dict[str, Any]:
    """Return what identifies data: its name, its size and its digest."""
    return {"data": data.name, "samples": len(data), "sha256": data.digest()}


def _digest_as_fed(data: Data) -> list[Any]:
    """Return a digest of each input as a network sees it: inputs that it cannot tell apart have the same one."""
    return data.sample_digests.tolist()


def _digest_as_stored(data: Data) -> list[Any]:
    """Compute a digest of each input's bytes."""
    return [hashlib.sha256(sample.tobytes()).digest() for sample in data.inputs.contiguous().numpy()]
