"""`verify` derives every claim of a certificate again, from the files and the data, and believes none.

This package imports the theorems and the reader of `.tamis` files, and nothing that compresses networks or issues
certificates: a mistake there cannot hide itself here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tamis.artifact import File, fingerprint_of_values
from tamis.errors import InvalidInput, VerificationFailed
from tamis.graph import Network, without_autocast
from tamis.verification.arguments import as_network, check_prior_kind, load_small, open_file
from tamis.verification.certificate import Certificate
from tamis.verification.claim import Case
from tamis.verification.claim_checks import check_claims, list_required_kinds
from tamis.verification.data_checks import add_evidence, check_facts
from tamis.verification.evidence import Evidence
from tamis.verification.facts import file_facts, network_facts
from tamis.verification.notes import VERSION_1, notes_of, write_guessing_note
from tamis.verification.requirements import verdict
from tamis.verification.samples import Inputs
from tamis.verification.settings import Settings
from tamis.verification.signature import check_signer
from tamis.verification.unseen import recognition_note


@dataclass(frozen=True)
class Verification:
    """The result of a verification in which nothing failed; otherwise there is an error instead.

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
        """Return whether every claim was recomputed or vouched for."""
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
    file: str | Path | File,
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
        file: the `.tamis` file that it is about, or what `artifact.File.read` read of it.
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
        >>> net = tamis.trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(1, 4))
        >>> tamis.prune(net, 0.5).save("small.tamis")
        >>> x, y = torch.randn(200, 4), torch.randint(2, (200,))
        >>> tamis.certify(net, "small.tamis", x, y).save("small.json")
        >>> tamis.verify("small.json", "small.tamis", net, inputs=x, labels=y).ok
        True
    """
    content = _read(certificate)
    if inputs is None and labels is not None:
        raise InvalidInput("labels were given without the inputs that they belong to; pass inputs= as well")
    signer = check_signer(content, signed_by)
    stored = open_file(file)
    check_facts("file", content["file"], file_facts(stored), f"'{file}'", ignored=("name",))
    net = as_network(model, example, inputs, "verify")
    check_facts("network", content["network"], network_facts(net), "the model")
    _check_prior(content["prior"], prior, training)
    small = load_small(stored, net, model, rebuilt)  # of the bytes that were hashed
    settings = Settings(**content["settings"])
    case = Case(net, small, settings, content["data"]["largest_input"], prior=prior)
    kinds = list_required_kinds(content, case)  # before the data is read: a wrong list of claims is known without it
    case = add_evidence(case, content, stored, inputs, labels, training)
    recomputed, missing = check_claims(kinds, content, case)
    _check_accuracy_is_stated(content)
    recognition = recognition_note(small, content["data"]["samples"])
    _check_notes(content, recognition)
    trusted = signer is not None and signed_by is not None
    return Verification(
        recomputed,
        missing if trusted else (),
        () if trusted else missing,
        signer,
        verdict(content.get("requirements", ())),
        _collect_notes(content, case.held_out, recognition),
    )


def _read(certificate: str | Path | Certificate) -> dict[str, Any]:
    """Read what the certificate says, if it is whole and fits its digest."""
    if isinstance(certificate, Certificate):
        certificate.check()
        return certificate.content
    if not isinstance(certificate, (str, Path)):
        raise InvalidInput(f"verify needs a Certificate or the path of one, got {type(certificate).__name__}")
    return Certificate.load(certificate).content


def _check_prior(said: str | None, prior: Network | None, training: Any) -> None:
    check_prior_kind(prior)
    found = None if prior is None else fingerprint_of_values(prior.params)
    if found is not None and found != said:
        raise VerificationFailed(f"the prior is not that of the certificate: its sha256 is {found}, not {said}")
    if training is not None and found != said:
        raise InvalidInput("the code length of the certificate is one given a prior: pass prior= with training=")


def _check_accuracy_is_stated(content: Mapping[str, Any]) -> None:
    """Raise VerificationFailed where the accuracy is left out, and with it the note that the original guesses."""
    if content["certificate"] > 1 and (content["accuracy"] is None) is not (content["data"]["labels"] is None):
        said, has = ("no accuracy", "has") if content["accuracy"] is None else ("an accuracy", "has no")
        raise VerificationFailed(f"the certificate says {said}, and its data {has} labels")


def _check_notes(content: Mapping[str, Any], recognition: str | None) -> None:
    """Raise VerificationFailed where the notes do not follow from the rest; version 1 has none.

    Whether the file recognises the samples it was made with may be left out: certificates of before do not say it. A
    verifier reads it off the file, and says it of all of them.
    """
    if content["certificate"] == 1:
        return
    found = notes_of(content)
    if content["notes"] not in (found, [*found, recognition]):
        raise VerificationFailed(f"the notes do not follow from the data: they are {content['notes']}, and not {found}")


def _collect_notes(content: Mapping[str, Any], held_out: Evidence | None, recognition: str | None) -> tuple[str, ...]:
    """Return the certificate's own notes, or for version 1 what stands for them; and what the file recognises."""
    if content["certificate"] > 1:
        notes = notes_of(content)
    else:
        notes = [VERSION_1]
        if held_out is not None and held_out.known is not None:
            guessing = write_guessing_note(held_out.right(0)[0], held_out.most_frequent(), held_out.given)
            notes += filter(None, [guessing])
    return (*notes, *filter(None, [recognition]))
