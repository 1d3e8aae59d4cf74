"""Data that must not certify: what a file was made with, what was trained on, one sample many times."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tamis
from tamis.artifact import Compressed
from tamis.bounds import accuracy_change, deviation_quantile, disagreement
from tamis.errors import AssumptionViolated, VerificationFailed
from tamis.graph import NOTHING_SEEN, SeenSamples
from tamis.reports import report
from tamis.training import Data, Settings, load_data, train
from tamis.training.models import digits_cnn
from tamis.verification.arguments import open_file
from tamis.verification.certificate import Certificate
from tamis.verification.evidence import Evidence
from tamis.verification.facts import file_facts
from tamis.verification.measurement import gather_evidence
from tamis.verification.notes import notes_of
from tamis.verification.samples import Samples
from tamis.verification.unseen import CHANCE, recognition_note, refuse_seen, refuse_training

TRAIN = load_data("digits:train[:600]")  # what the network of the fixtures was trained and calibrated on


def random_digests(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def forgetful(net: tamis.Network) -> tamis.Network:
    """As it would be if it had been trained elsewhere."""
    return net.replace(seen=NOTHING_SEEN)


# -- what the file was made with ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[tamis.Network, Path]:
    """A network, and a file made of it that has room for a good part of its calibration data."""
    torch.manual_seed(0)
    net, path = tamis.trace(digits_cnn(24), TRAIN.example), tmp_path_factory.mktemp("wide") / "small.tamis"
    tamis.quantize(net, TRAIN, levels=4, method="msq", c_alpha=2.0, progress=False).save(path)
    return net, path


@pytest.mark.parametrize("given", ["all", "permuted", "half new", "a loader"])
def test_calibration_data_of_the_file_is_refused(wide: tuple[tamis.Network, Path], data: Data, given: str) -> None:
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    some = {
        "all": TRAIN,
        "permuted": TRAIN[order],
        "half new": torch.cat([TRAIN.normalised()[order[:300]], data.normalised()]),
        "a loader": [(TRAIN.normalised()[i : i + 7], TRAIN.labels[i : i + 7]) for i in range(0, 595, 7)],
    }[given]
    message = r"about \d+ of \d+ held-out samples were used to make 'small\.tamis' \(.*calibration; it remembers one in"
    with pytest.raises(AssumptionViolated, match=message):
        tamis.certify(*wide, some)


def test_the_original_remembers_as_well(net: tamis.Network, data: Data, tmp_path: Path) -> None:
    path = tmp_path / "pruned.tamis"
    tamis.prune(forgetful(net), 0.1).save(path)
    with pytest.raises(
        AssumptionViolated, match=r"100 of 100 held-out samples were used to make the original network \(training\)"
    ):
        tamis.certify(net, path, TRAIN[:100])
    assert tamis.certify(net, path, data)["disagreement"].measured["samples"] == 300


def test_a_network_that_was_made_one_of_float64_remembers(model: nn.Module, tmp_path: Path) -> None:
    wide = copy.deepcopy(model).double()
    net, path = tamis.trace(wide, TRAIN.example.double()), tmp_path / "wide.tamis"
    tamis.prune(forgetful(net), 0.1).save(path)
    for some in (TRAIN, TRAIN.normalised().double()):
        with pytest.raises(AssumptionViolated, match=r"600 of 600 held-out samples were used to make the original"):
            tamis.certify(net, path, some)


def test_numbers_of_words_that_were_trained_on_are_refused(tmp_path: Path) -> None:
    words = torch.randint(0, 50, (200, 4), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    untrained = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(16, 2))
    trained = train(untrained, Data(words, words[:, 0] % 2, "words"), Settings(epochs=1), progress=False).model
    net, path = tamis.trace(trained, words[:2]), tmp_path / "words.tamis"
    tamis.prune(forgetful(net), 0.1, by="magnitude").save(path)
    for some in (words, words.int()):
        with pytest.raises(AssumptionViolated, match=r"200 of 200 held-out samples were used to make the original"):
            tamis.certify(net, path, some)


def test_one_in_a_thousand_is_found_where_the_file_remembers_all(net: tamis.Network, data: Data) -> None:
    seen = SeenSamples.of(data.sample_digests[:3], "search")
    with pytest.raises(AssumptionViolated, match=r"3 of 300 held-out samples were used to make 'x' \(search\)"):
        refuse_seen(data.sample_digests, {"'x'": seen})
    refuse_seen(data.sample_digests[3:], {"'x'": seen})


def test_verify_refuses_what_certify_would(wide: tuple[tamis.Network, Path], tmp_path: Path) -> None:
    """A certificate that was issued by something else than certify."""
    net, file = wide
    small = tamis.load(file, net)
    path = tmp_path / "small.tamis"
    forgotten = Compressed(forgetful(small.network), small.masks, small.recipe, small.codes)
    forgotten.save(path)
    content = tamis.certify(forgetful(net), path, TRAIN).content
    small.save(path)
    content |= {"file": file_facts(open_file(path))}
    content.pop("digest")
    with pytest.raises(AssumptionViolated, match=r"held-out samples were used to make 'small\.tamis'"):
        tamis.verify(Certificate.with_digest(content), path, forgetful(net), TRAIN)


def test_a_filter_full_of_others_refuses_new_data_as_seldom_as_it_says() -> None:
    """Data is refused from the first number of hits that chance gives at most once in 10⁹ times."""
    seen = SeenSamples.of(random_digests(50_000, 0), "training")
    mean = 10_000 * seen.chance
    assert math.isclose(mean, 4.5e-4, rel_tol=0.02)
    for hits in range(1, 6):
        tail = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(hits, hits + 30))
        queries = random_digests(10_000, 1)
        queries[:hits] = random_digests(50_000, 0)[:hits]
        try:
            refuse_seen(queries, {"it": seen})
            assert tail > CHANCE
        except AssumptionViolated:
            assert tail <= CHANCE


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[tamis.Network, Path]:
    """One of 2 channels has about 1,200 bytes, of which 2% would not hold a single sample."""
    torch.manual_seed(0)
    net, path = tamis.trace(digits_cnn(2), TRAIN.example), tmp_path_factory.mktemp("tiny") / "tiny.tamis"
    tamis.quantize(net, TRAIN, levels=4, method="msq", c_alpha=2.0, progress=False).save(path)
    return net, path


@pytest.mark.parametrize("given", ["all", "permuted", "a half", "one more"])
def test_the_smallest_file_refuses_its_own_calibration_data(
    tiny: tuple[tamis.Network, Path], data: Data, given: str
) -> None:
    inputs = TRAIN.normalised()[torch.randperm(600, generator=torch.Generator().manual_seed(1))]
    some = {
        "all": TRAIN.normalised(),
        "permuted": inputs,
        "a half": inputs[:300],
        "one more": torch.cat([inputs, data.normalised()[:1]]),
    }[given]
    with pytest.raises(AssumptionViolated, match=r"about \d+ of \d+ held-out samples were used to make 'tiny\.tamis'"):
        tamis.certify(*tiny, some)


def test_the_smallest_file_takes_new_data(tiny: tuple[tamis.Network, Path], data: Data) -> None:
    assert tamis.certify(*tiny, data).content["data"]["samples"] == 300


# -- files of before, which had 2% of their bytes to remember in, however small they were ------------------------------

ON_YOUR_WORD = "samples it was made with: that the held-out data is new rests on your word."
RECOGNISES_NONE = f"This file recognises none of the {ON_YOUR_WORD}"


def test_a_file_that_remembers_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.artifact.format_v2.compute_room", lambda nbytes: 0)
    torch.manual_seed(0)
    net, path = tamis.trace(digits_cnn(2), TRAIN.example), tmp_path / "tiny.tamis"
    tamis.quantize(net, TRAIN, levels=4, method="msq", c_alpha=2.0, progress=False).save(path)
    assert not tamis.load(path, net).seen
    cert = tamis.certify(net, path, TRAIN)  # its own calibration data, which it does not know
    assert cert.notes[-1] == RECOGNISES_NONE and "! This file recognises none of the samples" in str(cert)
    assert tamis.verify(cert, path, net, TRAIN).notes == cert.notes
    content = {name: value for name, value in cert.content.items() if name != "digest"}
    before = Certificate.with_digest(content | {"notes": content["notes"][:-1]})  # as certificates of before are
    found = tamis.verify(before, path, net, TRAIN)
    assert found.ok and found.notes == cert.notes and f"note: {RECOGNISES_NONE}" in str(found)
    for notes in ([*content["notes"], RECOGNISES_NONE], [f"This file recognises 1 of about 600 {ON_YOUR_WORD}"]):
        with pytest.raises(VerificationFailed, match="the notes do not follow from the data"):
            tamis.verify(Certificate.with_digest(content | {"notes": notes}), path, net, TRAIN)


def test_a_file_that_remembers_enough_needs_no_note(wide: tuple[tamis.Network, Path], data: Data) -> None:
    net, path = wide
    small = tamis.load(path, net)
    assert small.seen.share < 1 and recognition_note(small, 300) is None


@pytest.mark.parametrize("remembered", [1, 2, 4, 6, 7, 20, 64, 65])
def test_a_note_is_given_where_half_of_what_made_a_file_would_pass(net: tamis.Network, remembered: int) -> None:
    """Half of 200 samples, drawn at random 200 times: one hit among 100 refuses them, where up to 10 are remembered."""
    digests = random_digests(200, 0)
    seen = SeenSamples.of(digests, "calibration").first(remembered)
    note = recognition_note(Compressed(net.replace(seen=seen)), 100)
    generator, passed = np.random.default_rng(1), 0
    for _ in range(200):
        try:
            refuse_seen(generator.choice(digests, 100, replace=False), {"it": seen})
            passed += 1
        except AssumptionViolated:
            pass
    expected = 200 * 0.5**remembered
    assert abs(passed - expected) <= 5 * math.sqrt(expected) + 1
    assert (note is not None) is (0.5**remembered > 0.01)
    if note is not None:
        assert f"recognises {remembered} of about " in note


def test_a_network_that_no_data_made_has_nothing_to_recognise(net: tamis.Network) -> None:
    pruned = tamis.prune(forgetful(net), 0.5)
    assert recognition_note(pruned, 300) is None
    everything = SeenSamples.of(random_digests(3, 0), "calibration")
    assert recognition_note(pruned.with_seen(everything), 300) is None  # all three of them


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["permuted", "one more", "one of them"])
def test_training_data_is_refused_in_any_order_and_in_part(
    net: tamis.Network, data: Data, tmp_path: Path, given: str
) -> None:
    path = tmp_path / "small.tamis"
    original = forgetful(net)
    tamis.prune(original, 0.1).save(path)
    some = {"permuted": TRAIN[torch.arange(599, -1, -1)], "one more": TRAIN, "one of them": data}[given]
    inputs, labels = some.normalised(), some.labels
    if given == "one more":
        inputs, labels = torch.cat([inputs, data.normalised()[:1]]), torch.cat([labels, data.labels[:1]])
    if given == "one of them":
        inputs, labels = torch.cat([inputs, TRAIN.normalised()[:1]]), torch.cat([labels, TRAIN.labels[:1]])
    count = {"permuted": "600 of 600", "one more": "600 of 601", "one of them": "1 of 301"}[given]
    with pytest.raises(AssumptionViolated, match=f"{count} held-out samples are among those of training"):
        tamis.certify(original, path, inputs, labels, training=TRAIN)


def test_training_apart_from_held_out_data_is_taken() -> None:
    refuse_training(random_digests(100, 0), random_digests(100, 1))


# -- equal samples -----------------------------------------------------------------------------------------------------


def test_twenty_samples_many_times_are_twenty(net: tamis.Network, data: Data, tmp_path: Path) -> None:
    path, twenty = tmp_path / "small.tamis", data[:20]
    tamis.prune(forgetful(net), 0.5).save(path)
    once = tamis.certify(forgetful(net), path, twenty)
    many = tamis.certify(forgetful(net), path, twenty[torch.arange(20).repeat(50)])
    assert many.content["data"]["samples"] == 20 and many.content["data"]["given"] == 1000
    assert many.notes[0] == (
        "Of 1,000 held-out samples given, 20 are distinct: so many count, and of all that were given the worst."
    )
    assert "! Of 1,000 held-out samples given, 20 are distinct" in str(many)
    for claim in once.claims:
        assert many[claim.name].bound.value >= claim.bound.value
        assert many[claim.name].measured.get("samples") in (None, 20)
    assert tamis.verify(many, path, forgetful(net), twenty[torch.arange(20).repeat(50)]).ok
    forged = many.content
    forged["data"]["samples"] = forged["data"]["given"]
    forged.pop("digest")
    with pytest.raises(VerificationFailed, match=r"the samples is 20, and the certificate says 1000"):
        tamis.verify(Certificate.with_digest(forged), path, forgetful(net), twenty[torch.arange(20).repeat(50)])


def some_evidence(copies: list[int], seed: int) -> tuple[Evidence, Evidence, Evidence]:
    """Of samples that come so often; the same with each once; and with each counted as given."""
    generator = torch.Generator().manual_seed(seed)
    count, places = len(copies), torch.repeat_interleave(torch.arange(len(copies)), torch.tensor(copies))
    answers = [torch.randint(0, 3, (count,), generator=generator) for _ in range(2)]
    distances = torch.rand(count, generator=generator, dtype=torch.float64)
    known = torch.randint(0, 3, (count,), generator=generator)
    margins = torch.ones(count, dtype=torch.float64)
    digests = random_digests(count, seed)
    rest = {"inputs": "", "labels": "", "first": (), "largest_input": 1.0, "largest_score": 1.0, "rounding": 1e-5}

    def of(at: torch.Tensor, samples: int) -> Evidence:
        pairs = {"answers": (answers[0][at], answers[1][at]), "margins": (margins[at], margins[at])}
        return Evidence(
            samples=samples,
            given=len(at),
            digests=digests[at.numpy()],
            distances=distances[at],
            known=known[at],
            **pairs,
            **rest,
        )

    return of(places, count), of(torch.arange(count), count), of(places, len(places))


@pytest.mark.parametrize("seed", range(6))
def test_bounds_from_copies_are_no_smaller_than_from_all_draws_or_from_distinct_ones(seed: int) -> None:
    copies = torch.randint(1, 5, (30,), generator=torch.Generator().manual_seed(seed)).tolist()
    worst, once, given = some_evidence(copies, seed)
    for count in ("different", "errors", "worse"):
        rates = [disagreement(getattr(e, count)(0), e.samples, 0.05).value for e in (worst, once, given)]
        assert rates[0] >= max(rates[1:])
    assert worst.better(0) <= once.better(0) and worst.better(0) <= given.better(0)
    assert worst.better(0) + worst.worse(0) <= worst.samples
    lost = [accuracy_change(e.worse(0), e.better(0), e.samples, 0.05).value for e in (worst, once, given)]
    assert lost[0] >= max(lost[1:])
    far = [deviation_quantile(e.largest_distances(), 0.8, 0.05).value for e in (worst, once, given)]
    assert far[0] >= max(far[1:])


def test_one_sample_with_two_labels_counts_once_and_as_wrong(net: tamis.Network, data: Data) -> None:
    right = net(data.normalised()).argmax(1)
    inputs, labels = data.normalised()[[0, 0, 1]], torch.stack([right[0], (right[0] + 1) % 10, right[1]])
    seen = gather_evidence(net, net, Samples(inputs, labels))
    assert (seen.samples, seen.given, seen.errors(0), seen.worse(0), seen.better(0)) == (2, 3, 1, 0, 0)


def test_samples_are_counted_the_same_however_they_come(net: tamis.Network, data: Data) -> None:
    inputs = data.normalised()[torch.arange(40) % 33]
    whole = gather_evidence(net, net, Samples(inputs))
    parts = gather_evidence(net, net, Samples([inputs[i : i + 3] for i in range(0, 40, 3)]))
    assert whole.samples == parts.samples == 33 and whole.given == parts.given == 40


# -- networks that guess -----------------------------------------------------------------------------------------------


def test_a_network_that_was_just_made_is_said_to_guess(data: Data, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, path = tamis.trace(digits_cnn(2), data.example), tmp_path / "small.tamis"
    tamis.quantize(net, TRAIN, levels=4, progress=False).save(path)
    cert = tamis.certify(net, path, data)
    (note,) = cert.notes
    assert "it cannot be told from guessing. Are its weights trained ones?" in note and f"! {note[:40]}" in str(cert)
    assert tamis.verify(cert, path, net, data).ok
    cert.save(tmp_path / "small.json")
    report(tmp_path / "small.json", tmp_path / "page.html")
    assert "cannot be told from guessing" in (tmp_path / "page.html").read_text()
    silent = {name: value for name, value in cert.content.items() if name != "digest"} | {"notes": []}
    with pytest.raises(VerificationFailed, match="the notes do not follow from the data"):
        tamis.verify(Certificate.with_digest(silent), path, net, data)
    with pytest.raises(VerificationFailed, match="the certificate says no accuracy, and its data has labels"):
        tamis.verify(Certificate.with_digest(silent | {"accuracy": None}), path, net, data)


def test_a_trained_network_is_not_said_to_guess(cert: tamis.Certificate) -> None:
    assert cert.notes == ()


@pytest.mark.parametrize(("right", "said"), [(100, True), (120, True), (130, False), (900, False)])
def test_guessing_is_where_chance_would_do_as_well(right: int, said: bool) -> None:
    """1,000 samples, 100 of the most frequent class: 130 right are more than the limit of 1% (124), 120 are not."""
    data = {"given": 1000, "samples": 1000}
    accuracy = {"before": right / 1000, "after": 0.5, "guessing": 0.1}
    content = {"network": {"just_initialised": False}, "data": data, "training": None, "accuracy": accuracy}
    assert bool(notes_of(content)) is said
