"""The verifier accepts what holds, and finds everything that was changed: files, models, data, numbers, words, keys."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

import tamis
from tamis.errors import CorruptArtifact, InvalidInput, TamisError, VerificationFailed
from tamis.training import Data
from tamis.verification import Verification
from tamis.verification.certificate import Certificate, digest_of

Change = Callable[[dict[str, Any]], Any]


def changed(cert: Certificate, change: Change) -> Certificate:
    """A forged certificate: with another content, and a digest to match."""
    content = copy.deepcopy(cert.content)
    change(content)
    return Certificate({**content, "digest": digest_of(content)})


def claim(content: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in content["claims"] if entry["claim"] == name)


@pytest.fixture(scope="module")
def full(net: tamis.Network, file: Path, data: Data) -> Certificate:
    """A certificate with every kind of claim."""
    required = {"max_accuracy_drop": 0.5, "max_disagreement": "0.1%"}  # of which the second cannot hold for 300 samples
    return tamis.certify(net, file, data, radius=1e-3, boxed=2, training="digits:train[:300]", **required)


def verify_full(full: Certificate, file: Path, net: tamis.Network, data: Data, **options: Any) -> Any:
    return tamis.verify(full, file, net, data, training="digits:train[:300]", **options)


# -- what holds --------------------------------------------------------------------------------------------------------


def test_a_true_certificate_is_verified(full: Certificate, file: Path, net: tamis.Network, data: Data) -> None:
    found = verify_full(full, file, net, data)
    assert found.ok and set(found.recomputed) == {entry["claim"] for entry in full.content["claims"]}
    assert not found.vouched and not found.unchecked and found.signed_by is None


def test_from_files_and_a_module(cert: Certificate, file: Path, model: nn.Module, data: Data, tmp_path: Path) -> None:
    cert.save(tmp_path / "small.json")
    found = tamis.verify(tmp_path / "small.json", file, model=model, inputs=data.normalised(), labels=data.labels)
    assert found.ok and "recomputed, and the same: disagreement" in str(found)


@pytest.mark.parametrize("form", ["a name", "a dataset", "an array"])
def test_a_module_is_traced_with_the_first_input(
    form: str, cert: Certificate, file: Path, model: nn.Module, data: Data
) -> None:
    inputs = {"a name": "digits:test[:300]", "a dataset": data, "an array": data.normalised().numpy()}[form]
    found = tamis.verify(cert, file, model, inputs)
    assert "disagreement" in found.recomputed
    assert tamis.certify(model, file, inputs)["disagreement"].measured == cert["disagreement"].measured


def test_without_data_nothing_is_believed(full: Certificate, file: Path, net: tamis.Network) -> None:
    found = tamis.verify(full, file, net)
    assert not found.ok and found.recomputed == ("path_metric",) and "disagreement" in found.unchecked


def test_a_prior_is_needed_only_with_the_training_data(file: Path, net: tamis.Network, data: Data) -> None:
    """Without them the code length is not recomputed, so that there is nothing which the prior could contradict."""
    prior = net.with_params({name: value * 0 for name, value in net.params.items()})
    cert = tamis.certify(net, file, data.normalised()[:50], training="digits:train[:50]", prior=prior)
    assert cert.content["prior"] is not None
    found = tamis.verify(cert, file, net)
    assert "generalization" in found.unchecked and found.recomputed == ("path_metric",)
    with pytest.raises(InvalidInput, match="pass prior= with training="):
        tamis.verify(cert, file, net, training="digits:train[:50]")


def test_without_labels_what_needs_none_is_recomputed(
    cert: Certificate, file: Path, net: tamis.Network, data: Data
) -> None:
    found = tamis.verify(cert, file, net, data.normalised())
    assert found.recomputed == ("disagreement", "deviation", "path_metric")
    assert found.unchecked == ("accuracy_change", "error_rate") and not found.ok


def test_rounding_of_another_machine_is_forgiven(cert: Certificate, file: Path, net: tamis.Network, data: Data) -> None:
    def nudge(content: dict[str, Any]) -> None:
        deviation = claim(content, "deviation")
        deviation["measured"]["distance"] *= 1 + 1e-6
        deviation["value"] = deviation["measured"]["distance"]
        deviation["log10"] = float(torch.tensor(deviation["value"], dtype=torch.float64).log10())

    assert tamis.verify(changed(cert, nudge), file, net, data).ok


# -- what was changed --------------------------------------------------------------------------------------------------


def better(content: dict[str, Any]) -> None:
    """One difference less, and everything computed from it as it should be."""
    entry = claim(content, "disagreement")
    entry["measured"]["different"] -= 1


FORGERIES: dict[str, Change] = {
    "a number": lambda c: claim(c, "disagreement").update(value=claim(c, "disagreement")["value"] * 0.99),
    "a number's logarithm": lambda c: claim(c, "path_metric").update(log10=claim(c, "path_metric")["log10"] - 1),
    "a sentence": lambda c: claim(c, "error_rate").update(sentence="The small network is never wrong."),
    "one digit of a sentence": lambda c: claim(c, "error_rate").update(
        sentence=claim(c, "error_rate")["sentence"].replace("95%", "99%")
    ),
    "what was measured": better,
    "whether it is informative": lambda c: claim(c, "generalization").update(informative=True),
    "an assumption": lambda c: claim(c, "disagreement").update(assumptions=[]),
    "a source": lambda c: claim(c, "deviation").update(source="gonon2024thesis, Theorem 1"),
    "δ": lambda c: c["settings"].update(delta=0.01),
    "a claim's δ": lambda c: claim(c, "deviation").update(delta=0.05),
    "the number of candidates": lambda c: c["settings"].update(candidates=2),
    "the coverage": lambda c: c["settings"].update(coverage=0.5),
    "the radius": lambda c: c["settings"].update(radius=0.5),
    "impossible settings": lambda c: c["settings"].update(delta=-1),
    "settings of no kind": lambda c: c.update(settings=[]),
    "the largest input": lambda c: c["data"].update(largest_input=0.1),
    "the usual outputs": lambda c: claim(c, "path_metric")["measured"].update(usual_outputs=1e30),
    "the number of samples": lambda c: c["data"].update(samples=10**6),
    "a claim less": lambda c: c["claims"].pop(0),
    "a claim twice": lambda c: c["claims"].append(c["claims"][0]),
    "a claim of another kind": lambda c: c["claims"][0].update(claim="perfection"),
    "a claim without numbers": lambda c: c["claims"][0].pop("measured"),
    "numbers that are none": lambda c: c["claims"][0]["measured"].update(different="few"),
    "numbers that cannot be": lambda c: c["claims"][0]["measured"].update(different=-1),
    "the verdict": lambda c: c["requirements"][1].update(holds=True),
    "what was required": lambda c: c["requirements"][1].update(at_most=0.9),
    "a requirement of no claim": lambda c: c["requirements"][0].update(claim="perfection"),
    "a requirement twice": lambda c: c["requirements"].append(c["requirements"][0]),
    "the accuracy before": lambda c: c["accuracy"].update(before=c["accuracy"]["before"] - 0.01),
    "the accuracy after": lambda c: c["accuracy"].update(after=c["accuracy"]["after"] + 0.01),
    "the version": lambda c: c.update(certificate=1),
    "the file's digest": lambda c: c["file"].update(sha256="0" * 64),
    "the model's digest": lambda c: c["network"].update(values="0" * 64),
    "the data's digest": lambda c: c["data"].update(inputs="0" * 64),
    "the labels' digest": lambda c: c["data"].update(labels="0" * 64),
    "the training data's digest": lambda c: c["training"].update(inputs="0" * 64),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_forged_certificates_are_found(
    what: str, full: Certificate, file: Path, net: tamis.Network, data: Data
) -> None:
    with pytest.raises((VerificationFailed, CorruptArtifact)):
        verify_full(changed(full, FORGERIES[what]), file, net, data)


@pytest.mark.parametrize("what", ["a sentence", "a number", "a claim's δ", "δ"])
def test_forgeries_are_found_without_data_too(what: str, full: Certificate, file: Path, net: tamis.Network) -> None:
    with pytest.raises(VerificationFailed):
        tamis.verify(changed(full, FORGERIES[what]), file, net)


def test_another_model_is_found(cert: Certificate, file: Path, net: tamis.Network, data: Data) -> None:
    name = min(net.trainable)
    other = net.with_params({name: net.params[name].nextafter(torch.tensor(9.0))})
    with pytest.raises(
        VerificationFailed, match="the model is not the network of the certificate: the sha256 of its values is"
    ):
        tamis.verify(cert, file, other, data)


@pytest.mark.parametrize("other", ["digits:test[1:301]", "digits:train[:300]", "digits:test[:299]"])
def test_other_data_is_found(other: str, cert: Certificate, file: Path, net: tamis.Network) -> None:
    with pytest.raises(VerificationFailed, match="what was given is not the data of the certificate"):
        tamis.verify(cert, file, net, other)


def test_other_labels_are_found(cert: Certificate, file: Path, net: tamis.Network, data: Data) -> None:
    labels = data.labels.clone()
    labels[7] = (labels[7] + 1) % 10
    with pytest.raises(VerificationFailed, match="the sha256 of its labels is"):
        tamis.verify(cert, file, net, data.normalised(), labels)


def test_every_changed_byte_of_the_file_is_found(
    cert: Certificate, file: Path, net: tamis.Network, data: Data, tmp_path: Path
) -> None:
    content = file.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 40)):
        broken = bytearray(content)
        broken[place] ^= 1
        (tmp_path / "small.tamis").write_bytes(broken)
        with pytest.raises(TamisError):
            tamis.verify(cert, tmp_path / "small.tamis", net, data)


def test_a_prior_is_a_network(full: Certificate, file: Path, model: nn.Module, net: tamis.Network, data: Data) -> None:
    with pytest.raises(InvalidInput, match=r"prior must be a Network, as tamis\.trace gives it, got"):
        tamis.verify(full, file, net, data, prior=model)  # type: ignore[arg-type]


def test_a_module_without_an_example(cert: Certificate, file: Path, model: nn.Module) -> None:
    with pytest.raises(InvalidInput, match="verify needs an example of the input of"):
        tamis.verify(cert, file, model)


# -- signatures --------------------------------------------------------------------------------------------------------


def write_keys(folder: Path, name: str) -> tuple[Path, Path]:
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / f"{name}.pem").write_bytes(private)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / f"{name}.pem", folder / f"{name}.pub"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: write_keys(folder, name) for name in ("ours", "theirs")}


@pytest.fixture(scope="module")
def signed(net: tamis.Network, file: Path, data: Data, keys: dict[str, tuple[Path, Path]]) -> Certificate:
    return tamis.certify(net, file, data, sign=keys["ours"][0])


def test_a_signature_vouches_for_what_cannot_be_recomputed(
    signed: Certificate, file: Path, net: tamis.Network, keys: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    signed.save(tmp_path / "signed.json")
    found = tamis.verify(tmp_path / "signed.json", file, net, signed_by=keys["ours"][1])
    assert found.ok and found.recomputed == ("path_metric",) and "error_rate" in found.vouched
    assert found.signed_by == signed.content["signature"]["public_key"]
    assert "vouched for by the signature only: disagreement" in str(found)
    assert tamis.verify(signed, file, net, signed_by=keys["ours"][0]).ok  # who has the private key has the public one


def test_a_signature_nobody_asked_for_vouches_for_nothing(signed: Certificate, file: Path, net: tamis.Network) -> None:
    found = tamis.verify(signed, file, net)
    assert not found.ok and found.signed_by is not None and not found.vouched


def test_a_signature_by_another_key_is_found(
    signed: Certificate, file: Path, net: tamis.Network, keys: dict[str, tuple[Path, Path]]
) -> None:
    with pytest.raises(VerificationFailed, match=r"was signed by the key .*, not by"):
        tamis.verify(signed, file, net, signed_by=keys["theirs"][1])


def test_a_forged_certificate_does_not_keep_its_signature(
    signed: Certificate, file: Path, net: tamis.Network, keys: dict[str, tuple[Path, Path]]
) -> None:
    forged = changed(signed, lambda content: content.update(date="1999-01-01"))
    with pytest.raises(VerificationFailed, match="changed after signing"):
        tamis.verify(forged, file, net, signed_by=keys["ours"][1])


@pytest.mark.parametrize("signature", [{}, [], "me", {"public_key": "zz", "signature": ""}, {"public_key": 1}])
def test_signatures_that_are_none_are_found(
    signature: Any, signed: Certificate, file: Path, net: tamis.Network, keys: dict[str, tuple[Path, Path]]
) -> None:
    with pytest.raises((VerificationFailed, CorruptArtifact)):
        tamis.verify(Certificate({**signed.content, "signature": signature}), file, net)


def test_a_certificate_that_nobody_signed(
    cert: Certificate, file: Path, net: tamis.Network, keys: dict[str, tuple[Path, Path]]
) -> None:
    with pytest.raises(VerificationFailed, match="nobody signed the certificate"):
        tamis.verify(cert, file, net, signed_by=keys["ours"][1])


def test_keys_that_are_none(net: tamis.Network, file: Path, data: Data, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("secret")
    with pytest.raises(InvalidInput, match=r"holds no private key .* openssl genpkey -algorithm ed25519"):
        tamis.certify(net, file, data, sign=tmp_path / "key.pem")
    with pytest.raises(FileNotFoundError):
        tamis.certify(net, file, data, sign=tmp_path / "nowhere.pem")


def test_the_result_says_what_was_checked_and_what_was_not() -> None:
    whole = Verification(("disagreement",), (), (), None, passed=True)
    assert whole.ok and str(whole) == (
        "recomputed, and the same: disagreement\nwhat was required of it: PASS\nnot signed"
    )
    part = Verification((), ("deviation",), ("error_rate", "boxes"), "ab12", passed=False, notes=("of version 1",))
    assert not part.ok and str(part).splitlines() == [
        "note: of version 1",
        "recomputed, and the same: nothing",
        "vouched for by the signature only: deviation",
        "not checked, for want of data: error_rate, boxes",
        "what was required of it: FAIL",
        "signed by the key ab12",
    ]
