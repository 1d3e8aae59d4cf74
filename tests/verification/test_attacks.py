"""Attacks: forgers who can recompute digests, hostile JSON, odd data, and sentences that say more than is proved."""

import copy
import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from exact_paths import forged
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import tamis
from tamis.bounds import Bound
from tamis.errors import AssumptionViolated, CorruptArtifact, InvalidInput, TamisError, VerificationFailed
from tamis.graph import trace_with_batch
from tamis.verification.certificate import Certificate, digest_of
from tamis.verification.claims import kinds_of
from tamis.verification.claims.accuracy_change import AccuracyChange
from tamis.verification.claims.boxes import Boxes
from tamis.verification.measurement import gather_evidence
from tamis.verification.samples import Samples
from tamis.verification.schema import LARGEST_FLOAT, VERSION_2, check_form
from tamis.verification.settings import Settings
from tamis.verification.shares import share_out

REFUSED = (VerificationFailed, CorruptArtifact)
Content = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """Two networks, data, and a certificate with every kind of claim."""

    net: tamis.Network
    file: Path
    inputs: Tensor
    labels: Tensor
    training: tuple[Tensor, Tensor]
    cert: Certificate

    def verify(self, certificate: str | Path | Certificate, with_data: bool = True, **options: Any) -> Any:
        data = {"inputs": self.inputs, "labels": self.labels, "training": self.training} if with_data else {}
        return tamis.verify(certificate, self.file, self.net, **data, **options)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    net = tamis.trace(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.zeros(1, 4))
    file = tmp_path_factory.mktemp("scene") / "small.tamis"
    tamis.prune(net, 12, by="magnitude").save(file)
    inputs, others = torch.randn(300, 4, generator=generator), torch.randn(120, 4, generator=generator)
    labels, training = net(inputs).argmax(1), (others, net(others).argmax(1))
    labels[:40] = (labels[:40] + 1) % 3
    cert = tamis.certify(net, file, inputs, labels, training=training, radius=0.01, boxed=2)
    return Scene(net, file, inputs, labels, training, cert)


# -- forgers -----------------------------------------------------------------------------------------------------------


def digested(content: Content) -> Certificate:
    """With a digest to match, as any forger can compute it."""
    return Certificate({**content, "digest": digest_of(content)})


def rederived(content: Content) -> Certificate:
    """With every claim derived anew from what it says was measured, as the verifier will."""
    settings = Settings(**content["settings"])
    by_name = {kind.name: kind for kind in kinds_of(content["certificate"])}
    kinds = [by_name[entry["claim"]] for entry in content["claims"]]
    shares = share_out(settings.delta, kinds, settings.candidates)
    pairs = zip(kinds, content["claims"], strict=True)
    claims = [kind.claim(entry["measured"], settings, shares[kind.name]).as_json() for kind, entry in pairs]
    return digested({**content, "claims": claims})


def entry_of(content: Content, name: str) -> Content:
    return next(entry for entry in content["claims"] if entry["claim"] == name)


def copied(cert: Certificate) -> Content:
    return copy.deepcopy(cert.content)


def test_the_scene_is_verified(scene: Scene) -> None:
    assert scene.verify(scene.cert).ok and scene.verify(rederived(copied(scene.cert))).ok


@pytest.mark.parametrize("with_data", [True, False])
@pytest.mark.parametrize("left", [["error_rate"], ["disagreement", "path_metric"], ["path_metric"], []], ids=str)
def test_claims_cannot_be_left_out_so_that_others_get_their_part_of_delta(
    left: list[str], with_data: bool, scene: Scene
) -> None:
    """Whoever may drop claims after seeing them picks the best at the whole of δ: four chances of being wrong by δ."""
    content = copied(scene.cert)
    content["claims"] = [entry for entry in content["claims"] if entry["claim"] in left]
    with pytest.raises(REFUSED):
        scene.verify(rederived(content), with_data)


def test_claims_in_another_order_are_refused(scene: Scene) -> None:
    content = copied(scene.cert)
    content["claims"].reverse()
    with pytest.raises(REFUSED):
        scene.verify(digested(content))


@pytest.mark.parametrize("with_data", [True, False])
def test_a_certificate_in_memory_must_fit_its_digest(with_data: bool, scene: Scene) -> None:
    content = copied(scene.cert)
    content["date"] = "1999-01-01"
    with pytest.raises(REFUSED):
        scene.verify(Certificate(content), with_data)


def write_keys(folder: Path) -> tuple[Path, Path]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "key.pem").write_bytes(private)
    (folder / "key.pub").write_bytes(public)
    return folder / "key.pem", folder / "key.pub"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def signed(scene: Scene, keys: tuple[Path, Path]) -> Certificate:
    return tamis.certify(scene.net, scene.file, scene.inputs, scene.labels, sign=keys[0])


