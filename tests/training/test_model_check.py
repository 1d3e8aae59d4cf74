"""What cannot be trained is refused before anything is written, and the check leaves no trace."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tamis.errors import InvalidInput
from tamis.training import Data, Settings, load_data, train
from tamis.training.distributed import Team
from tamis.training.model_check import check_fits, check_smallest_step
from tamis.training.models import digits_cnn, mlp

DIGITS = load_data("digits:train[:33]")


def labelled(labels: list[int], classes: int = 0) -> Data:
    return Data(torch.zeros(len(labels), 1, 8, 8), torch.tensor(labels), "mine.npz", classes=classes)


def with_batch_norm() -> nn.Module:
    return mlp((64, 12, 10), batch_norm=True)


# -- one example -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["data", "test"])
@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (mlp(), Data(torch.zeros(3, 5), torch.arange(3), "narrow"), r"Sequential does not take 'narrow', of shape \(1"),
        (
            mlp().double(),
            labelled([0, 9]),
            r"does not take 'mine.npz', of shape \(1, 1, 8, 8\): RuntimeError: .*Double",
        ),
        (nn.Linear(8, 10), labelled([0, 9]), r"Linear must turn one input into .* got shape \(1, 1, 8, 10\)"),
        (mlp(), labelled([0, 10]), r"\(1, 11\), a score for each class of 'mine.npz'; got shape \(1, 10\)"),
        (mlp(), labelled([0, 1], classes=11), r"\(1, 11\), a score for each class of 'mine.npz'; got shape \(1, 10\)"),
        (mlp(), labelled([0, 7], classes=5), "'mine.npz' must have labels from 0 to 4, .* they go from 0 to 7"),
        (mlp(), labelled([-100, 3]), "'mine.npz' must have labels from 0 to 3, .* they go from -100 to 3"),
    ],
    ids=["shape", "dtype", "shape of scores", "labels", "classes", "labels beyond classes", "negative labels"],
)
def test_data_that_does_not_fit_is_named(role: str, model: nn.Module, data: Data, message: str, tmp_path: Path) -> None:
    given_data: Any = {"data": DIGITS, role: data}
    with pytest.raises(InvalidInput, match=message):
        train(model, settings=Settings(epochs=1), directory=tmp_path / "run", progress=False, **given_data)
    assert not (tmp_path / "run").exists()


def test_a_model_is_called_what_the_caller_says() -> None:
    with pytest.raises(InvalidInput, match=r"^zoo:mlp does not take"):
        check_fits(mlp((5, 10)), DIGITS, called="zoo:mlp")


def test_more_scores_than_classes_are_fine() -> None:
    trained = train(mlp(), labelled([0, 1, 2, 1]), Settings(epochs=1), progress=False)
    assert len(trained.history) == 1


class Restless(nn.Module):
    """Draws, counts its calls and moves a buffer, even in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.calls = nn.Linear(64, 10), nn.BatchNorm1d(64), 0
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += x.flatten(1).mean(0)
        return self.linear(F.dropout(self.norm(x.flatten(1)), 0.5, training=True))


def test_the_checks_change_nothing() -> None:
    model = Restless()
    model.norm.eval()
    before, state = copy.deepcopy(model), torch.get_rng_state()
    check_fits(model, DIGITS)
    with pytest.raises(InvalidInput, match="Restless cannot train on a single example"):
        check_smallest_step(model, DIGITS, batch=16, processes=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.calls == 0 and model.training and not model.norm.training
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in model.state_dict().items())


# -- the smallest step -------------------------------------------------------------------------------------------------


def test_a_last_batch_of_one_is_refused_where_batch_norm_cannot_have_it(tmp_path: Path) -> None:
    wanted = (
        r"Sequential cannot train on a single example \(Expected more than 1 value per channel .*\), but batch=16 "
        r"leaves 1 of the 33 examples of 'digits:train\[:33\]' for the last step; choose another batch"
    )
    with pytest.raises(InvalidInput, match=wanted):
        train(with_batch_norm(), DIGITS, Settings(epochs=1, batch=16), directory=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "batch"),
    [(with_batch_norm(), 17), (with_batch_norm(), 33), (with_batch_norm(), 100), (mlp(), 16), (digits_cnn(4), 16)],
    ids=["rest of 16", "no rest", "one batch", "no batch-norm", "batch-norm over pixels"],
)
def test_what_can_be_trained_is(model: nn.Module, batch: int) -> None:
    assert len(train(model, DIGITS, Settings(epochs=1, batch=batch), progress=False).history) == 1


def test_a_share_of_one_is_refused_in_every_process() -> None:
    with pytest.raises(InvalidInput, match=r"leaves 3 of the 33 examples of .*, for 2 processes together; choose"):
        check_smallest_step(with_batch_norm(), DIGITS, batch=10, processes=2)


@given(st.integers(1, 33), st.integers(1, 40), st.integers(1, 6))
def test_refused_is_what_gives_a_process_one_example(examples: int, batch: int, processes: int) -> None:
    """Against the shares themselves."""
    parts = torch.arange(examples).split(batch)
    teams = [Team(torch.device("cpu"), rank, processes) for rank in range(processes)]
    alone = any(len(team.share(part)[0]) == 1 for part in parts for team in teams)
    refused = False
    try:
        check_smallest_step(with_batch_norm(), DIGITS[:examples], batch, processes)
    except InvalidInput:
        refused = True
    assert refused == alone
