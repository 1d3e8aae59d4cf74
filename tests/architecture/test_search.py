"""The search: exact, repeatable, resumable, nothing mutated; and better than chance on digits."""

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tamis.architecture.architecture import Architecture
from tamis.architecture.baselines import random_architecture
from tamis.architecture.search import RESULT_FILE, SEARCH_FILE, search
from tamis.architecture.transfer import transfer
from tamis.architecture.two_temperature import TwoTemperature
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.progress import Progress
from tamis.training import CHECKPOINT, Data, Settings, learning_rate_at, load_data
from tamis.training.models import digits_cnn, mlp

DATA = load_data("digits:train[:200]")
SETTINGS = Settings(epochs=6, batch=20)


def small_mlp(widths: tuple[int, ...] = (64, 12, 10)) -> nn.Module:
    torch.manual_seed(0)
    return mlp(widths)


def found(model: nn.Module | None = None, sparsity: float = 0.8, **options: Any) -> Architecture:
    return search(
        model or small_mlp(),
        options.pop("data", DATA),
        sparsity,
        **{"settings": SETTINGS, "progress": False, **options},
    )


class Stop(Exception):
    """What breaks a search off."""


def stop_after(epochs: int) -> Callable[[Progress], None]:
    def listen(now: Progress) -> None:
        if now.done == epochs:
            raise Stop

    return listen


# -- what it finds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.8, 0.9])
def test_the_sparsity_is_exact_to_one_connection(sparsity: float) -> None:
    masks = found(sparsity=sparsity).masks
    assert masks.total == 64 * 12 + 12 * 10
    assert masks.pruned == round(sparsity * masks.total)


def test_it_is_algorithm_a_1_written_out() -> None:
    """With plain SGD: the same batches, the same steps, on a model whose weights are masked by hand."""
    settings = Settings(epochs=4, batch=50, momentum=0.0, weight_decay=0.0, learning_rate=0.2)
    t_l, t_s, gamma, mask_rate, keep = 50.0, 5.0, 0.02, 0.5, 178
    asked: list[torch.Tensor] = []

    class Watched(Data):
        def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append(indices.clone())
            return super().batch(indices)

    data = Watched(DATA.inputs, DATA.labels, DATA.name)
    architecture = search(
        small_mlp(), data, 0.8, settings, t_l=t_l, t_s=t_s, gamma=gamma, mask_rate=mask_rate, progress=False
    )
    model = small_mlp()
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    logits = {name: w.detach().clone() for name, w in TwoTemperature(model).logits.items()}
    for step, batch in enumerate(asked):
        rate = learning_rate_at(settings, step / 4)
        v = {name: torch.sigmoid(t_l * w) for name, w in logits.items()}
        masked = {name: (value * v.get(name, torch.ones(()))).requires_grad_() for name, value in weights.items()}
        scores = torch.func.functional_call(model, masked, (DATA.batch(batch)[0],))
        loss = F.cross_entropy(scores, DATA.batch(batch)[1])
        gradients = dict(zip(masked, torch.autograd.grad(loss, [*masked.values()]), strict=True))
        before = {name: w.clone() for name, w in logits.items()}
        for name in logits:
            soft = torch.sigmoid(t_s * logits[name])
            by_mask = gradients[name] * weights[name] * t_s * soft * (1 - soft)
            logits[name] = logits[name] - mask_rate * rate / 0.2 * (by_mask + 2 * gamma * (1 + logits[name]))
            gradients[name] = gradients[name] * v[name] + 2 * gamma * weights[name]
        weights = {name: value - rate * gradients[name] for name, value in weights.items()}
        if sum(int((w > 0).sum()) for w in logits.values()) <= keep:
            break
    assert step == len(asked) - 1 and step >= 2, "the search must end with the same step"
    flat = torch.cat([w.flatten() for w in logits.values()])
    crossed = (torch.cat([w.flatten() for w in before.values()]) > 0) & (flat <= 0)
    order = sorted((-float(flat[place]), int(place)) for place in crossed.nonzero()[:, 0])
    expected = flat > 0
    expected[[place for _, place in order[: keep - int(expected.sum())]]] = True
    got = torch.cat([architecture.masks[name].flatten() for name in logits])
    assert int(got.sum()) == keep and torch.equal(got, expected)


def test_what_the_masks_do_not_reach_is_cut_and_said() -> None:
    with pytest.warns(UserWarning, match=r"after 6 epochs the masks are at a sparsity of 0\.0000, short of 0\.8"):
        masks = found(gamma=1e-9, mask_rate=1e-6).masks
    assert masks.pruned == round(0.8 * masks.total)


def test_layers_that_are_excluded_are_not_masked() -> None:
    assert {*found(exclude="linear2").masks} == {"linear1.weight"}
    assert {*found(digits_cnn(4), include="second", settings=replace(SETTINGS, epochs=2)).masks} == {"second.0.weight"}