def test_a_signature_does_not_vouch_for_content_that_was_changed_in_memory(
    signed: Certificate, scene: Scene, keys: tuple[Path, Path]
) -> None:
    """The digest of before stays in place, so that its signature still fits it."""
    content = copied(signed)
    for entry in content["claims"]:
        if entry["claim"] == "error_rate":
            entry["measured"]["errors"] = 0
    forged = Certificate({**rederived(content).content, "digest": signed.content["digest"]})
    with pytest.raises(REFUSED):
        tamis.verify(forged, scene.file, scene.net, signed_by=keys[1])


def test_what_was_signed_cannot_be_changed_in_place(scene: Scene, keys: tuple[Path, Path], signed: Certificate) -> None:
    mine = Certificate(signed.content)
    mine.content["date"] = "1999-01-01"
    assert mine.content == signed.content and tamis.verify(mine, scene.file, scene.net, signed_by=keys[1]).ok


@pytest.mark.parametrize("change", ["algorithm", "note", "spaces", "capitals"])
def test_not_a_byte_of_a_signature_may_change(
    change: str, signed: Certificate, scene: Scene, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    signature = dict(signed.content["signature"])
    signature |= {
        "algorithm": {"algorithm": "none"},
        "note": {"note": "approved by everybody"},
        "spaces": {"signature": re.sub("(..)", r"\1 ", signature["signature"])},
        "capitals": {"public_key": signature["public_key"].upper() + ("" if _has_letters(signature) else " ")},
    }[change]
    Certificate({**signed.content, "signature": signature}).save(tmp_path / "signed.json")
    with pytest.raises(REFUSED):
        tamis.verify(tmp_path / "signed.json", scene.file, scene.net, signed_by=keys[1])


def _has_letters(signature: dict[str, str]) -> bool:
    return any(letter in "abcdef" for letter in signature["public_key"])


# -- what the tolerances leave to a forger -----------------------------------------------------------------------------


def offset_scene(tmp_path: Path, offset: float, dtype: torch.dtype) -> tuple[tamis.Network, Path, Tensor]:
    """A classifier whose scores all have one large number added, which changes no answer."""
    torch.manual_seed(3)
    model = nn.Linear(4, 3).to(dtype)
    model.bias.data += offset
    net = tamis.trace(model, torch.zeros(1, 4, dtype=dtype))
    tamis.prune(net, 6, by="magnitude").save(tmp_path / "offset.tamis")
    return net, tmp_path / "offset.tamis", torch.randn(400, 4, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_offset_of_all_scores_does_not_hide_differences(dtype: torch.dtype, tmp_path: Path) -> None:
    net, file, inputs = offset_scene(tmp_path, 1e5, dtype)
    cert = tamis.certify(net, file, inputs)
    assert cert["disagreement"].measured["different"] > 40
    content = copied(cert)
    entry_of(content, "disagreement")["measured"]["different"] = 0
    with pytest.raises(REFUSED):
        tamis.verify(rederived(content), file, net, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_offset_of_all_outputs_does_not_hide_deviations(dtype: torch.dtype, tmp_path: Path) -> None:
    net, file, inputs = offset_scene(tmp_path, 1e5, dtype)
    cert = tamis.certify(net, file, inputs)
    assert cert["deviation"].bound.value > 0.5
    content = copied(cert)
    entry_of(content, "deviation")["measured"]["distance"] = 0.0
    with pytest.raises(REFUSED):
        tamis.verify(rederived(content), file, net, inputs)


def test_a_deviation_of_float64_cannot_be_denied(tmp_path: Path) -> None:
    """Nothing rounds at 1e-4 there: a deviation of a ten-thousandth of the outputs is a deviation."""
    net, _, inputs = offset_scene(tmp_path, 0.0, torch.float64)
    weight = net.params["weight"]
    tamis.Compressed(net.with_params({"weight": weight * (1 + 5e-5)})).save(tmp_path / "near.tamis")
    cert = tamis.certify(net, tmp_path / "near.tamis", inputs)
    assert cert["deviation"].bound.value > 1e-5
    content = copied(cert)
    entry_of(content, "deviation")["measured"]["distance"] = 0.0
    with pytest.raises(REFUSED):
        tamis.verify(rederived(content), tmp_path / "near.tamis", net, inputs)


def test_counts_within_a_tolerance_are_whole(tmp_path: Path) -> None:
    net, file, inputs = offset_scene(tmp_path, 1e5, torch.float32)
    content = copied(tamis.certify(net, file, inputs))
    entry_of(content, "disagreement")["measured"]["different"] -= 0.25
    with pytest.raises(REFUSED):
        tamis.verify(digested(content), file, net, inputs)


@pytest.mark.parametrize(("claim", "number"), [("deviation", "distance"), ("boxes", "log_bound")])
def test_a_number_that_is_left_out_is_no_zero(claim: str, number: str, scene: Scene) -> None:
    content = copied(scene.cert)
    del entry_of(content, claim)["measured"][number]
    with pytest.raises(REFUSED):
        scene.verify(rederived(content), with_data=False)


def test_claims_speak_of_as_many_samples_as_the_certificate(scene: Scene) -> None:
    """That much can be checked without the data."""
    content = copied(scene.cert)
    entry_of(content, "disagreement")["measured"]["samples"] = 10**6
    with pytest.raises(REFUSED):
        scene.verify(rederived(content), with_data=False)


def test_without_data_nobody_learns_that_the_path_metric_is_informative(scene: Scene) -> None:
    """How large outputs are is computed from the networks: a forger cannot say anything else of it."""
    content = copied(scene.cert)
    entry_of(content, "path_metric")["measured"]["usual_outputs"] = 1e30
    with pytest.raises(REFUSED):
        scene.verify(rederived(content), with_data=False)


# -- hostile JSON ------------------------------------------------------------------------------------------------------

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**13, 10**400, -(10**400), 1e308, 5e-324, "", "x", [], {}, [[]], {"x": 1},
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside of nested lists and objects."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


def set_at(content: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


def delete_at(content: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        content = content[key]
    del content[path[-1]]


def saved(content: Content, path: Path) -> Path:
    """Written and digested as tamis does, whatever is in it."""
    inside = {name: value for name, value in content.items() if name not in ("digest", "signature")}
    digested = {**content, "digest": digest_of(inside)} if "digest" in content else content
    path.write_bytes((json.dumps(digested, indent=1, ensure_ascii=False) + "\n").encode())
    return path


NAMES = {(part, "name") for part in ("file", "network", "data", "training")}
FREE = {("made_by",), ("date",), ("command",)} | NAMES  # what a verifier has nothing to compare with


def reply(scene: Scene, path: Path, with_data: bool) -> str | None:
    """What is wrong with the verifier's reply to a hostile file, if anything."""
    try:
        scene.verify(path, with_data)
        str(Certificate.load(path))
    except REFUSED:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.100}"
    return "accepted" if with_data else None


def fuzzed(
    scene: Scene, tmp_path: Path, with_data: bool, chosen: Callable[[tuple[Any, ...]], bool], every: bool
) -> list[str]:
    """Replies that are wrong; of hostile values all, or for each place a few others."""
    wrong = []
    for number, place in enumerate(filter(chosen, places(scene.cert.content))):
        for value in HOSTILE if every else (HOSTILE * 2)[number % len(HOSTILE) :: 7][:2]:
            content = copied(scene.cert)
            set_at(content, place, value)
            if json.dumps(content) == json.dumps(scene.cert.content):
                continue
            answer = reply(scene, saved(content, tmp_path / "hostile.json"), with_data)
            if answer is not None and not (answer == "accepted" and place in FREE and isinstance(value, str)):
                wrong.append(f"{'.'.join(map(str, place))} = {value!r:.30}: {answer}")
        if not every and number % 3:
            continue
        content = copied(scene.cert)
        delete_at(content, place)
        if answer := reply(scene, saved(content, tmp_path / "hostile.json"), with_data):
            wrong.append(f"{'.'.join(map(str, place))} left out: {answer}")
    return wrong


EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "every"])


@EVERY
@pytest.mark.parametrize("field", ["settings", "network", "file", "data", "training", "prior", "made_by", "date"])
def test_hostile_fields_are_refused_in_words(field: str, every: bool, scene: Scene, tmp_path: Path) -> None:
    assert fuzzed(scene, tmp_path, False, lambda place: place[0] == field, every) == []


@EVERY
@pytest.mark.parametrize("number", range(7))
def test_hostile_claims_are_refused_in_words(number: int, every: bool, scene: Scene, tmp_path: Path) -> None:
    def chosen(place: tuple[Any, ...]) -> bool:
        return place[:2] == ("claims", number) and place[2:3] not in [("assumptions",), ("checked",)]

    assert fuzzed(scene, tmp_path, False, chosen, every) == []


def test_labels_of_training_data_are_not_left_out(scene: Scene, tmp_path: Path) -> None:
    """Without them, nothing would say that they are those that the training errors were counted on."""
    content = copied(scene.cert)
    set_at(content, ("training", "labels"), None)
    with pytest.raises(CorruptArtifact, match="training"):
        scene.verify(saved(content, tmp_path / "hostile.json"), True)


@EVERY
@pytest.mark.parametrize("field", ["settings", "data", "training", "file"])
def test_hostile_fields_are_refused_by_those_who_have_the_data(
    field: str, every: bool, scene: Scene, tmp_path: Path
) -> None:
    assert fuzzed(scene, tmp_path, True, lambda place: place[0] == field and len(place) > 1, every) == []


@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", "-Infinity", "1e999", '"\\ud800"', "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900],
    ids=["NaN", "Infinity", "-Infinity", "1e999", "a lone surrogate", "900 lists", "900 objects"],
)
@pytest.mark.parametrize("field", ["date", "data", "signature"])
def test_what_json_reads_and_does_not_write_is_refused(text: str, field: str, scene: Scene, tmp_path: Path) -> None:
    content = {**copied(scene.cert), "signature": None}
    content[field] = "HERE"
    written = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (tmp_path / "hostile.json").write_text(written.replace('"HERE"', text))
    with pytest.raises(REFUSED):
        Certificate.load(tmp_path / "hostile.json")


