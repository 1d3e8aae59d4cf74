"""A `Certificate` says what a small network's file is, what it was compared with, and what holds of the two."""

from __future__ import annotations

import hashlib
import json
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from tamis.artifact import replace_file
from tamis.bounds import Bound
from tamis.citations import cite
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.verification.claim import Claim
from tamis.verification.requirements import describe_requirement, is_judgement_of, verdict
from tamis.verification.schema import check_form

OUTSIDE = ("digest", "signature")  # what is not part of its own digest


class Certificate:
    """A certificate, which never changes.

    Args:
        content: everything it says, as JSON has it; docs/certificates.md explains each field.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(1, 4))
        >>> tamis.prune(net, 0.5).save("small.tamis")
        >>> cert = tamis.certify(net, "small.tamis", torch.randn(200, 4), torch.randint(2, (200,)))
        >>> print(cert)
        small.tamis: ...
        held-out data: tensor, 200 inputs
        accuracy on it: 52.50% before, 52.50% after
        ...
        >>> cert.save("small.json")
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._text = json.dumps(content, allow_nan=False)

    @classmethod
    def with_digest(cls, content: Mapping[str, Any]) -> Certificate:
        """Make a certificate of its content, and add the digest that every certificate has."""
        return cls({**content, "digest": digest_of(content)})

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate, and check that no byte of it was changed, and that its verdict follows from its claims.

        Raises:
            CorruptArtifact: the file is no certificate, or it was changed.
        """
        data = Path(path).read_bytes()
        try:
            content = json.loads(data, parse_constant=_refuse)
            same = _serialize(content) == data
        except (ValueError, RecursionError, OverflowError) as error:
            raise CorruptArtifact(f"'{path}' is not a certificate: {error!s:.200}") from error
        _check(content, f"'{path}'")
        if not same:
            raise CorruptArtifact(f"'{path}' was changed: its bytes are not those that tamis writes for what it says")
        return cls(content)

    def check(self) -> None:
        """Raise CorruptArtifact unless the certificate is whole and fits its digest."""
        _check(self.content, "what was given")

    def save(self, path: str | Path) -> None:
        """Write the certificate as JSON, whole or not at all."""
        with replace_file(path) as part:
            part.write_bytes(_serialize(self.content))

    @property
    def content(self) -> dict[str, Any]:
        """Return a copy of everything it says."""
        content: dict[str, Any] = json.loads(self._text)
        return content

    @property
    def delta(self) -> float:
        """Return the probability that any of the claims may be wrong."""
        return float(self.content["settings"]["delta"])

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Return all claims, in their order."""
        return tuple(read_claim(entry) for entry in self.content["claims"])

    @property
    def passed(self) -> bool | None:
        """Return whether the certified bounds are as small as was required; None where nothing was required."""
        return verdict(self.content.get("requirements", ()))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a reader should know before the claims: equal samples, an original that guesses."""
        return tuple(self.content.get("notes", ()))

    def __getitem__(self, name: str) -> Claim:
        """Return the claim of this name."""
        for claim in self.claims:
            if claim.name == name:
                return claim
        raise InvalidInput(f"the certificate has no claim '{name}'; it has {', '.join(c.name for c in self.claims)}")

    def __str__(self) -> str:
        return self.as_text()

    def as_text(self, width: int = 100) -> str:
        """Write it for a terminal of this width; names and the command, which one may paste, are never broken."""
        lines = [*self._write_verdict(), *self._write_subject()]
        for note in self.notes:
            lines += textwrap.wrap(f"! {note}", width, subsequent_indent="  ")
        for claim in self.claims:
            mark = "•" if claim.bound.informative else "∘"
            lines += textwrap.wrap(
                f"{mark} {claim.sentence} [{cite(claim.bound.source)}]", width, subsequent_indent="  "
            )
        informative = [claim.bound for claim in self.claims if claim.bound.informative]
        assumptions = dict.fromkeys(text for bound in informative for text in bound.assumptions)
        if assumptions:
            lines.append("This rests on what only you can vouch for:")
        for text in assumptions:
            lines += textwrap.wrap(f"– {text}", width - 2, initial_indent="  ", subsequent_indent="    ")
        return "\n".join(lines)

    def _write_verdict(self) -> list[str]:
        """Return PASS or FAIL, and why; nothing where nothing was required."""
        content = self.content
        requirements = content.get("requirements", ())
        lines = [] if self.passed is None else ["PASS" if self.passed else "FAIL"]
        for each in requirements:
            lines.append(f"  {'PASS' if each['holds'] else 'FAIL'}  {describe_requirement(each, content['claims'])}")
        return lines

    def _write_subject(self) -> list[str]:
        """Say what is compared with what, on which data, by which command; version 1 has no names."""
        content = self.content
        after, before = content["file"]["bytes"], content["network"]["bytes"]
        change = f"{before / after:.1f} times fewer" if after <= before else "more"
        lines = [f"{content['file']['name']}: {after:,} bytes, {change} than the {before:,} before"]
        if "name" in content["network"]:
            lines.append(f"original: {content['network']['name']}")
            lines.append(f"held-out data: {content['data']['name']}, {content['data']['samples']:,} inputs")
        if (accuracy := content.get("accuracy")) is not None:
            lines.append(f"accuracy on it: {accuracy['before']:.2%} before, {accuracy['after']:.2%} after")
        if content.get("command") is not None:
            lines.append(f"issued by: {content['command']}")
        return lines

    def __repr__(self) -> str:
        content = self.content
        return f"Certificate({content['file']['name']!r}, {len(content['claims'])} claims, δ = {self.delta:g})"


def digest_of(content: Mapping[str, Any]) -> str:
    """Compute the sha256 of everything a certificate says but its signature and the digest itself."""
    inside = {name: value for name, value in content.items() if name not in OUTSIDE}
    return hashlib.sha256(_serialize(inside)).hexdigest()


def _check(content: Any, called: str) -> None:
    check_form(content, called)
    if digest_of(content) != content["digest"]:
        raise CorruptArtifact(f"{called} was changed: its digest is {digest_of(content)}, it says {content['digest']}")
    if not is_judgement_of(content.get("requirements", ()), content["claims"]):
        raise CorruptArtifact(f"{called} was changed: whether it passes does not follow from what it claims")


def _serialize(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")


def read_claim(entry: Mapping[str, Any]) -> Claim:
    """Make a claim of an entry of a certificate."""
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
    return Claim(entry["claim"], entry["sentence"], bound, entry["delta"], entry["measured"])
