"""Certificates for whoever looks again as samples come in."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tamis
from tamis.bounds import difference_at_any_time, rate_at_any_time
from tamis.bounds.confidence_sequence import rank_at_any_time
from tamis.errors import CorruptArtifact, InvalidInput, VerificationFailed
from tamis.training import Data, load_data
from tamis.verification.certificate import Certificate, digest_of

TRAIN = load_data("digits:train[:600]")  # what the network of these tests was trained on
LOOKS = ", however often one looks, "
HELD_OUT = ("disagreement", "accuracy_change", "error_rate", "deviation")


@pytest.fixture(scope="module")
def sequential(net: tamis.Network, file: Path, data: Data) -> Certificate:
    return tamis.certify(net, file, data, training=TRAIN, radius=0.01, boxed=1, sequential=True)


def test_claims_of_held_out_data_hold_at_any_time(sequential: Certificate) -> None:
    for name in HELD_OUT:
        claim = sequential[name]
        assert claim.bound.citation == "waudbysmith2024betting" and LOOKS in claim.sentence
    different = sequential["disagreement"]
    assert different.delta is not None
    count, n = different.measured["different"], different.measured["samples"]
    assert different.bound.value == rate_at_any_time("different", count, n, different.delta).value
    change = sequential["accuracy_change"].measured
    expected = difference_at_any_time(change["worse"], change["better"], change["samples"], different.delta)
    assert sequential["accuracy_change"].bound.value == expected.value
    assert sequential["deviation"].bound.terms["rank"] == rank_at_any_time(n, 0.95, different.delta)


def test_claims_of_anything_else_are_as_they_were(net: tamis.Network, file: Path, data: Data) -> None:
    options: dict[str, Any] = {"training": TRAIN, "radius": 0.01, "boxed": 1}
    once, again = (tamis.certify(net, file, data, sequential=looks, **options) for looks in (False, True))
    for name in ("boxes", "path_metric", "generalization"):
        assert once[name] == again[name] and LOOKS not in again[name].sentence
    assert once.delta == again.delta and once["disagreement"].delta == again["disagreement"].delta
    assert all(LOOKS not in claim.sentence for claim in once.claims)


def test_it_is_verified_by_counts_alone_and_by_the_data(
    sequential: Certificate, net: tamis.Network, file: Path, data: Data
) -> None:
    assert tamis.verify(sequential, file, net, data, training=TRAIN).ok
    assert tamis.verify(sequential, file, net).unchecked  # the networks alone: what follows from counts is checked
    weaker = copy.deepcopy(sequential.content)
    weaker["settings"]["sequential"] = False
    with pytest.raises(VerificationFailed, match="disagreement"):
        tamis.verify(Certificate({**weaker, "digest": digest_of(weaker)}), file, net)


def test_a_limit_for_one_look_does_not_pass_for_one_of_every_look(
    net: tamis.Network, file: Path, data: Data, cert: Certificate
) -> None:
    forged = copy.deepcopy(cert.content)
    forged["settings"]["sequential"] = True
    for entry in forged["claims"]:
        entry["sentence"] = entry["sentence"].replace("confidence, ", f"confidence{LOOKS}")
    with pytest.raises(VerificationFailed, match="disagreement"):
        tamis.verify(Certificate({**forged, "digest": digest_of(forged)}), file, net, data)


def threshold(level: float) -> tamis.Network:
    """Class 1 where the entry is above the level, and class 0 elsewhere."""
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [1.0]]))
        model.bias.copy_(torch.tensor([level, 0.0]))
    return tamis.trace(model, torch.zeros(1, 1))


def test_certifying_the_first_samples_again_and_again(tmp_path: Path) -> None:
    # The answers differ on a quarter of uniform inputs, and the limit closes in on that from above.
    net = threshold(0.5)
    tamis.Compressed(threshold(0.25)).save(tmp_path / "small.tamis")
    inputs = torch.rand(2000, 1, generator=torch.Generator().manual_seed(1))
    limits = []
    for n in (250, 500, 1000, 2000):
        found = tamis.certify(net, tmp_path / "small.tamis", inputs[:n], sequential=True)
        assert tamis.verify(found, tmp_path / "small.tamis", net, inputs[:n]).ok
        limits.append(found["disagreement"].bound.value)
    assert limits == sorted(limits, reverse=True) and limits[-1] > 0.25


@pytest.mark.parametrize("value", [1, "yes", None])
def test_what_is_neither_true_nor_false_is_refused(value: Any, net: tamis.Network, file: Path, data: Data) -> None:
    with pytest.raises(InvalidInput, match=f"sequential must be True or False, got {value!r}"):
        tamis.certify(net, file, data, sequential=value)


def test_a_certificate_of_version_2_says_which_it_is(cert: Certificate) -> None:
    content = cert.content
    assert content["settings"]["sequential"] is False
    for changed in (dict(content["settings"], sequential=1), {**content["settings"], "sequential": None}):
        with pytest.raises(CorruptArtifact, match="settings"):
            Certificate({**content, "settings": changed}).check()


# -- what the pages say ------------------------------------------------------------------------------------------------

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = json.loads((DOCS / "results" / "looking_again.json").read_text(encoding="utf-8"))["figures"]


def test_the_page_on_bounds_has_the_stored_figures() -> None:
    page = (DOCS / "bounds.md").read_text(encoding="utf-8")
    for case, found in FIGURES["price"].items():
        what, n = case.rsplit(" of ", 1)
        row = found["δ = 0.05"]
        assert f"| {what} | {n} | {row['once']:.3f} | {row['any time']:.3f} | {row['price']:.3f} |" in page


@pytest.mark.parametrize("rate", ["0.5%", "2.0%", "5.0%"])
def test_the_page_on_certificates_has_the_stored_figures(rate: str) -> None:
    stored = {n: FIGURES["price"][f"{rate} of {n}"] for n in ("1,000", "10,000", "100,000")}
    cells = [f"{row['δ = 0.0125']['once']:.2f} → {row['δ = 0.0125']['any time']:.2f}" for row in stored.values()]
    page = (DOCS / "certificates.md").read_text(encoding="utf-8")
    assert f"| {rate.replace('.0', '')} | {' | '.join(cells)} |" in page


def test_the_stored_figures_are_those_of_the_limits() -> None:
    for case, found in FIGURES["price"].items():
        if "%" not in case:
            continue
        rate, n = float(case.split("%")[0]) / 100, int(case.split()[-1].replace(",", ""))
        value = rate_at_any_time("different", round(rate * n), n, 0.05).value
        assert found["δ = 0.05"]["any time"] == pytest.approx(100 * value, rel=1e-9)
    wrong = FIGURES["wrong"]["2.0%"]
    assert f"{wrong['every 100']:.0%} {wrong['one look']:.1%} {wrong['every 100, at any time']:.1%}" == "25% 4.3% 2.9%"
