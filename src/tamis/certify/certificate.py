"""`Certificate`: what a small network's file is, what it was compared with, and what can be said of the two."""

from __future__ import annotations

import hashlib
import json
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.artifact.atomic import replacing
from tamis.bounds.bound import Bound
from tamis.certify.claim import Claim, measured_in
from tamis.certify.signature import signed
from tamis.errors import CorruptArtifact, InvalidInput

VERSION = 1
OUTSIDE = ("digest", "signature")  # what is not part of its own digest
FIELDS = ("certificate", "made_by", "date", "settings", "network", "file", "data", "training", "prior", "claims")


class Certificate:
    """A certificate. Nothing in it changes.

    Attributes:
        content: everything it says, as JSON has it; docs/certificates.md explains each field.

    Example:
        >>> cert = tamis.certify(net, "small.tamis", inputs, labels)
        >>> print(cert)
        >>> cert.save("small.json")
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False))

    @classmethod
    def issued(cls, content: Mapping[str, Any], sign: str | Path | None = None) -> Certificate:
        """A new certificate, with its digest and, if there is a key, a signature."""
        digest = digest_of(content)
        whole = {**content, "digest": digest}
        return cls(whole if sign is None else {**whole, "signature": signed(digest, sign)})

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read one, and check that not a byte of it was changed since it was written.

        Raises:
            CorruptArtifact: it is no certificate, or it was changed.
        """
        data = Path(path).read_bytes()
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptArtifact(f"'{path}' is not a certificate: {error}") from error
        _check_form(content, str(path))
        if _written(content) != data:
            raise CorruptArtifact(f"'{path}' was changed: its bytes are not those that tamis writes for what it says")
        return cls(content)

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        with replacing(path) as part:
            part.write_bytes(_written(self.content))

    @property
    def delta(self) -> float:
        """The probability that any of the claims may be wrong."""
        return float(self.content["settings"]["delta"])

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What it says."""
        return tuple(_claim(entry) for entry in self.content["claims"])

    def __getitem__(self, name: str) -> Claim:
        """The claim of this name."""
        for claim in self.claims:
            if claim.name == name:
                return claim
        raise InvalidInput(f"the certificate has no claim '{name}'; it has {', '.join(c.name for c in self.claims)}")

    def __str__(self) -> str:
        file, network = self.content["file"], self.content["network"]
        ratio = network["bytes"] / file["bytes"]
        lines = [
            f"{file['name']}: {file['bytes']:,} bytes, {ratio:.1f} times fewer than the {network['bytes']:,} before"
        ]
        for claim in self.claims:
            mark = "•" if claim.bound.informative else "∘"
            lines += textwrap.wrap(f"{mark} {claim.sentence}", 100, subsequent_indent="  ")
        assumptions = dict.fromkeys(text for claim in self.claims for text in claim.bound.assumptions)
        if assumptions:
            lines += ["This rests on what only you can vouch for:", *(f"  – {text}" for text in assumptions)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"Certificate({self.content['file']['name']!r}, {len(self.content['claims'])} claims, δ = {self.delta:g})"
        )


def digest_of(content: Mapping[str, Any]) -> str:
    """The sha256 of everything a certificate says, its signature and the digest itself aside."""
    inside = {name: value for name, value in content.items() if name not in OUTSIDE}
    return hashlib.sha256(_written(inside)).hexdigest()


def _written(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _check_form(content: Any, path: str) -> None:
    if not isinstance(content, dict) or "certificate" not in content:
        raise CorruptArtifact(f"'{path}' is not a certificate of tamis")
    if content["certificate"] != VERSION:
        raise CorruptArtifact(f"'{path}' is a certificate of version {content['certificate']!r}, not {VERSION}")
    wrong = [name for name in (*FIELDS, "digest") if name not in content]
    wrong += [name for name in content if name not in (*FIELDS, *OUTSIDE)]
    if wrong or not isinstance(content["claims"], list):
        raise CorruptArtifact(f"'{path}' is no whole certificate: see {', '.join(wrong) or 'claims'}")
    if digest_of(content) != content["digest"]:
        raise CorruptArtifact(f"'{path}' was changed: its digest is {digest_of(content)}, it says {content['digest']}")


def _claim(entry: Mapping[str, Any]) -> Claim:
    value = math.inf if entry["value"] is None else entry["value"]
    log10 = entry["log10"]
    log_value = log10 * math.log(10) if log10 is not None else -math.inf if value <= 0 else math.inf
    bound = Bound(
        value=value,
        log_value=log_value,
        informative=entry["informative"],
        source=entry["source"],
        assumptions=tuple(entry["assumptions"]),
        checked=tuple(entry["checked"]),
        terms={name: math.inf if number is None else number for name, number in entry["terms"].items()},
    )
    return Claim(entry["claim"], entry["sentence"], bound, entry["delta"], measured_in(entry))
