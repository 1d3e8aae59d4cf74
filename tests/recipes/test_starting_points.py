"""A budget that begins with several networks: all are tried, the best is taken, and a kill changes nothing of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tamis
from tamis.errors import InvalidInput
from tamis.recipes.budget import STARTS
from tamis.recipes.compression import compress
from tamis.recipes.output_folder import LOCK, REPORT, SMALL
from tamis.recipes.schema import recipe_of
from tamis.recipes.starting_points import describe_steps
from tamis.recipes.trials import compare_on
from tamis.training import Settings, load_data, train
from tamis.training.models import mlp

HALF: dict[str, Any] = {"step": "prune", "amount": 0.5, "scope": "layer"}
AGAIN: dict[str, Any] = {"step": "retrain", "epochs": 2, "batch": 64, "learning_rate": 0.02}
SEARCH: dict[str, Any] = {"budget": {"target_bytes": 2500, "starts": [[], [HALF], [HALF, AGAIN]]}}


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        settings = Settings(epochs=5, batch=64, optimizer="adamw", learning_rate=0.01)
        return train(mlp((64, 12, 10)), load_data("digits:train[:400]"), settings, progress=False).model


@pytest.fixture(scope="module")
def searched(trained: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search over three starts that nothing broke off."""
    out = tmp_path_factory.mktemp("searched") / "out"
    compress(trained, SEARCH, "digits:train[:200]", out, test="digits:test[:100]", progress=False)
    return out


def tried(folder: Path | str) -> dict[str, Any]:
    found: dict[str, Any] = tamis.recipes.lock.Lock.read(Path(folder, LOCK)).content["result"]
    return found


@pytest.mark.slow
def test_all_are_tried_and_the_best_is_taken(searched: Path) -> None:
    found = tried(searched)
    starts = recipe_of(SEARCH).budget.starts  # type: ignore[union-attr]
    assert list(dict.fromkeys(each["start"] for each in found["tried"])) == [describe_steps(start) for start in starts]
    fitting = [each for each in found["tried"] if each["bytes"] <= 2500]
    (chosen,) = [each for each in found["tried"] if each["chosen"]]
    assert found["held_out"] == 50 and chosen["bytes"] == (searched / SMALL).stat().st_size == found["bytes"]
    least = min(each["different"] for each in fitting)
    alike = [each for each in fitting if each["different"] <= least + least**0.5]
    assert chosen in alike and chosen["moved"] == min(each["moved"] for each in alike)
    page = (searched / REPORT).read_text(encoding="utf-8")
    assert "What was tried" in page and "share of equal answers, %" in page
    assert all(f"{each['start']}, {each['layers']}: {each['bytes']:,} bytes" in page for each in found["tried"])
    assert len({(each["start"], each["layers"]) for each in found["tried"]}) == len(found["tried"])  # each can be told


@pytest.mark.slow
def test_a_lock_repeats_the_search(trained: nn.Module, searched: Path) -> None:
    compress(trained, searched / LOCK, out="again", progress=False)
    for name in (SMALL, LOCK):
        assert Path("again", name).read_bytes() == (searched / name).read_bytes()


