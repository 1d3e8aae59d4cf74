"""By an Ed25519 signature of a certificate, an issuer vouches for what others cannot recompute."""

from __future__ import annotations

from pathlib import Path

from tamis.verification import ALGORITHM, read_private_key


def sign_digest(digest: str, key: str | Path) -> dict[str, str]:
    """Sign a certificate's digest; the public key that it can be checked with stands beside the signature.

    Args:
        digest: the certificate's.
        key: a PEM file with an Ed25519 private key, without a passphrase.
    """
    private = read_private_key(key)
    return {
        "algorithm": ALGORITHM,
        "public_key": private.public_key().public_bytes_raw().hex(),
        "signature": private.sign(digest.encode()).hex(),
    }
