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

from tamis.bayes.journal import RoundJournal
from tamis.bayes.online import OnlineLearner
from tamis.bayes.posterior import Sampling
from tamis.bayes.prior import SIGN, Prior
from tamis.bayes.run import (
    JOURNAL,
    RECORDS_FILE,
    SETTINGS_FILE,
    CompletedRun,
    RoundRecord,
    RunLog,
    RunSettings,
    inspects_best_particle,
    least_bound,
    run_online,
    save_run_settings,
)
from tamis.bayes.space import Structure
from tamis.bayes.streams import build_space, load_stream
from tamis.bayes.summary import (
    BEST,
    BOUND,
    GUESS,
    LEARNER,
    LEAST_BOUND,
    MOST_POINTS,
    OFFLINE,
    PARTICLE,
    TRAINED,
    compute_curves,
    describe_structure,
    find_experts,
    summarise_run,
)
from tamis.bayes.target import Rounds
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.reports import online_panels

TINY = RunSettings("graph", "graph", rounds=14, batch=4, particles=8, lam=4.0, tau=0.5, layers=(1, 2), filters=(2,))


class Killed(Exception):
    """Stands for a kill."""


def killed_after(rounds: int) -> object:
    def listen(learner: OnlineLearner) -> None:
        if learner.rounds == rounds:
            raise Killed

    return listen


def same(one: CompletedRun, two: CompletedRun) -> bool:
    """Whether two runs are one, to the last bit."""
    states = [json.dumps(each.learner.state_dict(), default=lambda tensor: tensor.tolist()) for each in (one, two)]
    return one.records == two.records and states[0] == states[1]


@pytest.fixture(scope="module")
def whole() -> CompletedRun:
    return run_online(TINY)


def test_a_run_is_the_learner_on_the_stream_and_notes_come_before_a_round(whole: CompletedRun) -> None:
    space, stream = build_space(load_stream("graph"), "graph", [1, 2], [2])
    learner = OnlineLearner(space, Prior(0.5), 4.0, 8, 0, sampling=Sampling(subsample=None))
    for places, note in zip(stream.order(14, 4, 0), whole.records, strict=True):
        x, y = stream.select(places)
        assert note.wrong == int((learner.predict_mean(x).argmax(1) != y).sum())
        assert note.bound == least_bound(learner)
        assert (note.best is None) == (learner.rounds not in (10,))
        if note.best is not None:
            assert note.best == learner.regret.best_particle().loss
        learner.update(x, y)
    assert whole.learner.regret.losses == learner.regret.losses
    assert whole.bounds == [*(note.bound for note in whole.records[1:]), least_bound(learner)]
    assert whole.learner.posterior.resampled > 0


def test_when_the_best_particle_is_looked_for() -> None:
    assert [rounds for rounds in range(200) if inspects_best_particle(rounds)] == [10, 14, 20, 28, 40, 56, 80, 113, 160]