class Broken(BaseException):
    """As a kill, no handler of errors catches it."""


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before it is written", "when it is written"])
def test_it_goes_on_after_every_network(
    trained: nn.Module, searched: Path, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    save, saved = tamis.Compressed.save, set()

    def once(self: tamis.Compressed, path: Path) -> None:
        """Breaks off at each file the first time that it comes to be written."""
        new = str(path) not in saved
        saved.add(str(path))
        if after or not new:
            save(self, path)
        if new:
            raise Broken

    breaks = 0
    with monkeypatch.context() as patch:
        patch.setattr(tamis.Compressed, "save", once)
        while True:
            try:
                compress(trained, SEARCH, out="out", **quick)
                break
            except Broken:
                breaks += 1
    assert breaks >= 2 + len(tried(searched)["tried"])  # the starts, the trials, and what comes out
    assert Path("out", SMALL).read_bytes() == (searched / SMALL).read_bytes()
    assert Path("out", LOCK).read_bytes() == (searched / LOCK).read_bytes()


@pytest.mark.slow
def test_a_budget_alone_begins_with_some(trained: nn.Module, quick: dict[str, Any]) -> None:
    heard: list[str] = []
    quick |= {"progress": lambda now: heard.append(now.task)}
    done = compress(trained, target_bytes=1900, out="out", **quick)
    written = done.lock.content["recipe"]["budget"]["starts"]
    assert [[step["amount"] for step in start] for start in written] == [[], [0.1], [0.25]]
    assert {"1/1 start 1/3 probe", "1/1 start 1/3 quantize", "1/1 start 2/3 quantize"} <= set(heard)
    # After steps, nothing but what they made; with a recipe's own starts and another target, those.
    after = compress(trained, {"steps": [HALF]}, target_bytes=2500, out="after", **quick)
    assert {each["start"] for each in after.lock.content["result"]["tried"]} == {"as it is"}
    other = compress(trained, {"budget": {"target_bytes": 1, "starts": [[HALF]]}}, target_bytes=2500, out="o", **quick)
    assert {each["start"] for each in other.lock.content["result"]["tried"]} == {"prune amount 0.5 scope layer"}


@pytest.mark.slow
def test_starts_that_the_network_does_not_allow_are_left_out(
    quick: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, 10))
    done = compress(smooth, target_bytes=2500, out="out", **{**quick, "progress": True})
    assert {each["start"] for each in done.lock.content["result"]["tried"]} == {"as it is"}
    assert "start 2/3 is left out: " in capsys.readouterr().err


@pytest.mark.slow
def test_answers_are_compared_with_those_of_the_original(trained: nn.Module, quick: dict[str, Any]) -> None:
    anew = {"step": "retrain", "epochs": 1, "fresh": True, "learning_rate": 0.001}
    recipe = {"steps": [anew], "budget": {"max_disagreement": 0.25}}
    message = r"no file was found with a disagreement of at most 25%: the closest, of \d,\d{3} bytes, has a bound"
    with pytest.raises(InvalidInput, match=message):
        compress(trained, recipe, out="out", **quick)
    recipe["budget"]["starts"] = [[], [anew]]  # type: ignore[index]
    with pytest.raises(InvalidInput, match="no file was found"):
        compress(trained, recipe, out="other", **quick)
    done = compress(trained, {"budget": {"max_disagreement": 0.25, "starts": [[anew], []]}}, out="third", **quick)
    (chosen,) = [each for each in done.lock.content["result"]["tried"] if each["chosen"]]
    assert chosen["start"] == "as it is"


def test_what_is_compared(trained: nn.Module) -> None:
    data = load_data("digits:test[:60]")
    net = tamis.trace(trained, data.example)
    other = tamis.prune(net, 0.6).network
    with torch.no_grad():
        before, after = (each(data.normalised()).double() for each in (net, other))
    different, moved = compare_on(data, net, other)
    assert different == int((before.argmax(1) != after.argmax(1)).sum()) > 0
    assert moved == pytest.approx(float((before - after).square().sum(1).mean()))
    assert compare_on(data, net, net) == (0, 0.0)


def test_chains_in_words() -> None:
    budget = recipe_of({"budget": {"target_bytes": "9KB", "starts": [*STARTS, [HALF, AGAIN]]}}).budget
    assert budget is not None and budget.starts is not None
    assert [describe_steps(start) for start in budget.starts] == [
        "as it is",
        "prune amount 0.1",
        "prune amount 0.25",
        "prune amount 0.5 scope layer, retrain epochs 2 batch 64 learning_rate 0.02",
    ]
    again = recipe_of(json.loads(json.dumps({"budget": budget.model_dump(exclude_none=True)}))).budget
    assert again == budget  # with all defaults written out, the words are the same