def test_a_boolean_is_no_version(scene: Scene, tmp_path: Path) -> None:
    for version in (True, 1.0):
        path = saved({**copied(scene.cert), "certificate": version}, tmp_path / "hostile.json")
        with pytest.raises(CorruptArtifact):
            Certificate.load(path)


@pytest.mark.parametrize("with_data", [True, False])
def test_boxes_without_a_radius_are_refused(with_data: bool, scene: Scene) -> None:
    content = copied(scene.cert)
    content["settings"]["radius"] = None
    with pytest.raises(REFUSED):
        scene.verify(digested(content), with_data)


def test_claims_that_such_networks_do_not_have_are_refused(scene: Scene, tmp_path: Path) -> None:
    """Answers of a network without classes, paths through a GELU."""
    torch.manual_seed(0)
    net = tamis.trace(nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 1)), torch.zeros(1, 4))
    file = tmp_path / "small.tamis"
    tamis.prune(net, 4, by="magnitude").save(file)
    cert = tamis.certify(net, file, scene.inputs)
    for name in ("disagreement", "path_metric"):
        content = copied(cert)
        content["claims"].append(copy.deepcopy(entry_of(scene.cert.content, name)))
        if name == "path_metric":
            content["claims"][-1]["measured"]["largest_input"] = content["data"]["largest_input"]
        with pytest.raises(REFUSED):
            tamis.verify(rederived(content), file, net, scene.inputs)


