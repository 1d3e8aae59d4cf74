"""Runs of the online learner: what is noted, that a kill does not change them, and the account of them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bayes.toys import Lines, energies, every_sign

from tamis.bayes.account import (
    BEST,
    BOUND,
    GUESS,
    LEARNER,
    LEAST,
    MOST_POINTS,
    OFFLINE,
    PARTICLE,
    TRAINED,
    account,
    called,
    curves,
    experts,
)
from tamis.bayes.journal import Journal
from tamis.bayes.online import OnlineLearner
from tamis.bayes.posterior import Sampling
from tamis.bayes.prior import SIGN, Prior
from tamis.bayes.run import (
    JOURNAL,
    NOTES,
    QUESTION,
    Asked,
    Followed,
    Note,
    Notebook,
    follow,
    least_bound,
    looked_at,
    note_question,
)
from tamis.bayes.space import Structure
from tamis.bayes.streams import named, space_for
from tamis.bayes.target import Rounds
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.reports import online_panels

TINY = Asked("graph", "graph", rounds=14, batch=4, particles=8, lam=4.0, tau=0.5, layers=(1, 2), filters=(2,))


class Killed(Exception):
    """Stands for a kill."""


def killed_after(rounds: int) -> object:
    def listen(learner: OnlineLearner) -> None:
        if learner.rounds == rounds:
            raise Killed

    return listen


def same(one: Followed, two: Followed) -> bool:
    """Whether two runs are one, to the last bit."""
    states = [json.dumps(each.learner.state_dict(), default=lambda tensor: tensor.tolist()) for each in (one, two)]
    return one.notes == two.notes and states[0] == states[1]


@pytest.fixture(scope="module")
def whole() -> Followed:
    return follow(TINY)


def test_a_run_is_the_learner_on_the_stream_and_notes_come_before_a_round(whole: Followed) -> None:
    space, stream = space_for(named("graph"), "graph", [1, 2], [2])
    learner = OnlineLearner(space, Prior(0.5), 4.0, 8, 0, sampling=Sampling(subsample=None))
    for places, note in zip(stream.order(14, 4, 0), whole.notes, strict=True):
        x, y = stream.at(places)
        assert note.wrong == int((learner.predict_mean(x).argmax(1) != y).sum())
        assert note.bound == least_bound(learner)
        assert (note.best is None) == (learner.rounds not in (10,))
        if note.best is not None:
            assert note.best == learner.regret.best_particle().loss
        learner.update(x, y)
    assert whole.learner.regret.losses == learner.regret.losses
    assert whole.bounds == [*(note.bound for note in whole.notes[1:]), least_bound(learner)]
    assert whole.learner.posterior.resampled > 0


def test_when_the_best_particle_is_looked_for() -> None:
    assert [rounds for rounds in range(200) if looked_at(rounds)] == [10, 14, 20, 28, 40, 56, 80, 113, 160]


def test_the_error_is_of_the_last_part(whole: Followed) -> None:
    notes = tuple(Note(wrong=wrong, bound=0.0) for wrong in (4, 4, 4, 4, 4, 4, 4, 4, 1, 2))
    assert replace(whole, notes=notes).error() == 3 / 8
    assert replace(whole, notes=notes[:2]).error() == 1.0


def test_the_least_bound_is_below_that_of_every_single_network() -> None:
    """Theorem 4.1 with ρ at one network of signs w is h(w) + KL/λ, KL = −log π(w); the least is over all ρ."""
    space, lam = Lines([1, 2], SIGN), 0.05
    learner = OnlineLearner(space, Prior(0.3), lam, 4000, 0)
    generator = torch.Generator().manual_seed(0)
    rounds = [torch.randn(3, 2, generator=generator, dtype=torch.float64) for _ in range(6)]
    for x in rounds:
        learner.update(x, (x[:, 0] > 0).long())
    assert learner.posterior.resampled == 0
    seen = Rounds(rounds, [(x[:, 0] > 0).long() for x in rounds], list(learner.regret.losses))
    every = [
        (float(h), math.log(2 * 2**count))
        for number, count in enumerate([1, 2])
        for h in energies(space, number, every_sign(count), seen, lam)
    ]
    exact = -math.log(sum(math.exp(-lam * h - kl) for h, kl in every)) / lam
    assert least_bound(learner) == pytest.approx(exact, abs=0.1)
    assert exact <= min(h + kl / lam for h, kl in every)
    assert learner.regret.expected_loss <= exact  # holds in expectation over draws, and by far here


# -- runs in a directory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 13])
def test_a_killed_run_goes_on_to_the_same_end(rounds: int, whole: Followed, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        follow(TINY, tmp_path, listen=killed_after(rounds))  # type: ignore[arg-type]
    seen: list[int] = []
    assert same(follow(TINY, tmp_path, listen=lambda learner: seen.append(learner.rounds)), whole)
    assert seen == list(range(rounds + 1, 15))
    assert same(follow(TINY, tmp_path), whole)  # and once more, with nothing left to do
    assert sorted(path.name for path in tmp_path.iterdir()) == [QUESTION, NOTES, JOURNAL]


def test_a_kill_between_a_note_and_its_round(whole: Followed, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        follow(TINY, tmp_path, listen=killed_after(6))  # type: ignore[arg-type]
    with (tmp_path / NOTES).open("a") as file:
        file.write('{"wrong": 4, "bound": 99.0, "best": null}\n{"wrong": 1, "bo')  # the second cut short
    assert same(follow(TINY, tmp_path), whole)


def test_a_run_that_is_over_goes_on_for_longer(whole: Followed, tmp_path: Path) -> None:
    follow(replace(TINY, rounds=8), tmp_path)
    assert same(follow(TINY, tmp_path), whole)
    with pytest.raises(InvalidInput, match="has 14 rounds: ask for as many or more, got 8"):
        follow(replace(TINY, rounds=8), tmp_path)


def test_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    follow(replace(TINY, rounds=1), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InvalidInput, match=r"another run, with lam 4\.0 and not 1\.0, seed 0 and not 3"):
        follow(replace(TINY, lam=1.0, seed=3), tmp_path)
    (tmp_path / QUESTION).unlink()
    with pytest.raises(InvalidInput, match=r"'asked\.json' is missing"):
        follow(TINY, tmp_path)
    for content in ("{", "[]"):
        (tmp_path / QUESTION).write_text(content)
        with pytest.raises(CorruptArtifact, match="does not say what"):
            follow(TINY, tmp_path)
    (tmp_path / QUESTION).write_bytes(before[QUESTION])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_directory_without_a_round_is_free(whole: Followed, tmp_path: Path) -> None:
    """A run that fails before its first round is learnt does not stand in the way of the one that was meant."""
    with pytest.raises(InvalidInput, match="smaller lam"):
        follow(replace(TINY, lam=1e308, particles=4), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [QUESTION, NOTES, JOURNAL]
    assert same(follow(TINY, tmp_path), whole)
    assert json.loads((tmp_path / QUESTION).read_text())["lam"] == 4.0
    with pytest.raises(InvalidInput, match="another run, with lam"):
        follow(replace(TINY, lam=1e308), tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="there are no such locks here")
def test_a_directory_that_a_run_has_just_begun_in_is_not_free(tmp_path: Path) -> None:
    learner = OnlineLearner(space_for(named("graph"), "graph", [1, 2], [2])[0], Prior(0.5), 4.0, 8)
    note_question(tmp_path, TINY)
    with Journal(learner, tmp_path / JOURNAL), pytest.raises(InvalidInput, match="being written by another run"):
        follow(replace(TINY, lam=1.0), tmp_path)
    assert json.loads((tmp_path / QUESTION).read_text())["lam"] == 4.0


def test_notes_that_are_damaged_are_told_of(tmp_path: Path) -> None:
    path = tmp_path / NOTES
    book = Notebook(path)
    for number in range(3):
        book.add(Note(number, number / 3, None if number else 0.1))
    assert Notebook(path, 3).all == book.all and Notebook(path, 2).all == book.all[:2]
    with pytest.raises(CorruptArtifact, match="notes of 2 rounds, and 3 were learnt"):
        Notebook(path, 3)
    path.write_text("nothing\n")
    with pytest.raises(CorruptArtifact, match="no note"):
        Notebook(path, 1)


# -- the account -------------------------------------------------------------------------------------------------------


def test_the_account(whole: Followed) -> None:
    beside = experts(whole, steps=30)
    found, regret = account(whole, beside, draws=20), whole.learner.regret
    assert found["loss"] == regret.loss and found["expected loss"] == regret.expected_loss
    shares = whole.learner.posterior.probabilities()
    assert beside.offline.structure == max(shares, key=lambda each: shares[each])
    assert found["regret"] == regret.expected_loss - beside.offline.loss
    assert list(found["bounds"]) == [LEAST, PARTICLE, OFFLINE]  # the text has no theorem for graphs
    weights = beside.particle.weights
    assert found["bounds"][PARTICLE]["value"] == regret.theorem_4_1(beside.particle.structure, weights, draws=20).value
    assert found["loss of the best particle"] <= found["bounds"][PARTICLE]["value"]
    assert list(found["architectures"].values()) == sorted(shares.values(), reverse=True)
    assert found["sparsity"]["nonzero"] == whole.learner.posterior.sparsity(0.5).nonzero
    json.dumps(found)


@pytest.mark.parametrize(("space", "theorem"), [("dense", "Theorem 3.1"), ("xnor", "Theorem 3.2")])
def test_the_theorem_of_the_text_for_chains_and_for_xnor_networks(space: str, theorem: str) -> None:
    layers = (2,) if space == "dense" else (3,)
    run = follow(Asked("series", space, rounds=3, batch=3, particles=4, layers=layers, filters=(2,)))
    found = account(run, experts(run, steps=3), draws=5)
    assert list(found["bounds"]) == [LEAST, PARTICLE, OFFLINE, f"{OFFLINE}, {theorem}"]
    assert found["bounds"][f"{OFFLINE}, {theorem}"]["source"] == f"chee2021xnor, {theorem}"


def test_curves_end_where_the_account_does(whole: Followed) -> None:
    beside = experts(whole, steps=30)
    found = curves(whole, beside)
    last = {name: points[-1] for name, points in found["losses"].items()}
    regret = whole.learner.regret
    wanted = {
        LEARNER: regret.loss,
        BOUND: least_bound(whole.learner),
        BEST: beside.particle.loss,
        TRAINED: beside.offline.loss,
        GUESS: regret.uniform_loss,
    }
    assert last == {name: (14, pytest.approx(value)) for name, value in wanted.items()}
    assert [t for t, _ in found["losses"][LEARNER]] == list(range(1, 15))
    assert found["losses"][BEST][0] == (10, whole.notes[10].best)
    shares = whole.learner.posterior.probabilities()
    assert {name: points[-1][1] for name, points in found["architectures"].items()} == {
        called(each): pytest.approx(share) for each, share in shares.items()
    }
    assert all(panel.curves and all(panel.curves.values()) for panel in online_panels(found))  # all can be drawn


def test_long_curves_are_thinned(whole: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.bayes.account.MOST_POINTS", 5)
    points = curves(whole, experts(whole, steps=1))["losses"][LEARNER]
    assert [t for t, _ in points] == [2, 5, 8, 11, 14] and MOST_POINTS > 100


def test_structures_in_words() -> None:
    assert called(Structure(1, 0, 0)) == "1 layer"
    assert called(Structure(3, 1, 5)) == "3 layers, 1 filter of 5"
