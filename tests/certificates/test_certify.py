"""Certificates: every claim against its definition, how δ is shared out, and that all of them hold together."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.bounds import Bound, accuracy_change, deviation_quantile, disagreement, error_rate
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters
from tamis.training import Data
from tamis.verification.claims.generalization import Generalization
from tamis.verification.settings import Settings
from tamis.verification.wording import format_bound, format_rate

STATISTICAL = ("disagreement", "accuracy_change", "error_rate", "deviation")


@pytest.fixture(scope="module")
def outputs(net: tamis.Network, file: Path, data: Data) -> tuple[Tensor, Tensor]:
    small, inputs = tamis.load(file, net), data.normalised()
    return net(inputs).double(), small.network(inputs).double()


def test_the_claims_are_those_of_the_definitions(
    cert: tamis.Certificate, outputs: tuple[Tensor, Tensor], data: Data, net: tamis.Network, file: Path
) -> None:
    before, after = outputs
    wrong_before, wrong_after = before.argmax(1) != data.labels, after.argmax(1) != data.labels
    n, delta = len(data), 0.05 / 4
    different = int((before.argmax(1) != after.argmax(1)).sum())
    assert different > 0, "a certificate of two networks that always agree would test little"
    worse, better = int((wrong_after & ~wrong_before).sum()), int((wrong_before & ~wrong_after).sum())
    wanted = {
        "disagreement": disagreement(different, n, delta),
        "accuracy_change": accuracy_change(worse, better, n, delta),
        "error_rate": error_rate(int(wrong_after.sum()), n, delta),
        "deviation": deviation_quantile((before - after).abs().amax(1), 0.95, delta),
    }
    assert [claim.name for claim in cert.claims] == [*STATISTICAL, "path_metric"]
    largest = float(torch.maximum(before.abs(), after.abs()).max())
    for name, bound in wanted.items():
        rounding = 1e-5 * largest if name == "deviation" else 0.0  # what another machine may see is added
        assert cert[name].bound.value == pytest.approx(bound.value + rounding, rel=1e-9), name
        assert cert[name].delta == delta and cert[name].bound.informative == bound.informative
    metric = tamis.path_metric(net, tamis.load(file, net).network)
    radius = max(1.0, float(data.normalised().abs().max()))
    assert cert["path_metric"].bound.value == pytest.approx(metric * radius)
    assert cert["path_metric"].delta is None


def test_sentences_carry_the_number(cert: tamis.Certificate) -> None:
    claim = cert["disagreement"]
    assert claim.sentence.startswith(
        "With 95% confidence, on inputs drawn like these, the small network answers differently from the original on "
        f"at most {format_rate(claim.bound.value)} of them"
    )
    for claim in cert.claims:
        assert claim.sentence.endswith(".") and claim.sentence in " ".join(str(cert).split())


def test_no_line_of_sentences_is_longer_than_the_terminal_is_wide(cert: tamis.Certificate) -> None:
    for width in range(60, 124):
        lines = cert.as_text(width).splitlines()
        first = next(place for place, line in enumerate(lines) if line[0] in "•∘")  # before it are names
        assert max(map(len, lines[first:])) <= width


def test_claims_without_labels(net: tamis.Network, file: Path, data: Data, cert: tamis.Certificate) -> None:
    unlabelled = tamis.certify(net, file, data.normalised())
    assert [claim.name for claim in unlabelled.claims] == ["disagreement", "deviation", "path_metric"]
    assert unlabelled["disagreement"].delta == 0.025
    assert unlabelled["disagreement"].bound.value < cert["disagreement"].bound.value  # fewer share δ
    assert unlabelled.content["data"]["labels"] is None


def test_every_candidate_is_paid_for(net: tamis.Network, file: Path, data: Data, cert: tamis.Certificate) -> None:
    swept = tamis.certify(net, file, data, candidates=100)
    for name in STATISTICAL:
        assert swept[name].delta == pytest.approx(cert[name].delta / 100)
        assert swept[name].bound.value >= cert[name].bound.value
    assert swept["disagreement"].bound.value > cert["disagreement"].bound.value


def test_boxes_and_generalization_when_asked_for(net: tamis.Network, file: Path, data: Data) -> None:
    train = tamis.certify(net, file, data, radius=1e-3, boxed=3, training="digits:train[:300]")
    names = [claim.name for claim in train.claims]
    assert names == [*STATISTICAL, "boxes", "path_metric", "generalization"]
    assert train["generalization"].delta == pytest.approx(0.0005)
    assert train["boxes"].measured["inputs"] == 3 and train["boxes"].bound.informative
    first = data.normalised()[:3]
    small = tamis.load(file, net).network
    for sign in (-1, 0, 1):
        there = float((net(first + sign * 1e-3) - small(first + sign * 1e-3)).abs().max())
        assert there <= train["boxes"].bound.value
    # 300 examples cannot make up for a description of thousands of bits.
    assert train["generalization"].measured["bits"] > 2000
    assert not train["generalization"].bound.informative and "says nothing" in train["generalization"].sentence


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_bound_on_errors_is_informative_below_those_of_guessing(classes: int, cert: tamis.Certificate) -> None:
    """Without an error among n examples, the bound is the p with (1 − p)ⁿ = δ 2^−bits, in closed form."""
    guessing, samples, delta = 1 - 1 / classes, 100, 0.05
    for share in (0.97, 1.03):  # of the bits that lead to the errors of guessing
        bits = round(share * math.log2(delta / (1 - guessing) ** samples))
        measured = {"errors": 0, "samples": samples, "bits": bits, "classes": classes}
        bound = Generalization().bound(measured, Settings(**cert.content["settings"]), delta)
        assert bound.value == pytest.approx(1 - (delta * 2.0**-bits) ** (1 / samples), rel=1e-9)
        assert bound.informative is (share < 1)


class Refilled:
    """A loader that gives the same tensor again and again, with other numbers in it."""

    def __init__(self, inputs: torch.Tensor, batch: int) -> None:
        self.inputs, self.buffer = inputs.split(batch), torch.empty_like(inputs[:batch])

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.buffer[: len(part)].copy_(part) for part in self.inputs)


def test_a_loader_may_use_its_memory_again(net: tamis.Network, file: Path, data: Data) -> None:
    inputs = data.normalised()
    kept = tamis.certify(net, file, inputs, radius=0.01, boxed=4)  # more than a batch of the loader
    refilled = tamis.certify(net, file, Refilled(inputs, 3), radius=0.01, boxed=4)
    assert refilled.content["data"] == kept.content["data"] | {"name": "Refilled"}
    assert refilled["boxes"].bound.value == kept["boxes"].bound.value > 0  # of scores, batches may round the last bit


def test_progress_counts_held_out_and_training_samples(net: tamis.Network, file: Path, data: Data) -> None:
    seen: list[tuple[int, int]] = []
    training = (torch.randn(30, *data.example.shape[1:]), torch.zeros(30, dtype=torch.int64))
    tamis.certify(net, file, data, training=training, progress=lambda each: seen.append((each.done, each.total)))
    assert seen[-1] == (len(data) + 30, len(data) + 30) and [done for done, _ in seen] == sorted(
        done for done, _ in seen
    )


def test_the_same_network_costs_nothing(net: tamis.Network, data: Data, tmp_path: Path) -> None:
    tamis.Compressed(net).save(tmp_path / "same.tamis")
    cert = tamis.certify(net, tmp_path / "same.tamis", data, radius=0.1, boxed=2)
    n = len(data)
    assert cert["disagreement"].bound.value == pytest.approx(1 - (0.05 / 4) ** (1 / n))
    assert cert["deviation"].bound.value == 0 and cert["boxes"].bound.value == 0
    assert cert["path_metric"].bound.value == 0 and cert["path_metric"].bound.informative


def test_networks_that_are_no_classifiers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = tamis.trace(nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1)), torch.zeros(1, 3))
    tamis.prune(net, 0.3, by="magnitude").save(tmp_path / "small.tamis")
    cert = tamis.certify(net, tmp_path / "small.tamis", torch.randn(400, 3))
    assert [claim.name for claim in cert.claims] == ["deviation"]  # no answers, and GELU has no path-metric
    with pytest.raises(InvalidInput, match="labels need a network with one score for each class"):
        tamis.certify(net, tmp_path / "small.tamis", torch.randn(400, 3), torch.zeros(400, dtype=torch.int64))


def test_too_few_inputs_are_said_to_be_too_few(net: tamis.Network, file: Path, data: Data) -> None:
    cert = tamis.certify(net, file, data.normalised()[:20])
    assert not cert["deviation"].bound.informative and math.isinf(cert["deviation"].bound.value)
    assert cert["deviation"].sentence.startswith("20 inputs are too few")


def test_all_claims_hold_together_as_often_as_they_say(tmp_path: Path) -> None:
    """Two linear classifiers on a distribution of which everything is known: 30 certificates, δ = 0.2."""
    generator = torch.Generator().manual_seed(1)
    population = torch.randn(20_000, 4, generator=generator)
    model = nn.Linear(4, 3, bias=False)
    model.weight.data = torch.randn(3, 4, generator=generator)
    net = tamis.trace(model, population[:1])
    path = tmp_path / "small.tamis"
    tamis.prune(net, 3, by="magnitude").save(path)
    small = tamis.load(path, net).network
    noise = torch.randint(0, 3, (len(population),), generator=generator)
    truth = torch.where(torch.rand(len(population), generator=generator) < 0.2, noise, net(population).argmax(1))
    before, after = net(population), small(population)
    right, left = before.argmax(1) == truth, after.argmax(1) == truth
    known = {
        "disagreement": float((before.argmax(1) != after.argmax(1)).float().mean()),
        "accuracy_change": float(right.float().mean() - left.float().mean()),
        "error_rate": float((~left).float().mean()),
        "deviation": float((before - after).abs().amax(1).double().quantile(0.95, interpolation="lower")),
    }
    broken = 0
    for _ in range(30):
        drawn = torch.randint(0, len(population), (100,), generator=generator)
        cert = tamis.certify(net, path, population[drawn], truth[drawn], delta=0.2)
        broken += any(cert[name].bound.value < value for name, value in known.items())
    assert broken <= 30 * 0.2


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_certificate_comes_back_as_it_was_saved(cert: tamis.Certificate, tmp_path: Path) -> None:
    cert.save(tmp_path / "small.json")
    again = tamis.Certificate.load(tmp_path / "small.json")
    assert again.content == cert.content and str(again) == str(cert) and again.delta == 0.05
    assert [claim.sentence for claim in again.claims] == [claim.sentence for claim in cert.claims]
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "small.json").read_bytes()


def test_every_changed_byte_is_found(cert: tamis.Certificate, tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    cert.save(path)
    content = path.read_bytes()
    for place in range(0, len(content), 13):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CorruptArtifact):
            tamis.Certificate.load(path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"certificate": 2}', b"[" * 100_000, b'{"certificate": 1}'])
def test_what_is_no_certificate_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_bytes(content)
    with pytest.raises(CorruptArtifact, match="certificate"):
        tamis.Certificate.load(tmp_path / "no.json")


def test_it_is_plain_json(cert: tamis.Certificate, tmp_path: Path) -> None:
    cert.save(tmp_path / "small.json")

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads((tmp_path / "small.json").read_text(), parse_constant=refuse) == cert.content


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0}, r"delta must be a number between 0 and 1, .* got 0"),
        ({"delta": "0.05"}, "delta must be a number"),
        ({"coverage": 1.0}, r"coverage must be a number between 0 and 1, .* got 1.0"),
        ({"candidates": 0}, r"candidates must be a whole number of at least 1, .* got 0"),
        ({"candidates": 1.5}, "candidates must be a whole number"),
        ({"radius": -1.0}, "radius must be a finite number of at least 0, got -1.0"),
        ({"boxed": 0}, "boxed must be a whole number"),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, Any], message: str, net: tamis.Network, file: Path, data: Data
) -> None:
    with pytest.raises(InvalidInput, match=message):
        tamis.certify(net, file, data, **options)


def test_labels_out_of_range_are_refused(net: tamis.Network, file: Path, data: Data) -> None:
    with pytest.raises(InvalidInput, match="labels go from 0 to 10, the network has classes 0 to 9"):
        tamis.certify(net, file, data.normalised(), torch.where(data.labels == 0, 10, 0))


@pytest.mark.parametrize("labels", [[[1], [2, 3]], torch.ones(3, dtype=torch.bfloat16), [1.5, 2.5, 3.5]])
def test_labels_that_are_none_are_refused(labels: Any, net: tamis.Network, file: Path, data: Data) -> None:
    with pytest.raises(InvalidInput, match="labels must be class numbers, got"):
        tamis.certify(net, file, data.normalised()[:3], labels)


def test_an_example_may_be_an_array(model: nn.Module, file: Path, data: Data) -> None:
    example = data.normalised()[:1].numpy()
    assert tamis.certify(model, file, data, example=example).content["data"]["samples"] == len(data)
    with pytest.raises(InvalidInput, match="example must be a tensor or an array, got str"):
        tamis.certify(model, file, data, example="digits")


def test_training_without_labels_is_refused(net: tamis.Network, file: Path, data: Data) -> None:
    with pytest.raises(InvalidInput, match="training has no labels, which the bound from the code length needs"):
        tamis.certify(net, file, data, training=data.normalised())


def test_a_file_of_another_model_is_refused(file: Path, data: Data) -> None:
    other = tamis.trace(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data.example)
    with pytest.raises(InvalidParameters):
        tamis.certify(other, file, data)


def test_outputs_that_are_not_finite_are_refused(net: tamis.Network, data: Data, tmp_path: Path) -> None:
    huge = net.with_params({name: value * 1e30 for name, value in net.params.items() if name in net.trainable})
    tamis.Compressed(huge).save(tmp_path / "huge.tamis")
    with pytest.raises(InvalidInput, match=r"sample 0 .* an output of the small network is not finite"):
        tamis.certify(net, tmp_path / "huge.tamis", data)


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "text"), [(0.0, "0.00%"), (0.0123, "1.23%"), (0.01230001, "1.24%"), (1.0, "100.00%")])
def test_rates_are_rounded_up(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.234, "1.24"),
        (123.4, "124"),
        (0.012341, "0.0124"),
        (0.000101, "0.000101"),
        (9e-5, "10^-4.04"),
        (1e-7, "10^-7.00"),
        (999_000.0, "999000"),
        (1.02e6, "10^6.01"),
        (2e9, "10^9.31"),
        (10, "10.0"),
    ],
)
def test_amounts_are_rounded_up(value: float, text: str) -> None:
    log = math.log(value) if value else -math.inf
    assert format_bound(Bound(value, log, True, "gonon2024thesis, Theorem 3.4.1")) == text
