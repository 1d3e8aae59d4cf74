"""`verify`: make every claim of a certificate again, from the files and the data, and believe none.

This imports the theorems and the reader of `.tamis` files, and nothing of what compresses networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tamis.artifact.compressed import Compressed, load
from tamis.artifact.fingerprint import fingerprint_of_values
from tamis.certify.certificate import Certificate
from tamis.certify.claim import SAME, Case, Claim, Kind, Settings, measured_in, same_number
from tamis.certify.claims import KINDS
from tamis.certify.evidence import ROUNDING, Evidence, gather_evidence
from tamis.certify.issue import as_network, data_facts, file_facts, network_facts, share_of, training_evidence
from tamis.certify.samples import Inputs
from tamis.certify.signature import check_signature
from tamis.errors import CorruptArtifact, InvalidInput, VerificationFailed
from tamis.graph.network import Network


@dataclass(frozen=True)
class Verification:
    """What a verifier found; nothing failed, or there would be an error instead.

    Attributes:
        recomputed: claims that were made again and came out the same.
        vouched: claims that need data which was not there, in a certificate signed by the key that was asked for.
        unchecked: claims that need data which was not there, and that nobody vouches for.
        signed_by: the public key that signed it, as hexadecimal digits; None if nobody did.
    """

    recomputed: tuple[str, ...]
    vouched: tuple[str, ...]
    unchecked: tuple[str, ...]
    signed_by: str | None

    @property
    def ok(self) -> bool:
        """Whether every claim was recomputed or vouched for."""
        return not self.unchecked

    def __str__(self) -> str:
        lines = [f"recomputed, and the same: {', '.join(self.recomputed) or 'nothing'}"]
        if self.vouched:
            lines.append(f"vouched for by the signature only: {', '.join(self.vouched)}")
        if self.unchecked:
            lines.append(f"not checked, for want of data: {', '.join(self.unchecked)}")
        lines.append(f"signed by the key {self.signed_by}" if self.signed_by else "not signed")
        return "\n".join(lines)


def verify(
    certificate: str | Path | Certificate,
    file: str | Path,
    model: Network | nn.Module,
    inputs: Inputs = None,
    labels: Any = None,
    *,
    training: Any = None,
    prior: Network | None = None,
    signed_by: str | Path | None = None,
    example: Tensor | tuple[Tensor, ...] | None = None,
) -> Verification:
    """Recompute everything that a certificate says.

    Args:
        certificate: the certificate or its file.
        file: the `.tamis` file that it is about.
        model: the original network, or a module with `example`.
        inputs, labels, training, prior: as they were given to `certify`. Claims whose data is left out are not
            recomputed, and the result says so.
        signed_by: a PEM file with the public key that must have signed it.
        example: an input to trace a module with; by default the first of a tensor of inputs.

    Returns:
        A `Verification`, whose `ok` is whether every claim was recomputed or vouched for.

    Raises:
        VerificationFailed: the first thing that is not as the certificate says.
        CorruptArtifact: a file that was changed.

    Example:
        >>> tamis.verify("small.json", "small.tamis", net, inputs=x, labels=y).ok
        True
    """
    cert = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
    content = cert.content
    signer = _check_signer(cert, signed_by)
    _same_facts("file", content["file"], file_facts(file), str(file), ignored=("name",))
    net = as_network(model, _example(example, inputs), "verify")
    _same_facts("network", content["network"], network_facts(net), "the model")
    _same_prior(content["prior"], prior)
    small = load(file, net)
    case = _case(content, net, small, inputs, labels, training, prior)
    recomputed, missing = _check_claims(content["claims"], case)
    trusted = signer is not None and signed_by is not None
    return Verification(recomputed, missing if trusted else (), () if trusted else missing, signer)


def _check_signer(cert: Certificate, signed_by: str | Path | None) -> str | None:
    signature = cert.content.get("signature")
    if signature is not None:
        return check_signature(cert.content["digest"], signature, signed_by)
    if signed_by is not None:
        raise VerificationFailed(f"nobody signed the certificate, so not the key of '{signed_by}'")
    return None


def _example(example: Any, inputs: Inputs) -> Any:
    if example is not None:
        return example
    return inputs[:1] if isinstance(inputs, Tensor) and len(inputs) else None


# -- facts -------------------------------------------------------------------------------------------------------------


def _same_facts(
    what: str,
    said: Any,
    found: Mapping[str, Any],
    called: str,
    ignored: tuple[str, ...] = (),
    rounded: Mapping[str, float] | None = None,
) -> None:
    if not isinstance(said, Mapping) or said.keys() != found.keys():
        raise VerificationFailed(f"the certificate does not say which {what} it is about: {said!r:.100}")
    for name, value in found.items():
        tolerance = (rounded or {}).get(name)
        same = said[name] == value if tolerance is None else same_number(_number(said[name]), value, tolerance)
        if not same and name not in ignored:
            raise VerificationFailed(
                f"{called} is not the {what} of the certificate: its {name.replace('_', ' ')} is {value}, "
                f"the certificate says {said[name]}"
            )


def _same_prior(said: Any, prior: Network | None) -> None:
    found = None if prior is None else fingerprint_of_values(prior.params)
    if prior is not None and found != said:
        raise VerificationFailed(f"the prior is not that of the certificate: its sha256 is {found}, not {said}")


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _case(
    content: Mapping[str, Any],
    net: Network,
    small: Compressed,
    inputs: Inputs,
    labels: Any,
    training: Any,
    prior: Network | None,
) -> Case:
    held_out = None if inputs is None else gather_evidence(net, small.network, inputs, labels)
    if held_out is not None:
        _same_data("data", content["data"], held_out)
    if content["prior"] is not None and prior is None:
        training = None  # the code length is one given the prior
    trained = training_evidence(net, small.network, training)
    if trained is not None:
        _same_data("training", content["training"], trained)
    largest_input, largest_outputs = (_number(content["data"].get(n)) for n in ("largest_input", "largest_outputs"))
    if largest_input is None or largest_outputs is None:
        raise CorruptArtifact(
            f"the certificate does not say how large inputs and outputs are: {content['data']!r:.200}"
        )
    return Case(net, small, _settings(content), largest_input, largest_outputs, inputs, held_out, trained, prior)


def _same_data(what: str, said: Any, evidence: Evidence) -> None:
    found = data_facts(evidence)
    if evidence.labels is None and isinstance(said, Mapping):  # those who have no labels check what needs none
        found["labels"] = said.get("labels")
    elif isinstance(said, Mapping) and said.get("labels") is None:
        found["labels"] = None
    rounded = {"largest_outputs": ROUNDING * evidence.largest_outputs}
    _same_facts(what, said, found, "what was given", rounded=rounded)


def _settings(content: Mapping[str, Any]) -> Settings:
    said, wanted = content["settings"], {field.name for field in fields(Settings)}
    if not isinstance(said, Mapping) or said.keys() != wanted:
        raise CorruptArtifact(f"the certificate does not say what was asked for: {said!r:.200}")
    settings = Settings(**said)
    numbers = (settings.delta, settings.candidates, settings.coverage, settings.boxed, settings.radius or 0)
    if (
        not all(_number(value) is not None for value in numbers)
        or not 0 < settings.delta < 1
        or settings.candidates < 1
    ):
        raise CorruptArtifact(f"the certificate was asked for something impossible: {said!r:.200}")
    return settings


# -- claims ------------------------------------------------------------------------------------------------------------


def _check_claims(entries: list[Any], case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the claims that were recomputed, and of those that could not be."""
    kinds = [_kind(entry) for entry in entries]
    names = [kind.name for kind in kinds]
    if len(set(names)) < len(names):
        raise VerificationFailed(f"the certificate says the same twice: {', '.join(names)}")
    share = share_of(case.settings, kinds)
    there = [kind.available(case) for kind in kinds]
    for kind, entry, available in zip(kinds, entries, there, strict=True):
        _check_claim(kind, entry, case, share, available)
    recomputed = tuple(name for name, available in zip(names, there, strict=True) if available)
    return recomputed, tuple(name for name in names if name not in recomputed)


