"""These checks refuse networks, files and data other than those that a certificate is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tamis.artifact import File
from tamis.errors import VerificationFailed
from tamis.verification.claim import Case
from tamis.verification.evidence import Evidence
from tamis.verification.facts import data_facts
from tamis.verification.measurement import gather_evidence, gather_training_evidence
from tamis.verification.samples import Inputs, Samples, quote_name
from tamis.verification.unseen import check_unseen


def check_facts(
    what: str, said: Mapping[str, Any], found: Mapping[str, Any], called: str, ignored: Sequence[str] = ()
) -> None:
    """Raise VerificationFailed where facts differ from those that a certificate states.

    Args:
        what: what the facts identify, as messages call it.
        said: the facts of the certificate.
        found: the facts of what was given.
        called: what messages call the thing that was given.
        ignored: names of facts that may differ.
    """
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


def add_evidence(
    case: Case, content: Mapping[str, Any], file: File, inputs: Inputs, labels: Any, training: Any
) -> Case:
    """Add what both networks do on the data that is there, which must be that of the certificate."""
    net, small = case.original, case.small.network
    held_out, trained = None, None
    if inputs is not None:
        keep = case.settings.boxed if case.settings.radius is not None else 1
        held_out = gather_evidence(net, small, Samples(inputs, labels, quote_name(inputs, "inputs")), keep)
        _check_copies(held_out, content)
        _check_same_data("data", content["data"], held_out)
    if training is not None:
        if content["training"] is None:
            raise VerificationFailed("the certificate says nothing of training data; leave training= out")
        trained = gather_training_evidence(net, small, training)
        assert trained is not None
        _check_copies(trained, content)
        _check_same_data("training", content["training"], trained)
    if held_out is not None:
        check_unseen(held_out, trained, net, case.small, file.path)
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


def _check_same_data(what: str, said: Mapping[str, Any], evidence: Evidence) -> None:
    found = {name: value for name, value in data_facts(evidence).items() if name in said}
    # Those who have no labels check what needs none, and labels that were not used are of no account.
    unused = ["labels"] if evidence.labels is None or said["labels"] is None else []
    if said["largest_input"] == evidence.largest_input:  # version 1 does not round it up
        unused.append("largest_input")
    check_facts(f"{what} data" if what == "training" else what, said, found, "what was given", unused)


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
