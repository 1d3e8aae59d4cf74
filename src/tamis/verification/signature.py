"""An Ed25519 signature says who vouches for a certificate, for those who do not have its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamis.errors import InvalidInput, VerificationFailed

ALGORITHM = "Ed25519"
PRIME = 2**255 - 19  # of the field that the points of the curve have their coordinates in
ORDER_8 = 0x5FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826  # y of two of the four points of order 8
# The heights y of the eight points whose order divides 8. With one of them as the public key, the same signature fits
# one message in eight, or every one, and nobody needs a private key to make it.
SMALL_ORDER = frozenset((0, 1, PRIME - 1, ORDER_8, PRIME - ORDER_8))
MAKE_ONE = "openssl genpkey -algorithm ed25519 -out key.pem"


def check_signature(digest: str, signature: Mapping[str, Any], signed_by: str | Path | None) -> str:
    """Check a signature, and return the public key that made it, as hexadecimal digits.

    Args:
        digest: the certificate's.
        signature: what stands in the certificate.
        signed_by: a PEM file with the key that must have signed it, public or private; None: any.

    Raises:
        VerificationFailed: the signature is not that of this digest, or not by that key, or the key is nobody's.
    """
    _, ed25519, invalid = _import_cryptography()
    readable = {
        "algorithm": ALGORITHM,
        "public_key": _normalize_hexadecimal(signature.get("public_key"), 32),
        "signature": _normalize_hexadecimal(signature.get("signature"), 64),
    }
    if signature != readable:
        raise VerificationFailed(f"the certificate has no signature that could be read: {signature!r:.100}")
    if not _is_sound(signature["public_key"]):
        raise VerificationFailed(
            f"the certificate was signed by the key {signature['public_key']}, which is nobody's: anybody can make "
            "signatures that fit it"
        )
    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        public.verify(bytes.fromhex(signature["signature"]), digest.encode())
    except (ValueError, invalid) as error:
        raise VerificationFailed(
            "the signature is not one of this certificate: it was changed after signing"
        ) from error
    found = signature["public_key"]
    if signed_by is not None and (key := read_public_key(signed_by)) != found:
        raise VerificationFailed(f"the certificate was signed by the key {found}, not by {key} of '{signed_by}'")
    return str(found)


def check_signer(content: Mapping[str, Any], signed_by: str | Path | None) -> str | None:
    """Return the key that signed a certificate, None if nobody did; `signed_by` is as `verify` takes it.

    Raises:
        VerificationFailed: another key signed it, or the signature is not one of this certificate.
    """
    signature = content.get("signature")
    if signature is not None:
        return check_signature(content["digest"], signature, signed_by)
    if signed_by is not None:
        raise VerificationFailed(f"nobody signed the certificate, so not the key of '{signed_by}'")
    return None


def _normalize_hexadecimal(text: Any, size: int) -> str | None:
    """Write so many bytes in the one way that is accepted; return None for what cannot be read."""
    try:
        data = bytes.fromhex(text)
    except (ValueError, TypeError):
        return None
    return data.hex() if len(data) == size else None


def read_public_key(path: str | Path) -> str:
    """Read the public key of a PEM file, which may hold the private one, as hexadecimal digits."""
    serialization, ed25519, _ = _import_cryptography()
    content = Path(path).read_bytes()
    if b"PRIVATE KEY" in content:
        return str(read_private_key(path).public_key().public_bytes_raw().hex())
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"'{path}' holds no public key in PEM form") from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InvalidInput(f"'{path}' holds a {type(key).__name__}; certificates are signed with {ALGORITHM}")
    if not _is_sound(raw := key.public_bytes_raw().hex()):
        raise InvalidInput(f"'{path}' holds the key {raw}, which is nobody's: anybody can make signatures that fit it")
    return str(raw)


def _is_sound(key: str) -> bool:
    """Return whether a public key is a point of large order, written in the only way there is for it."""
    height = int.from_bytes(bytes.fromhex(key), "little") % 2**255  # the bit above is the sign of x
    return height < PRIME and height not in SMALL_ORDER


def read_private_key(path: str | Path) -> Any:
    """Read the private key of a PEM file."""
    serialization, ed25519, _ = _import_cryptography()
    try:
        key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"'{path}' holds no private key without a passphrase; make one with: {MAKE_ONE}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InvalidInput(f"'{path}' holds a {type(key).__name__}; make an {ALGORITHM} key with: {MAKE_ONE}")
    return key


def _import_cryptography() -> tuple[Any, Any, Any]:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise InvalidInput("signatures need the cryptography package: pip install 'tamis[sign]'") from error
    return serialization, ed25519, InvalidSignature