def _kind(entry: Any) -> Kind:
    name = entry.get("claim") if isinstance(entry, Mapping) else None
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise VerificationFailed(f"the certificate claims something that is unknown here: {name!r}")


def _check_claim(kind: Kind, entry: Mapping[str, Any], case: Case, share: float, available: bool) -> None:
    """Raise VerificationFailed unless a claim follows from what was measured, and that is what we measure."""
    said = measured_in(entry)
    if available:
        _same_measured(kind, said, kind.measure(case, share), kind.tolerance(case))
    try:
        claim = kind.claim(said, case.settings, share)
    except (InvalidInput, KeyError) as error:
        raise VerificationFailed(f"the claim '{kind.name}' rests on impossible numbers {said}: {error}") from error
    _same_entry(kind.name, entry, claim)


def _same_measured(
    kind: Kind, said: Mapping[str, float], found: Mapping[str, float], tolerance: Mapping[str, float]
) -> None:
    for name in dict.fromkeys([*found, *said]):
        if not same_number(said.get(name), found.get(name), tolerance.get(name, 0.0)):
            raise VerificationFailed(
                f"the claim '{kind.name}' does not hold: the certificate says {name} = {said.get(name)}, "
                f"it is {found.get(name)}"
            )


def _same_entry(name: str, entry: Mapping[str, Any], claim: Claim) -> None:
    wanted = claim.as_json()
    if entry.keys() != wanted.keys():
        raise VerificationFailed(f"the claim '{name}' is not whole: it has {', '.join(entry)}")
    for field, value in wanted.items():
        if not _same(entry[field], value):
            raise VerificationFailed(f"the claim '{name}' was changed: its {field} is {entry[field]!r}, not {value!r}")


def _same(said: Any, found: Any) -> bool:
    if isinstance(found, Mapping):
        return (
            isinstance(said, Mapping) and said.keys() == found.keys() and all(_same(said[k], found[k]) for k in found)
        )
    if isinstance(found, float) and _number(said) is not None:
        return math.isclose(said, found, rel_tol=SAME, abs_tol=SAME * 1e-9)
    return type(said) is type(found) and bool(said == found)