def test_names_of_fields_do_not_reach_the_terminal_as_they_are() -> None:
    with pytest.raises(CorruptArtifact, match=r"its .*'\\x1b\[31mred\\n' cannot be") as found:
        check_form({**dict.fromkeys(VERSION_2), "certificate": 2, "notes": [], "\x1b[31mred\n": 1}, "it")
    assert str(found.value).isprintable()


def test_what_is_no_certificate_at_all(scene: Scene) -> None:
    with pytest.raises(TamisError):
        tamis.verify(scene.cert.content, scene.file, scene.net)  # type: ignore[arg-type]
    for content in ({}, {"certificate": 1}, {**scene.cert.content, "claims": 3}):
        with pytest.raises(TamisError):
            scene.verify(Certificate(content))


# -- data --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["reversed", "read-only", "big-endian"])
def test_arrays_of_any_layout_are_data(form: str, scene: Scene) -> None:
    array = scene.inputs.numpy()
    views = {"reversed": array[::-1].copy()[::-1], "read-only": array.copy(), "big-endian": array.astype(">f4")}
    views["read-only"].setflags(write=False)
    cert = tamis.certify(scene.net, scene.file, views[form], scene.labels.numpy()[::-1].copy()[::-1])
    assert cert.content["data"]["inputs"] == scene.cert.content["data"]["inputs"]
    assert cert.content["data"]["labels"] == scene.cert.content["data"]["labels"]


ODD: dict[str, dict[str, Any]] = {
    "one number": {"inputs": torch.tensor(3.0)},
    "words": {"inputs": np.array([["a"] * 4] * 3)},
    "labels in words": {"labels": ["cat"] * 300},
    "labels of nothing": {"labels": [None] * 300},
    "labels beyond int64": {"labels": np.full(300, 2**63 + 1, dtype=np.uint64)},
    "training of nothing": {"training": ()},
    "too many candidates": {"candidates": 10**400},
    "a prior that is none": {"prior": "prior"},
    "a δ that cannot be shared": {"delta": 5e-324},
    "a radius that is none": {"radius": True},
}


@pytest.mark.parametrize("what", ODD)
def test_odd_arguments_are_refused_in_words(what: str, scene: Scene) -> None:
    given = {"inputs": scene.inputs, "labels": scene.labels, **ODD[what]}
    with pytest.raises(InvalidInput) as refusal:
        tamis.certify(scene.net, scene.file, **given)
    assert "-9223372036854775807" not in str(refusal.value) and "delta=0.0" not in str(refusal.value)


