"""`verify`: make every claim of a certificate again, from the files and the data, and believe none.

This imports the theorems and the reader of `.tamis` files, and nothing of what compresses networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tamis.artifact import fingerprint_of_values
from tamis.certificates import version_1
from tamis.certificates.certificate import Certificate
from tamis.certificates.claim import SAME, Case, Kind, Limits, Settings
from tamis.certificates.claims import kinds_of
from tamis.certificates.evidence import Evidence, gather_evidence
from tamis.certificates.issuing import (
    as_network,
    check_prior_kind,
    check_unseen,
    data_facts,
    file_facts,
    network_facts,
    read_once,
    training_evidence,
)
from tamis.certificates.notes import VERSION_1, guessing_note, notes_of
from tamis.certificates.rebuilt import load_beside
from tamis.certificates.requirements import verdict
from tamis.certificates.samples import Inputs, said_of
from tamis.certificates.shares import share_out
from tamis.certificates.signature import check_signature
from tamis.errors import InvalidInput, VerificationFailed
from tamis.graph import Network, without_autocast


@dataclass(frozen=True)
class Verification:
    """What a verifier found; nothing failed, or there would be an error instead.

    Attributes:
        recomputed: claims that were made again and came out the same.
        vouched: claims that need data which was not there, in a certificate signed by the key that was asked for.
        unchecked: claims that need data which was not there, and that nobody vouches for.
        signed_by: the public key that signed it, as hexadecimal digits; None if nobody did.
        passed: whether what was required holds, as far as the claims do; None where nothing was required.
        notes: what a reader should know before the claims: of the certificate's version, its data, its original.
    """

    recomputed: tuple[str, ...]
    vouched: tuple[str, ...]
    unchecked: tuple[str, ...]
    signed_by: str | None
    passed: bool | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every claim was recomputed or vouched for."""
        return not self.unchecked

    def __str__(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        lines += [f"recomputed, and the same: {', '.join(self.recomputed) or 'nothing'}"]
        if self.vouched:
            lines.append(f"vouched for by the signature only: {', '.join(self.vouched)}")
        if self.unchecked:
            lines.append(f"not checked, for want of data: {', '.join(self.unchecked)}")
        if self.passed is not None:
            lines.append(f"what was required of it: {'PASS' if self.passed else 'FAIL'}")
        lines.append(f"signed by the key {self.signed_by}" if self.signed_by else "not signed")
        return "\n".join(lines)


@without_autocast()
def verify(
    certificate: str | Path | Certificate,
    file: str | Path,
    model: Network | nn.Module,
    inputs: Inputs = None,
    labels: Any = None,
    *,
    rebuilt: Network | nn.Module | None = None,
    training: Any = None,
    prior: Network | None = None,
    signed_by: str | Path | None = None,
    example: Tensor | tuple[Tensor, ...] | None = None,
) -> Verification:
    """Recompute everything that a certificate says.

    Args:
        certificate: the certificate or its file.
        file: the `.tamis` file that it is about.
        model: the original network, or its module.
        inputs, labels, rebuilt, training, prior: as they were given to `certify`. Claims whose data is left out are not
            recomputed, and the result says so.
        signed_by: a PEM file with the public key that must have signed it.
        example: an input to trace a module with; by default the first of the inputs.

    Returns:
        A `Verification`, whose `ok` is whether every claim was recomputed or vouched for.

    Raises:
        VerificationFailed: the first thing that is not as the certificate says.
        AssumptionViolated: held-out samples are among those that the file remembers to be made with.
        CorruptArtifact: a file that was changed.

    Example:
        >>> tamis.verify("small.json", "small.tamis", net, inputs=x, labels=y).ok
        True
    """
    content = _read(certificate)
    if inputs is None and labels is not None:
        raise InvalidInput("labels were given without the inputs that they belong to; pass inputs= as well")
    signer = check_signer(content, signed_by)
    stored = read_once(file)
    _same_facts("file", content["file"], file_facts(stored), f"'{file}'", ignored=("name",))
    net = as_network(model, example, inputs, "verify")
    _same_facts("network", content["network"], network_facts(net), "the model")
    _check_prior(content["prior"], prior, training)
    small = load_beside(model, net, stored, rebuilt)  # of the bytes that were hashed
    settings = Settings(**content["settings"])
    case = Case(net, small, settings, content["data"]["largest_input"], prior=prior)
    kinds = _promised(content, case)
    case = _with_data(case, content, file, inputs, labels, training)
    recomputed, missing = _check_claims(kinds, content, case)
    _check_that_accuracy_is_said(content)
    _check_notes(content)
    trusted = signer is not None and signed_by is not None
    return Verification(
        recomputed,
        missing if trusted else (),
        () if trusted else missing,
        signer,
        verdict(content.get("requirements", ())),
        _notes(content, case.held_out),
    )


def _read(certificate: str | Path | Certificate) -> dict[str, Any]:
    """What the certificate says, if it is whole and fits its digest."""
    if isinstance(certificate, Certificate):
        certificate.check()
        return certificate.content
    if not isinstance(certificate, (str, Path)):
        raise InvalidInput(f"verify needs a Certificate or the path of one, got {type(certificate).__name__}")
    return Certificate.load(certificate).content


def check_signer(content: Mapping[str, Any], signed_by: str | Path | None) -> str | None:
    """The key that signed what a certificate says, None if nobody did; `signed_by` as `verify` takes it.

    Raises:
        VerificationFailed: it is not the one that was asked for, or the signature is not one of this certificate.
    """
    signature = content.get("signature")
    if signature is not None:
        return check_signature(content["digest"], signature, signed_by)
    if signed_by is not None:
        raise VerificationFailed(f"nobody signed the certificate, so not the key of '{signed_by}'")
    return None


def _check_prior(said: str | None, prior: Network | None, training: Any) -> None:
    check_prior_kind(prior)
    found = None if prior is None else fingerprint_of_values(prior.params)
    if found is not None and found != said:
        raise VerificationFailed(f"the prior is not that of the certificate: its sha256 is {found}, not {said}")
    if training is not None and found != said:
        raise InvalidInput("the code length of the certificate is one given a prior: pass prior= with training=")


# -- facts -------------------------------------------------------------------------------------------------------------


def _same_facts(
    what: str, said: Mapping[str, Any], found: Mapping[str, Any], called: str, ignored: Sequence[str] = ()
) -> None:
    for name, value in found.items():
        if said[name] == value or name in ignored:
            continue
        digest = "sha256 of its " if name in ("graph", "values", "inputs", "labels") else ""
        hint = {"graph": "; was it traced by another version of torch?", "inputs": "; the order counts, too"}.get(
            name, ""
        )
        raise VerificationFailed(
            f"{called} is not the {what} of the certificate: the {digest}{name.replace('_', ' ')} is {value}, and the "
            f"certificate says {said[name]}{hint}"
        )


def _with_data(
    case: Case, content: Mapping[str, Any], file: str | Path, inputs: Inputs, labels: Any, training: Any
) -> Case:
    """The case with what both networks do on the data that is there, which must be that of the certificate."""
    net, small = case.original, case.small.network
    held_out, trained = None, None
    if inputs is not None:
        keep = case.settings.boxed if case.settings.radius is not None else 1
        held_out = gather_evidence(net, small, inputs, labels, said_of(inputs, "inputs"), keep)
        _check_copies(held_out, content)
        _same_data("data", content["data"], held_out)
    if training is not None:
        if content["training"] is None:
            raise VerificationFailed("the certificate says nothing of training data; leave training= out")
        trained = training_evidence(net, small, training)
        assert trained is not None
        _check_copies(trained, content)
        _same_data("training", content["training"], trained)
    if held_out is not None:
        check_unseen(held_out, trained, net, case.small, file)
    if held_out is not None and held_out.known is not None and content.get("accuracy") is not None:
        _check_accuracy(content["accuracy"], held_out)
    return replace(case, held_out=held_out, training=trained)


def _check_copies(evidence: Evidence, content: Mapping[str, Any]) -> None:
    """Raise VerificationFailed where version 1 counted one sample several times; since version 2 each counts once."""
    if content["certificate"] == 1 and evidence.samples < evidence.given:
        raise VerificationFailed(
            f"of {evidence.given:,} samples given, {evidence.samples:,} are distinct, and the certificate, of version "
            "1, counts each as often as it came: have the file certified again"
        )


def _same_data(what: str, said: Mapping[str, Any], evidence: Evidence) -> None:
    found = {name: value for name, value in data_facts(evidence).items() if name in said}
    # Those who have no labels check what needs none, and labels that were not used are of no account.
    unused = ["labels"] if evidence.labels is None or said["labels"] is None else []
    if said["largest_input"] == evidence.largest_input:  # version 1 does not round it up
        unused.append("largest_input")
    _same_facts(f"{what} data" if what == "training" else what, said, found, "what was given", unused)


def _check_accuracy(said: Mapping[str, float], evidence: Evidence) -> None:
    """Raise VerificationFailed unless the accuracies are those seen here, but for answers in doubt."""
    samples, seen = evidence.given, evidence
    right = {
        "before": seen.right(0, width=2),
        "after": seen.right(1, width=2),
        "guessing": (seen.most_frequent(), seen.most_frequent()),
    }
    for name, (least, most) in right.items():
        if not least / samples <= said[name] <= most / samples:
            raise VerificationFailed(
                f"the accuracy {name} is {said[name]} in the certificate, and between {least / samples} and "
                f"{most / samples} on the data given"
            )


# -- claims ------------------------------------------------------------------------------------------------------------


def _promised(content: Mapping[str, Any], case: Case) -> list[Kind]:
    """The kinds of the claims, which must be all that such data allows: who drops some gives the rest more of δ."""
    there = {
        "networks": True,
        "inputs": True,
        "labels": content["data"]["labels"] is not None,
        "training": content["training"] is not None,
    }
    kinds = [kind for kind in kinds_of(content["certificate"]) if there[kind.needs] and kind.applies(case)]
    wanted, said = [kind.name for kind in kinds], [entry["claim"] for entry in content["claims"]]
    if said != wanted:
        raise VerificationFailed(
            f"the certificate must claim {', '.join(wanted)}; it claims {', '.join(said) or 'nothing'}"
        )
    return kinds


def _check_claims(
    kinds: Sequence[Kind], content: Mapping[str, Any], case: Case
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the claims that were recomputed, and of those that could not be."""
    old = content["certificate"] == 1
    shares = share_out(case.settings.delta, kinds, case.settings.candidates)
    try:
        for kind, entry in zip(kinds, content["claims"], strict=True):
            _check_claim(kind, entry, content, case, shares[kind.name], old)
    except VerificationFailed as error:
        raise VerificationFailed(f"{error} {version_1.REASON}") if old else error from None
    recomputed = tuple(kind.name for kind in kinds if kind.available(case))
    return recomputed, tuple(kind.name for kind in kinds if not kind.available(case))


def _check_claim(
    kind: Kind, entry: Mapping[str, Any], content: Mapping[str, Any], case: Case, share: float, old: bool
) -> None:
    measured = entry["measured"]
    _check_samples(kind, measured, content)
    if kind.available(case):
        limits = kind.limits(case, share)
        _check_measured(kind, measured, version_1.limits_for(measured, limits) if old else limits)
    _check_derived(kind, entry, case.settings, share, old)


def _check_samples(kind: Kind, measured: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """What can be checked of the numbers without data: which they are, and of how many samples."""
    if set(measured) != set(kind.numbers):
        raise VerificationFailed(
            f"the claim '{kind.name}' must say what {', '.join(kind.numbers)} are, and says {', '.join(measured)}"
        )
    samples = content["training" if kind.needs == "training" else "data"]["samples"]
    if "samples" in measured and measured["samples"] != samples:
        raise VerificationFailed(
            f"the claim '{kind.name}' speaks of {measured['samples']} samples, the certificate of {samples}"
        )


def _check_measured(kind: Kind, said: Mapping[str, Any], limits: Limits) -> None:
    for name, (least, most) in limits.items():
        value = said[name]
        if value is None or least is None or most is None:
            holds = value is least is most
        else:
            holds = type(value) is type(least) and least <= value <= most  # counts are whole
        if not holds:
            between = f"it is {least}" if least == most else f"it is between {least} and {most}"
            raise VerificationFailed(f"the claim '{kind.name}' does not hold: it says {name} = {value}, and {between}")


def _check_derived(kind: Kind, entry: Mapping[str, Any], settings: Settings, share: float, old: bool) -> None:
    """Raise VerificationFailed unless bound and sentence are what follows from the numbers."""
    try:
        derived = kind.claim(entry["measured"], settings, share)
        derived = version_1.restated(entry, kind, derived, settings) if old else derived
    except (InvalidInput, TypeError, ValueError, OverflowError) as error:
        raise VerificationFailed(
            f"the claim '{kind.name}' rests on numbers that cannot be: {entry['measured']!r:.200}"
        ) from error
    for field, value in derived.as_json().items():
        if not _same(entry[field], value):
            raise VerificationFailed(
                f"the claim '{kind.name}' was changed: its {field} is {entry[field]!r:.300}, not {value!r:.300}"
            )


def _check_that_accuracy_is_said(content: Mapping[str, Any]) -> None:
    """Raise VerificationFailed where it is left out, and with it the note that the original guesses."""
    if content["certificate"] > 1 and (content["accuracy"] is None) is not (content["data"]["labels"] is None):
        said, has = ("no accuracy", "has") if content["accuracy"] is None else ("an accuracy", "has no")
        raise VerificationFailed(f"the certificate says {said}, and its data {has} labels")


def _check_notes(content: Mapping[str, Any]) -> None:
    """Raise VerificationFailed where notes are not what follows from the rest; version 1 has none."""
    if content["certificate"] > 1 and content["notes"] != (found := notes_of(content)):
        raise VerificationFailed(f"the notes do not follow from the data: they are {content['notes']}, and not {found}")


def _notes(content: Mapping[str, Any], held_out: Evidence | None) -> tuple[str, ...]:
    """The certificate's own notes; of version 1, which has none, what can be said in their place."""
    if content["certificate"] > 1:
        return tuple(content["notes"])
    guessing = None
    if held_out is not None and held_out.known is not None:
        guessing = guessing_note(held_out.right(0)[0], held_out.most_frequent(), held_out.given)
    return (VERSION_1,) if guessing is None else (VERSION_1, guessing)


def _same(said: Any, found: Any) -> bool:
    if isinstance(found, Mapping):
        return said.keys() == found.keys() and all(_same(said[name], value) for name, value in found.items())
    if isinstance(found, float) and isinstance(said, float):
        return math.isclose(said, found, rel_tol=SAME)
    return type(said) is type(found) and bool(said == found)
