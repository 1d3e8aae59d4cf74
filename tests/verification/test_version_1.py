"""Certificates of version 1 verify still: by equal shares of δ, in their own words, if no bound is smaller than now."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tamis
from tamis.errors import CorruptArtifact, VerificationFailed
from tamis.graph import NOTHING_SEEN
from tamis.training import Data, load_data
from tamis.verification import version_1
from tamis.verification.certificate import Certificate, digest_of
from tamis.verification.claims import kinds_of
from tamis.verification.notes import VERSION_1
from tamis.verification.settings import Settings
from tamis.verification.shares import share_out

STORED = Path(__file__).parent / "version_1" / "resnet32.json"  # issued in November 2026, before version 2
Content = dict[str, Any]


def of_version_1(content: Content) -> Content:
    """What version 1 would have said: equal shares, no names, no verdict, every digit, and its own sources."""
    old = copy.deepcopy(content) | {"certificate": 1}
    for name in ("command", "requirements", "accuracy", "notes"):
        del old[name]
    del old["data"]["given"], old["network"]["just_initialised"]
    for part in ("network", "data"):
        del old[part]["name"]
    del old["settings"]["sequential"]
    kinds = [kind for kind in kinds_of(1) if kind.name in {entry["claim"] for entry in old["claims"]}]
    settings = Settings(**old["settings"])
    shares = share_out(settings.delta, kinds)
    for kind, entry in zip(kinds, old["claims"], strict=True):
        claim = kind.claim(entry["measured"], settings, shares[kind.name])
        entry.update(version_1.restate(claim.as_json(), kind, claim, settings).as_json())
    return old


def written(content: Content, change: Callable[[Content], Any] = lambda content: None) -> Certificate:
    changed = copy.deepcopy(content)
    change(changed)
    return Certificate({**changed, "digest": digest_of(changed)})


def claim(content: Content, name: str) -> Content:
    return next(entry for entry in content["claims"] if entry["claim"] == name)


@pytest.fixture(scope="module")
def old(cert: Certificate) -> Content:
    return of_version_1(cert.content)


def test_it_verifies(old: Content, file: Path, net: tamis.Network, data: Data) -> None:
    found = tamis.verify(written(old), file, net, data)
    assert found.ok and found.recomputed == tuple(entry["claim"] for entry in old["claims"])
    assert found.notes == (VERSION_1,) and str(found).startswith(f"note: {VERSION_1}\n")


def test_what_version_1_leaves_out_is_said_by_whoever_verifies_it(net: tamis.Network, tmp_path: Path) -> None:
    blind = net.replace(seen=NOTHING_SEEN).with_params(
        {name: torch.zeros_like(net.params[name]) for name in net.trainable}
    )
    file, data = tmp_path / "blind.tamis", load_data("digits:test[:50]")
    tamis.prune(blind, 0.5, by="magnitude").save(file)
    cert = tamis.certify(blind, file, data)
    (guessing,) = cert.content["notes"]
    assert "it cannot be told from guessing" in guessing
    assert tamis.verify(cert, file, blind, data).notes == (guessing,)
    old = written(of_version_1(cert.content))
    assert tamis.verify(old, file, blind, data).notes == (VERSION_1, guessing)
    assert tamis.verify(old, file, blind).notes == (VERSION_1,)


def weaker(content: Content) -> None:
    """A bound that is larger than what follows now, as that of an older formula."""
    entry = claim(content, "path_metric")
    entry["measured"]["log_bound"] += 1e-3
    kind = next(kind for kind in kinds_of(1) if kind.name == "path_metric")
    made = kind.claim(entry["measured"], Settings(**content["settings"]), 0.0)
    entry.update(version_1.restate(made.as_json(), kind, made, Settings(**content["settings"])).as_json())


def test_a_bound_that_is_larger_than_now_is_true(old: Content, file: Path, net: tamis.Network, data: Data) -> None:
    assert tamis.verify(written(old, weaker), file, net, data).ok


def smaller(content: Content) -> None:
    entry = claim(content, "disagreement")
    entry["value"] *= 1 - 1e-6
    entry["log10"] -= 1e-6


def less_path_metric(content: Content) -> None:
    claim(content, "path_metric")["measured"]["log_bound"] -= 1e-6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (smaller, "the claim 'disagreement' states a bound of"),
        (less_path_metric, "the claim 'path_metric' does not hold: it says log_bound"),
    ],
)
def test_a_bound_that_is_smaller_than_now_is_refused_and_said_why(
    change: Callable[[Content], None], why: str, old: Content, file: Path, net: tamis.Network, data: Data
) -> None:
    with pytest.raises(VerificationFailed, match=rf"{why}.*certificate is of version 1, when not every bound rounded"):
        tamis.verify(written(old, change), file, net, data)


def test_one_sample_many_times_is_refused_and_said_why(
    old: Content, file: Path, net: tamis.Network, data: Data
) -> None:
    """Version 1 counted them all: whoever writes it still must not make 300 samples of 20."""
    copies = data[torch.arange(300) % 20]
    with pytest.raises(VerificationFailed, match=r"of 300 samples given, 20 are distinct, and the certificate, of ver"):
        tamis.verify(written(old), file, net, copies)


FORGERIES: dict[str, Callable[[Content], Any]] = {
    "a sentence": lambda c: claim(c, "error_rate").update(sentence="The small network is never wrong."),
    "a larger bound with the old sentence": lambda c: claim(c, "error_rate").update(value=0.9, log10=-0.0457575),
    "a number without its logarithm": lambda c: claim(c, "disagreement").update(log10=-3.0),
    "whether it is informative": lambda c: claim(c, "path_metric").update(informative=True),
    "a source": lambda c: claim(c, "deviation").update(source="gonon2024thesis, Theorem 1"),
    "an assumption": lambda c: claim(c, "disagreement").update(assumptions=[]),
    "a claim's δ": lambda c: claim(c, "deviation").update(delta=0.05),
    "fields of version 2": lambda c: c.update(requirements=[]),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_what_was_changed_is_found(what: str, old: Content, file: Path, net: tamis.Network, data: Data) -> None:
    with pytest.raises((VerificationFailed, CorruptArtifact)):
        tamis.verify(written(old, FORGERIES[what]), file, net, data)


def test_every_claim_of_the_stored_one_follows_from_its_numbers() -> None:
    content = Certificate.load(STORED).content
    settings = Settings(**content["settings"])
    kinds = {kind.name: kind for kind in kinds_of(1)}
    shares = share_out(settings.delta, [kinds[entry["claim"]] for entry in content["claims"]])
    assert content["certificate"] == 1 and Certificate.load(STORED).passed is None
    for entry in content["claims"]:
        kind = kinds[entry["claim"]]
        made = kind.claim(entry["measured"], settings, shares[kind.name])
        again = version_1.restate(entry, kind, made, settings).as_json()
        assert {**again, "log10": entry["log10"]} == {**entry, "log10": entry["log10"]}
