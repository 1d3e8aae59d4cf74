"""What is required of a certificate: how people write it, what it is judged by, and where the verdict stands."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.training import Data
from tamis.verification.certificate import Certificate
from tamis.verification.requirements import describe_requirement, judge, parse_rate, verdict

CLAIMS = [{"claim": "disagreement", "value": 0.0123001}, {"claim": "accuracy_change", "value": -0.004}]


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        ("1pt", 0.01),
        ("1 pt", 0.01),
        ("0.01", 0.01),
        ("1%", 0.01),
        (" 1.1 % ", 0.011),
        (".5%", 0.005),
        ("1e-2", 0.01),
        ("0", 0.0),
        ("100%", 1.0),
        (0.01, 0.01),
        (1, 1.0),
    ],
)
def test_rates_as_people_write_them(written: object, rate: float) -> None:
    assert parse_rate(written, "--max-accuracy-drop") == rate


@pytest.mark.parametrize(
    "written", ["", "one", "2", "-1%", "101%", "1e2", "1 ppt", "nan", True, 1.5, -0.1, float("nan")]
)
def test_others_are_refused_with_what_can_be_written(written: object) -> None:
    with pytest.raises(InvalidInput, match=r"--max-accuracy-drop must be a rate from 0 to 1, as 0.01, 1% or 1pt; got"):
        parse_rate(written, "--max-accuracy-drop")


def test_the_bound_is_judged_and_not_what_was_measured() -> None:
    found = judge({"accuracy_change": 0.0, "disagreement": 0.0123}, CLAIMS)
    assert [each["holds"] for each in found] == [True, False] and verdict(found) is False
    assert verdict(judge({"disagreement": 0.0124}, CLAIMS)) is True and verdict([]) is None


def test_a_bound_in_words_is_rounded_up_and_what_is_required_is_exact() -> None:
    said = [
        describe_requirement(each, CLAIMS) for each in judge({"disagreement": 0.00125, "accuracy_change": 0.01}, CLAIMS)
    ]
    assert said == [
        "different answers: at most 0.125% required, at most 1.24% certified",
        "accuracy lost: at most 1 pt required, at most -0.40 pt certified",
    ]


def test_labels_that_are_needed_are_missed_at_the_first_batch(net: tamis.Network, file: Path, data: Data) -> None:
    given = []

    def batches() -> Iterator[Tensor]:
        for place in range(0, len(data), 10):
            given.append(place)
            yield data.normalised()[place : place + 10]

    for called, said in (("mine:loader", "'mine:loader'"), (None, "inputs")):
        with pytest.raises(InvalidInput, match=f"^{said} has no labels, which max_accuracy_drop='1pt' needs$"):
            tamis.certify(net, file, batches(), max_accuracy_drop="1pt", data_called=called)
    assert given == [0, 0]


def test_classes_that_are_needed_are_missed_before_any_data(file: Path) -> None:
    net = tamis.trace(nn.Conv2d(1, 2, 3), torch.zeros(1, 1, 8, 8))
    with pytest.raises(
        InvalidInput, match=r"^max_disagreement=0\.02 needs a network with one score for each class, and "
    ):
        tamis.certify(net, file, iter(()), max_disagreement=0.02)


@pytest.mark.parametrize(("most", "passed"), [("100%", True), ("0.1%", False)])
def test_the_certificate_says_it_first(most: str, passed: bool, net: tamis.Network, file: Path, data: Data) -> None:
    cert = tamis.certify(net, file, data, max_disagreement=most)
    assert cert.passed is passed
    first, second, *_ = str(cert).splitlines()
    assert first == ("PASS" if passed else "FAIL") and second.startswith(f"  {first}  different answers: at most")
    found = tamis.verify(cert, file, net, data)
    assert found.ok and found.passed is passed and f"required of it: {first}" in str(found)  # it is true either way


FORGERIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "what fails": lambda content: content["requirements"][0].update(holds=True),
    "twice the same": lambda content: content["requirements"].append(content["requirements"][0]),
    "what nobody can require": lambda content: content["requirements"][0].update(claim="error_rate"),
    "what is not claimed": lambda content: content.update(claims=content["claims"][1:]),
    "a bound that is no number": lambda content: content["claims"][0].update(value=None),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_verdict_that_does_not_follow_is_not_even_read(
    what: str, net: tamis.Network, file: Path, data: Data, tmp_path: Path
) -> None:
    content = tamis.certify(net, file, data, max_disagreement="0.1%").content
    FORGERIES[what](content)
    del content["digest"]
    forged = Certificate.with_digest(content)
    forged.save(tmp_path / "forged.json")
    with pytest.raises(CorruptArtifact, match="whether it passes does not follow from what it claims"):
        Certificate.load(tmp_path / "forged.json")
    with pytest.raises(CorruptArtifact, match="whether it passes does not follow from what it claims"):
        tamis.verify(forged, file, net, data)


def test_nothing_required_is_no_verdict(cert: tamis.Certificate) -> None:
    assert cert.passed is None and "PASS" not in str(cert) and "FAIL" not in str(cert)