def test_inputs_that_are_too_large_for_the_network_are_refused(tmp_path: Path) -> None:
    """Finite as they are given, infinite as the network takes them; its outputs are finite again."""
    net = tamis.trace(nn.Sequential(nn.Hardtanh(), nn.Linear(3, 2)), torch.zeros(1, 3))
    tamis.prune(net, 2, by="magnitude").save(tmp_path / "small.tamis")
    with pytest.raises(InvalidInput, match="float32"):
        tamis.certify(net, tmp_path / "small.tamis", torch.full((5, 3), 1e300, dtype=torch.float64))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x * mask)


class WithNone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        return {"logits": self.linear(x), "loss": None}


class Huge(nn.Module):
    """Needs more memory than any machine has."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(2**50).sum()


@pytest.mark.parametrize("which", ["original", "small"])
def test_a_network_that_torch_cannot_run_is_named(which: str) -> None:
    huge, fine = (trace_with_batch(model, torch.zeros(2, 3), True) for model in (Huge(), nn.ReLU()))
    networks = (huge, fine) if which == "original" else (fine, huge)
    with pytest.raises(
        InvalidInput, match=rf"^the {which} network cannot be run on inputs of shape \(4, 3\): .+$"
    ) as found:
        gather_evidence(*networks, Samples(torch.zeros(4, 3)))
    assert "\n" not in str(found.value)


def test_inputs_of_booleans(tmp_path: Path) -> None:
    x = torch.randn(100, 3)
    net = tamis.trace(Masked(), (x[:1], x[:1] > 0))
    tamis.prune(net, 2, by="magnitude").save(tmp_path / "small.tamis")
    cert = tamis.certify(net, tmp_path / "small.tamis", (x, x > 0))
    assert tamis.verify(cert, tmp_path / "small.tamis", net, (x, x > 0)).ok


def test_outputs_that_are_none(tmp_path: Path) -> None:
    x = torch.randn(100, 3)
    net = tamis.trace(WithNone(), x[:1])
    tamis.prune(net, 2, by="magnitude").save(tmp_path / "small.tamis")
    cert = tamis.certify(net, tmp_path / "small.tamis", x)
    assert cert["disagreement"].measured["samples"] == 100
    assert tamis.verify(cert, tmp_path / "small.tamis", net, x).ok


def test_boxes_of_several_inputs(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.one(x) + self.other(y)

    x, y = torch.randn(50, 3), torch.randn(50, 2)
    net = tamis.trace(Sum(), (x[:1], y[:1]))
    tamis.prune(net, 3, by="magnitude").save(tmp_path / "small.tamis")
    cert = tamis.certify(net, tmp_path / "small.tamis", (x, y), radius=0.1, boxed=3)
    assert cert["boxes"].measured["inputs"] == 3


@pytest.mark.parametrize("batch", [1, 3, 7, pytest.param(300, marks=pytest.mark.slow)])
def test_boxes_do_not_depend_on_the_batches(batch: int, scene: Scene) -> None:
    loader = DataLoader(TensorDataset(scene.inputs), batch_size=batch)
    cert = tamis.certify(scene.net, scene.file, loader, radius=0.01, boxed=4)
    assert cert["boxes"].measured["inputs"] == 4
    assert tamis.verify(cert, scene.file, scene.net, scene.inputs).ok


def test_more_boxes_than_a_batch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.verification.samples.BATCH", 4)
    cert = tamis.certify(scene.net, scene.file, scene.inputs[:20], radius=0.01, boxed=6)
    assert cert["boxes"].measured["inputs"] == 6


def test_data_that_can_be_read_once_is_read_once(scene: Scene) -> None:
    cert = tamis.certify(scene.net, scene.file, (part for part in scene.inputs.split(50)), radius=0.01, boxed=2)
    assert cert["boxes"].measured == scene.cert["boxes"].measured
    assert tamis.verify(cert, scene.file, scene.net, (part for part in scene.inputs.split(50))).ok


def test_boxes_are_around_the_inputs_that_were_fingerprinted(scene: Scene) -> None:
    """A loader that shuffles gives another order each time."""

    class Recording:
        def __init__(self) -> None:
            self.passes: list[Tensor] = []

        def __iter__(self) -> Iterator[Tensor]:
            order = torch.randperm(len(scene.inputs), generator=torch.Generator().manual_seed(len(self.passes)))
            self.passes.append(scene.inputs[order])
            return iter(self.passes[-1].split(50))

    loader = Recording()
    cert = tamis.certify(scene.net, scene.file, loader, radius=0.01, boxed=2)
    assert tamis.verify(cert, scene.file, scene.net, loader.passes[0]).ok


def test_what_a_dataset_keeps_can_still_be_trained_on(scene: Scene) -> None:
    """Data is made outside of inference mode, whose tensors autograd refuses."""

    class Caching(Dataset[Tensor]):
        def __init__(self) -> None:
            self.kept: dict[int, Tensor] = {}

        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> Tensor:
            return self.kept.setdefault(index, scene.inputs[index] * 1.0)

    data = Caching()
    tamis.certify(scene.net, scene.file, DataLoader(data, batch_size=20))
    assert not any(value.is_inference() for value in data.kept.values())


def test_the_file_that_was_read_is_the_one_that_is_named(scene: Scene, tmp_path: Path) -> None:
    """Someone replaces the file during the work."""
    file = tmp_path / "small.tamis"
    file.write_bytes(scene.file.read_bytes())
    tamis.prune(scene.net, 20, by="magnitude").save(tmp_path / "other.tamis")
    other = (tmp_path / "other.tamis").read_bytes()
    try:
        cert = tamis.certify(scene.net, file, scene.inputs, progress=lambda now: file.write_bytes(other))
    except TamisError:
        return
    assert cert.content["file"]["sha256"] == scene.cert.content["file"]["sha256"]


def test_a_module_is_verified_on_inputs_of_another_precision(tmp_path: Path) -> None:
    model, x = nn.Linear(3, 4), torch.randn(100, 3)
    tamis.prune(tamis.trace(model, x[:1]), 2, by="magnitude").save(tmp_path / "small.tamis")
    cert = tamis.certify(tamis.trace(model, x[:1]), tmp_path / "small.tamis", x.double())
    assert tamis.verify(cert, tmp_path / "small.tamis", model, x.double()).ok


def test_integers_of_another_width_are_the_same_data(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 9, (100, 2))
    net = tamis.trace(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 3)), tokens[:1])
    tamis.prune(net, 6, by="magnitude").save(tmp_path / "small.tamis")
    cert = tamis.certify(net, tmp_path / "small.tamis", tokens)
    assert tamis.verify(cert, tmp_path / "small.tamis", net, tokens.int()).ok


def test_wrong_labels_are_found_before_the_work(scene: Scene) -> None:
    seen: list[int] = []
    labels = torch.where(torch.arange(300) == 0, 3, scene.labels)
    with pytest.raises(InvalidInput, match="labels go from 0 to 3"):
        tamis.certify(scene.net, scene.file, scene.inputs, labels, progress=lambda now: seen.append(now.done))
    assert not seen


def test_boxes_that_cannot_be_are_refused_before_the_work(tmp_path: Path, scene: Scene) -> None:
    net = tamis.trace(nn.Sequential(nn.Linear(4, 3), nn.GELU()), torch.zeros(1, 4))
    tamis.prune(net, 2, by="magnitude").save(tmp_path / "small.tamis")
    seen: list[int] = []
    with pytest.raises(TamisError, match="gelu"):
        tamis.certify(
            net, tmp_path / "small.tamis", scene.inputs, radius=0.1, progress=lambda now: seen.append(now.done)
        )
    assert not seen


# -- what is assumed ---------------------------------------------------------------------------------------------------


def test_training_data_is_not_held_out(scene: Scene) -> None:
    """That neither network was made with the inputs is for the user to vouch for; here it is plainly false."""
    with pytest.raises((InvalidInput, AssumptionViolated)):
        tamis.certify(scene.net, scene.file, scene.inputs, scene.labels, training=(scene.inputs, scene.labels))


def test_a_trained_network_is_no_prior(scene: Scene) -> None:
    """The original as its own prior costs a bit a tensor: a bound from nothing."""
    with pytest.raises((InvalidInput, AssumptionViolated)):
        tamis.certify(scene.net, scene.file, scene.inputs, training=scene.training, prior=scene.net)


def test_a_prior_is_among_the_assumptions(scene: Scene) -> None:
    prior = scene.net.with_params({name: value * 0 for name, value in scene.net.params.items()})
    cert = tamis.certify(scene.net, scene.file, scene.inputs, training=scene.training, prior=prior)
    assert any("prior" in text for text in cert["generalization"].bound.assumptions)


def test_who_paid_for_candidates_need_not_vouch_that_there_was_no_choice(scene: Scene) -> None:
    cert = tamis.certify(scene.net, scene.file, scene.inputs, candidates=20)
    assert any("candidate" in text for text in cert["disagreement"].bound.assumptions)


def test_proofs_say_that_they_are_of_exact_arithmetic(tmp_path: Path) -> None:
    """In bfloat16, a weight that moves by a little flips the rounding of a large sum: outputs move by much more."""
    model = nn.Linear(2, 1, bias=False).bfloat16()
    model.weight.data = torch.tensor([[256.0, 1.0]], dtype=torch.bfloat16)
    net = tamis.trace(model, torch.zeros(1, 2, dtype=torch.bfloat16))
    tamis.Compressed(net.with_params({"weight": torch.tensor([[256.0, 1.015625]], dtype=torch.bfloat16)})).save(
        tmp_path / "near.tamis"
    )
    small = tamis.load(tmp_path / "near.tamis", net).network
    x = torch.ones(100, 2)
    cert = tamis.certify(net, tmp_path / "near.tamis", x, radius=0.0, boxed=1)
    apart = float((net(x.bfloat16()).double() - small(x.bfloat16()).double()).abs().max())
    for name in ("path_metric", "boxes"):
        bound = cert[name].bound
        assert apart <= bound.value or any("rounding" in text or "exact" in text for text in bound.assumptions)


# -- sentences ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-6, 1e-9, 3.3333333e-7])
def test_confidence_is_never_rounded_up(delta: float, scene: Scene) -> None:
    sentence = tamis.certify(scene.net, scene.file, scene.inputs, delta=delta)["disagreement"].sentence
    said = re.match(r"With ([0-9.]+)% confidence", sentence)
    assert said is not None and float(said[1]) < 100 and float(said[1]) <= 100 * (1 - delta) * (1 + 1e-15)


@pytest.mark.parametrize("coverage", [0.99999999, 0.12345678])
def test_coverage_is_never_rounded_up(coverage: float, scene: Scene) -> None:
    sentence = tamis.certify(scene.net, scene.file, scene.inputs, coverage=coverage)["deviation"].sentence
    said = re.search(r"([0-9.]+)% of inputs", sentence)
    assert said is not None and float(said[1]) < 100 and float(said[1]) <= 100 * coverage * (1 + 1e-15)


@pytest.mark.parametrize("radius", [1 / 255, 8 / 255, 0.123456789])
def test_boxes_are_not_said_to_be_larger_than_they_are(radius: float, scene: Scene) -> None:
    sentence = tamis.certify(scene.net, scene.file, scene.inputs, radius=radius, boxed=1)["boxes"].sentence
    said = re.search(r"any change of at most ([0-9.e-]+) ", sentence)
    assert said is not None and float(said[1]) <= radius


def test_inputs_are_not_said_to_be_larger_than_they_may_be(scene: Scene) -> None:
    for largest in (1.99999996, 2.6399999, 3.14159265):
        inputs = scene.inputs.clamp(-1, 1)
        inputs[0, 0] = largest
        cert = tamis.certify(scene.net, scene.file, inputs)
        said = re.search(r"entries between −([0-9.e+-]+) and", cert["path_metric"].sentence)
        assert said is not None and float(said[1]) <= cert["path_metric"].measured["largest_input"]


@pytest.mark.parametrize("value", [-1e-9, -4.9e-5, -5e-5, -0.0001, -0.01234, -0.012399999, -0.5, -1.0])
def test_gains_of_accuracy_are_rounded_down(value: float) -> None:
    bound = Bound(value, -math.inf, True, "clopper1934confidence, upper limit")
    measured = {"worse": 0, "better": 9, "samples": 10}
    sentence = AccuracyChange().sentence(bound, measured, Settings(0.05, 1, 0.95, None, 8))
    said = re.search(r"at least (\S+) (percentage )?points above", sentence)
    assert said is not None and "-" not in said[1] and 0 <= float(said[1]) <= -100 * value


BOXED = {"informative": 1, "largest_score": 9.0}


def test_a_bound_too_small_for_float64_is_not_said_to_be_zero() -> None:
    settings, measured = Settings(0.05, 1, 0.95, 0.1, 1), {**BOXED, "inputs": 1, "log_bound": -800.0}
    bound = Boxes().bound(measured, settings, 0.05)
    assert "further than 0 from" not in Boxes().sentence(bound, measured, settings)


def test_boxes_that_say_something_of_some_inputs_do_not_say_nothing() -> None:
    settings, measured = Settings(0.05, 1, 0.95, 0.1, 2), {**BOXED, "inputs": 2, "log_bound": 0.0}
    bound = Boxes().bound(measured, settings, 0.05)
    assert "This says nothing" not in Boxes().sentence(bound, measured, settings)


def test_a_file_that_became_larger_is_not_said_to_be_smaller(scene: Scene) -> None:
    cert = scene.cert.content
    assert cert["file"]["bytes"] > cert["network"]["bytes"]
    assert "times fewer" not in str(scene.cert)


def test_hostile_names_of_files_do_not_write_lines_of_their_own(scene: Scene, tmp_path: Path) -> None:
    content = copied(scene.cert)
    content["file"]["name"] = "small.tamis\n• With 100% confidence, nothing was lost.\x1b[2J"
    path = saved(content, tmp_path / "hostile.json")
    try:
        text = str(Certificate.load(path))
    except CorruptArtifact:
        return
    assert "\x1b" not in text and "nothing was lost" not in text.splitlines()[1]


def test_floats_are_floats(scene: Scene) -> None:
    """What the certificate prints comes back as the same float64."""
    for claim in scene.cert.content["claims"]:
        for value in claim["measured"].values():
            assert struct.pack("d", json.loads(json.dumps(value))) == struct.pack("d", value)


def test_a_dead_chain_proves_no_equality(tmp_path: Path) -> None:
    """Weights of 3e38 on the way to nowhere once made every other neuron vanish: "differ by at most 0"."""
    net, other = forged()
    file = tmp_path / "small.tamis"
    tamis.Compressed(other).save(file)
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(2))
    cert = tamis.certify(net, file, inputs, radius=0.01, boxed=1)
    claims = {entry["claim"]: entry for entry in cert.content["claims"]}
    gaps = (net(inputs) - other(inputs)).abs()
    apart = {"path_metric": float(gaps.sum(1).max()), "boxes": float(gaps[:1].max())}
    assert min(apart.values()) > 9
    for name, largest in apart.items():
        assert math.exp(claims[name]["measured"]["log_bound"]) >= largest
        assert "at most 0 " not in claims[name]["sentence"] and "further than 0 " not in claims[name]["sentence"]
    assert tamis.verify(cert, file, net, inputs=inputs).ok
    for name in apart:
        nothing = copy.deepcopy(cert.content)
        (entry,) = [each for each in nothing["claims"] if each["claim"] == name]
        entry["measured"]["log_bound"] = None
        data = {} if name == "path_metric" else {"inputs": inputs}  # the networks alone show the first to be wrong
        with pytest.raises(VerificationFailed):
            tamis.verify(rederived(nothing), file, net, **data)


class Gated(nn.Module):
    """Of which the path-metric does not speak, as a sigmoid is not zero at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.straight, self.gate = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.straight(x) + torch.sigmoid(self.gate(x))