def test_the_search_beats_chance_where_few_connections_are_left() -> None:
    """On digits at 95%: the mean accuracy of fresh trainings, over architectures and beginnings (0.74 against 0.31)."""
    data, test, model = load_data("digits:train[:800]"), load_data("digits:test"), small_mlp((64, 32, 10))
    settings = Settings(epochs=10, batch=32)

    def accuracy(architectures: list[Architecture]) -> float:
        runs = [
            transfer(model, architecture, data, replace(settings, seed=seed), test=test, progress=False)
            for architecture in architectures
            for seed in (1,)
        ]
        return sum(run.history[-1].reported_accuracy for run in runs) / len(runs)

    searched = [search(model, data, 0.95, settings, progress=False)]
    drawn = [random_architecture(model, 0.95, seed=0)]
    assert accuracy(searched) > accuracy(drawn) + 0.2


# -- what it leaves alone ------------------------------------------------------------------------------------------


def test_model_data_and_randomness_are_left_alone() -> None:
    model = small_mlp().eval()
    before, inputs = deepcopy(model.state_dict()), DATA.inputs.clone()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    found(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training and all(value.grad is None for value in model.parameters())
    assert torch.equal(DATA.inputs, inputs) and torch.equal(torch.get_rng_state(), state)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        found(settings=replace(SETTINGS, seed=seed)).save(tmp_path / name)
    one, same, other = ((tmp_path / name).read_bytes() for name in ("one", "same", "other"))
    assert one == same != other


# -- progress and going on -----------------------------------------------------------------------------------------


def test_progress_tells_the_sparsity_so_far() -> None:
    told: list[Progress] = []
    found(sparsity=0.9, progress=told.append)
    sparsities = [now.figures["sparsity"] for now in told]
    assert sparsities and sparsities == sorted(sparsities) and 0 < sparsities[0] < 0.9


def test_broken_off_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sparsity": 0.9, "settings": replace(SETTINGS, epochs=20)}
    with pytest.raises(Stop):
        found(**options, directory=tmp_path, progress=stop_after(1))
    assert (tmp_path / CHECKPOINT).exists() and not (tmp_path / RESULT_FILE).exists()
    told: list[Progress] = []
    again = found(**options, directory=tmp_path, progress=told.append)
    assert told and told[0].done == 2
    assert again == found(**options)
    assert Architecture.load(tmp_path / RESULT_FILE) == again
    told.clear()
    assert (
        found(**options, directory=tmp_path, progress=told.append) == again and not told
    )  # it is there: nothing is trained


def test_another_search_is_refused_in_the_same_directory(tmp_path: Path) -> None:
    found(directory=tmp_path)
    for options, message in (
        ({"sparsity": 0.5}, "keep was 178, now it is 444"),
        ({"t_l": 50.0}, r"t_l was 100\.0, now it is 50\.0"),
        ({"gamma": 0.5}, r"gamma was .*, now it is 0\.5"),
        ({"exclude": "linear2"}, r"the shape of 'linear2\.weight' was \[10, 12\], now it is None"),
        ({"settings": replace(SETTINGS, seed=7)}, "seed was 0, now it is 7"),
        ({"data": DATA[:100]}, "the data was"),
        ({"model": small_mlp((64, 10, 10))}, r"the shape of 'linear1\.weight' was \[12, 64\], now it is \[10, 64\]"),
    ):
        with pytest.raises(InvalidInput, match=message):
            found(directory=tmp_path, **options)
    (tmp_path / RESULT_FILE).write_bytes((tmp_path / RESULT_FILE).read_bytes()[:-1])
    with pytest.raises(CorruptArtifact, match="damaged"):
        found(directory=tmp_path)
    for content in ("{", "[]"):
        (tmp_path / SEARCH_FILE).write_text(content)
        with pytest.raises(CorruptArtifact, match=r"search\.json is damaged"):
            found(directory=tmp_path)


def test_a_search_leaves_its_folder_even_where_there_was_none(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    found(directory=folder, include=iter(["linear1"]))
    question = json.loads((folder / SEARCH_FILE).read_text())
    assert question["keep"] == 154 and question["t_s"] == 10.0
    assert {path.name for path in folder.iterdir()} >= {SEARCH_FILE, RESULT_FILE}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.0}, r"sparsity=1\.0 must be a fraction"),
        ({"sparsity": 0.9999}, r"sparsity=0\.9999 keeps none of 888 connections"),
        ({"gamma": -1.0}, r"gamma=-1\.0 must be a number > 0"),
        ({"mask_rate": 0.0}, r"mask_rate=0\.0 must be a number > 0"),
        ({"model": nn.Linear(7, 10)}, r"Linear does not take 'digits:train\[:200\]'"),
        ({"t_s": 1000.0}, r"t_s=1000\.0 must not be greater than t_l=100\.0"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        found(directory=tmp_path, **options)
    assert not [*tmp_path.iterdir()]