def test_the_error_is_of_the_last_part(whole: CompletedRun) -> None:
    notes = tuple(RoundRecord(wrong=wrong, bound=0.0) for wrong in (4, 4, 4, 4, 4, 4, 4, 4, 1, 2))
    assert replace(whole, records=notes).error() == 3 / 8
    assert replace(whole, records=notes[:2]).error() == 1.0


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
def test_a_killed_run_goes_on_to_the_same_end(rounds: int, whole: CompletedRun, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run_online(TINY, tmp_path, listen=killed_after(rounds))  # type: ignore[arg-type]
    seen: list[int] = []
    assert same(run_online(TINY, tmp_path, listen=lambda learner: seen.append(learner.rounds)), whole)
    assert seen == list(range(rounds + 1, 15))
    assert same(run_online(TINY, tmp_path), whole)  # and once more, with nothing left to do
    assert sorted(path.name for path in tmp_path.iterdir()) == [SETTINGS_FILE, RECORDS_FILE, JOURNAL]


def test_a_kill_between_a_note_and_its_round(whole: CompletedRun, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run_online(TINY, tmp_path, listen=killed_after(6))  # type: ignore[arg-type]
    with (tmp_path / RECORDS_FILE).open("a") as file:
        file.write('{"wrong": 4, "bound": 99.0, "best": null}\n{"wrong": 1, "bo')  # the second cut short
    assert same(run_online(TINY, tmp_path), whole)


def test_a_run_that_is_over_goes_on_for_longer(whole: CompletedRun, tmp_path: Path) -> None:
    run_online(replace(TINY, rounds=8), tmp_path)
    assert same(run_online(TINY, tmp_path), whole)
    with pytest.raises(InvalidInput, match="has 14 rounds: ask for as many or more, got 8"):
        run_online(replace(TINY, rounds=8), tmp_path)


def test_another_run_is_refused_by_what_differs(tmp_path: Path) -> None:
    run_online(replace(TINY, rounds=1), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InvalidInput, match=r"another run, with lam 4\.0 and not 1\.0, seed 0 and not 3"):
        run_online(replace(TINY, lam=1.0, seed=3), tmp_path)
    (tmp_path / SETTINGS_FILE).unlink()
    with pytest.raises(InvalidInput, match=r"'asked\.json' is missing"):
        run_online(TINY, tmp_path)
    for content in ("{", "[]"):
        (tmp_path / SETTINGS_FILE).write_text(content)
        with pytest.raises(CorruptArtifact, match="does not say what"):
            run_online(TINY, tmp_path)
    (tmp_path / SETTINGS_FILE).write_bytes(before[SETTINGS_FILE])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_directory_without_a_round_is_free(whole: CompletedRun, tmp_path: Path) -> None:
    """A run that fails before its first round is learnt does not stand in the way of the one that was meant."""
    with pytest.raises(InvalidInput, match="smaller lam"):
        run_online(replace(TINY, lam=1e308, particles=4), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [SETTINGS_FILE, RECORDS_FILE, JOURNAL]
    assert same(run_online(TINY, tmp_path), whole)
    assert json.loads((tmp_path / SETTINGS_FILE).read_text())["lam"] == 4.0
    with pytest.raises(InvalidInput, match="another run, with lam"):
        run_online(replace(TINY, lam=1e308), tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="there are no such locks here")
def test_a_directory_that_a_run_has_just_begun_in_is_not_free(tmp_path: Path) -> None:
    learner = OnlineLearner(build_space(load_stream("graph"), "graph", [1, 2], [2])[0], Prior(0.5), 4.0, 8)
    save_run_settings(tmp_path, TINY)
    with RoundJournal(learner, tmp_path / JOURNAL), pytest.raises(InvalidInput, match="being written by another run"):
        run_online(replace(TINY, lam=1.0), tmp_path)
    assert json.loads((tmp_path / SETTINGS_FILE).read_text())["lam"] == 4.0


def test_notes_that_are_damaged_are_told_of(tmp_path: Path) -> None:
    path = tmp_path / RECORDS_FILE
    book = RunLog(path)
    for number in range(3):
        book.add(RoundRecord(number, number / 3, None if number else 0.1))
    assert RunLog(path, 3).all == book.all and RunLog(path, 2).all == book.all[:2]
    with pytest.raises(CorruptArtifact, match="records of 2 rounds, and 3 were learnt"):
        RunLog(path, 3)
    path.write_text("nothing\n")
    with pytest.raises(CorruptArtifact, match="no record"):
        RunLog(path, 1)


# -- the account -------------------------------------------------------------------------------------------------------


def test_the_account(whole: CompletedRun) -> None:
    beside = find_experts(whole, steps=30)
    found, regret = summarise_run(whole, beside, draws=20), whole.learner.regret
    assert found["loss"] == regret.loss and found["expected loss"] == regret.expected_loss
    shares = whole.learner.posterior.probabilities()
    assert beside.offline.structure == max(shares, key=lambda each: shares[each])
    assert found["regret"] == regret.expected_loss - beside.offline.loss
    assert list(found["bounds"]) == [LEAST_BOUND, PARTICLE, OFFLINE]  # the text has no theorem for graphs
    weights = beside.particle.weights
    assert found["bounds"][PARTICLE]["value"] == regret.theorem_4_1(beside.particle.structure, weights, draws=20).value
    assert found["loss of the best particle"] <= found["bounds"][PARTICLE]["value"]
    assert list(found["architectures"].values()) == sorted(shares.values(), reverse=True)
    assert found["sparsity"]["nonzero"] == whole.learner.posterior.sparsity(0.5).nonzero
    json.dumps(found)


@pytest.mark.parametrize(("space", "theorem"), [("dense", "Theorem 3.1"), ("xnor", "Theorem 3.2")])
def test_the_theorem_of_the_text_for_chains_and_for_xnor_networks(space: str, theorem: str) -> None:
    layers = (2,) if space == "dense" else (3,)
    run = run_online(RunSettings("series", space, rounds=3, batch=3, particles=4, layers=layers, filters=(2,)))
    found = summarise_run(run, find_experts(run, steps=3), draws=5)
    assert list(found["bounds"]) == [LEAST_BOUND, PARTICLE, OFFLINE, f"{OFFLINE}, {theorem}"]
    assert found["bounds"][f"{OFFLINE}, {theorem}"]["source"] == f"chee2021xnor, {theorem}"


def test_curves_end_where_the_account_does(whole: CompletedRun) -> None:
    beside = find_experts(whole, steps=30)
    found = compute_curves(whole, beside)
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
    assert found["losses"][BEST][0] == (10, whole.records[10].best)
    shares = whole.learner.posterior.probabilities()
    assert {name: points[-1][1] for name, points in found["architectures"].items()} == {
        describe_structure(each): pytest.approx(share) for each, share in shares.items()
    }
    assert all(panel.curves and all(panel.curves.values()) for panel in online_panels(found))  # all can be drawn


def test_long_curves_are_thinned(whole: CompletedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.bayes.summary.MOST_POINTS", 5)
    points = compute_curves(whole, find_experts(whole, steps=1))["losses"][LEARNER]
    assert [t for t, _ in points] == [2, 5, 8, 11, 14] and MOST_POINTS > 100


def test_structures_in_words() -> None:
    assert describe_structure(Structure(1, 0, 0)) == "1 layer"
    assert describe_structure(Structure(3, 1, 5)) == "3 layers, 1 filter of 5"
