"""How the claims of a certificate share δ, and what they rest on, as the version of the certificate says."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.recipes import DELTA
from tamis.verification.claim import Kind
from tamis.verification.claims import kinds_of
from tamis.verification.schema import VERSION
from tamis.verification.settings import Settings
from tamis.verification.shares import share_of_disagreement, share_out

STORED = Path(__file__).parent / "version_1" / "resnet32.json"


def named(version: int, *names: str) -> list[Kind]:
    return [kind for kind in kinds_of(version) if kind.name in names]


def test_generalization_takes_a_hundredth_and_the_others_share_the_rest() -> None:
    shares = share_out(0.05, kinds_of(2))
    assert shares["generalization"] == pytest.approx(0.0005)
    others = [shares[kind.name] for kind in kinds_of(2) if kind.statistical and kind.name != "generalization"]
    assert others == [pytest.approx(0.05 * 0.99 / 4)] * 4
    assert shares["boxes"] == shares["path_metric"] == 0.0


def test_certificates_of_version_1_keep_the_shares_they_were_made_with() -> None:
    content = json.loads(STORED.read_text())
    assert content["certificate"] == 1
    shares = share_out(content["settings"]["delta"], named(1, *(entry["claim"] for entry in content["claims"])))
    assert {entry["claim"]: entry["delta"] or 0.0 for entry in content["claims"]} == shares


def test_certificates_of_version_1_keep_the_bound_they_were_made_with() -> None:
    content = json.loads(STORED.read_text())
    entry = next(entry for entry in content["claims"] if entry["claim"] == "accuracy_change")
    settings = Settings(**content["settings"])
    before, now = (named(version, "accuracy_change")[0] for version in (1, 2))
    assert before.bound(entry["measured"], settings, entry["delta"]).value == pytest.approx(entry["value"], rel=1e-12)
    assert now.bound(entry["measured"], settings, entry["delta"]).value <= 0.0156 < entry["value"]


def test_a_budget_plans_with_what_the_certificate_will_have() -> None:
    for labelled, names in ((True, ("accuracy_change", "error_rate")), (False, ())):
        kinds = named(VERSION, "disagreement", "deviation", "path_metric", *names)
        assert share_of_disagreement(DELTA, labelled) == share_out(DELTA, kinds)["disagreement"]
    assert share_of_disagreement(DELTA, True) < share_of_disagreement(DELTA, False) < DELTA


@given(
    delta=st.floats(1e-9, 1 - 1e-9),
    version=st.sampled_from([1, 2]),
    names=st.sets(st.sampled_from([kind.name for kind in kinds_of(2)])),
    candidates=st.integers(1, 10**9),
)
def test_together_they_are_delta(delta: float, version: int, names: set[str], candidates: int) -> None:
    kinds = named(version, *names)
    shares = share_out(delta, kinds, candidates)
    assert shares.keys() == names
    assert all((shares[kind.name] > 0) == kind.statistical for kind in kinds)
    if any(kind.statistical for kind in kinds):
        assert sum(shares.values()) * candidates == pytest.approx(delta, rel=1e-14)
