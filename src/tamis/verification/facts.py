"""A certificate identifies its networks, its file and its data by sizes, and by digests of every bit."""

from __future__ import annotations

from typing import Any

from tamis.artifact import File, fingerprint, fingerprint_of_values
from tamis.graph import Network
from tamis.verification.evidence import Evidence
from tamis.verification.schema import printable
from tamis.verification.wording import shorten_float


def network_facts(net: Network) -> dict[str, Any]:
    """Return what identifies the original network."""
    size = sum(value.numel() * value.element_size() for value in net.params.values())
    return {"graph": fingerprint(net), "values": fingerprint_of_values(net.params), "bytes": size}


def file_facts(file: File) -> dict[str, Any]:
    """Return what identifies a file."""
    return {"name": printable(file.path.name), "sha256": file.sha256, "bytes": file.nbytes}


def data_facts(evidence: Evidence) -> dict[str, Any]:
    """Return what identifies data, and how large its entries are, rounded up to a number of few digits."""
    return {
        "samples": evidence.samples,
        "given": evidence.given,
        "inputs": evidence.inputs,
        "labels": evidence.labels,
        "largest_input": max(evidence.largest_input, shorten_float(evidence.largest_input)),
    }


def accuracy_facts(evidence: Evidence) -> dict[str, float] | None:
    """Return the accuracy of each network on held-out data, and that of constant answers; None without labels."""
    if evidence.known is None:
        return None
    (before, _), (after, _) = evidence.right(0), evidence.right(1)
    right = {"before": before, "after": after, "guessing": evidence.most_frequent()}
    return {name: count / evidence.given for name, count in right.items()}