def test_a_bound_without_end_is_not_written_as_zero(tmp_path: Path) -> None:
    """Null is the logarithm of zero. A box of which nothing is known has a number of its own, and words that say so."""
    torch.manual_seed(0)
    net = tamis.trace(Gated().double(), torch.zeros(1, 3, dtype=torch.float64))
    net = net.with_params({"straight.weight": 1e290 * net.params["straight.weight"]})
    other = net.with_params({"straight.weight": -net.params["straight.weight"]})
    file = tmp_path / "small.tamis"
    tamis.Compressed(other).save(file)
    inputs = 1e-290 * torch.randn(60, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cert = tamis.certify(net, file, inputs, radius=1e30, boxed=2)
    claim = cert["boxes"]
    assert claim.measured["log_bound"] == LARGEST_FLOAT and claim.bound.value == math.inf
    assert "Nothing can be said of how far outputs move" in claim.sentence and "float64's range" in claim.sentence
    assert tamis.verify(cert, file, net, inputs=inputs).ok
    nothing = copy.deepcopy(cert.content)
    (entry,) = [each for each in nothing["claims"] if each["claim"] == "boxes"]
    entry["measured"]["log_bound"] = None
    with pytest.raises(VerificationFailed):
        tamis.verify(rederived(nothing), file, net, inputs=inputs)


def opposite(size: float, file: Path) -> tamis.Network:
    """A network with outputs of that size, and its negative in a file."""
    net = tamis.trace(nn.Linear(3, 2, bias=False).double(), torch.zeros(1, 3, dtype=torch.float64))
    large = net.with_params({"weight": torch.full((2, 3), size, dtype=torch.float64)})
    tamis.Compressed(large.with_params({"weight": -large.params["weight"]})).save(file)
    return large


def test_outputs_too_large_for_a_certificate_are_said_to_be(tmp_path: Path) -> None:
    """Two outputs of 1e308 are an infinite distance apart, which was null, and null was read as zero."""
    file, inputs = tmp_path / "small.tamis", torch.eye(3, dtype=torch.float64)
    with pytest.raises(InvalidInput, match=r"output of the original network is 1e\+308, too large for a certificate"):
        tamis.certify(opposite(1e308, file), file, inputs, radius=0.1, boxed=1)
    large = opposite(1e290, file)
    cert = tamis.certify(large, file, inputs, radius=0.1, boxed=1)
    assert cert["boxes"].bound.value >= 2e290 and tamis.verify(cert, file, large, inputs=inputs).ok
