"""Keys of small order belong to nobody: signatures that fit them need no private key, so they are refused."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tamis.certificates.signing import sign_digest
from tamis.errors import InvalidInput, VerificationFailed
from tamis.verification.signature import check_signature, read_public_key

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
LARGE = 2**252 + 27742317777372353535851937790883648493  # the order of the base point; 8 times it are all points
DIGEST = "0" * 64


def added(one, other):
    """Points of the curve −x² + y² = 1 + d x² y², added as its law says."""
    (x1, y1), (x2, y2) = one, other
    k = D * x1 * x2 * y1 * y2
    return (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def times(number, point):
    result = (0, 1)
    while number:
        if number & 1:
            result = added(result, point)
        point, number = added(point, point), number >> 1
    return result


def roots(y):
    """The x of the points at a height."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    return {x, -x % P} if x * x % P == square else set()


def small_points():
    """The eight points whose order divides 8: LARGE times any points, of which some at heights 2, 3, … are enough."""
    found = {times(LARGE, (x, y)) for y in range(2, 30) for x in roots(y)}
    assert len(found) == 8 and all(times(8, point) == (0, 1) for point in found)
    return found


def written(height, sign):
    return (height | sign << 255).to_bytes(32, "little")


# A height below 19 can be written a second time, with P added; both signs are tried where x is 0 as well.
ENCODINGS = sorted(
    {written(h, sign).hex() for _, y in small_points() for h in (y, y + P) if h < 2**255 for sign in (0, 1)}
)


def test_there_are_as_many_encodings_as_known():
    """Five heights and two that are written twice, 0 and 1, each with both signs."""
    assert len(ENCODINGS) == 2 * (5 + 2)


@pytest.mark.parametrize("key", ENCODINGS)
def test_keys_of_small_order_are_refused(key, tmp_path):
    signature = {"algorithm": "Ed25519", "public_key": key, "signature": "00" * 64}
    with pytest.raises(VerificationFailed, match=f"signed by the key {key}, which is nobody's"):
        check_signature(DIGEST, signature, None)
    try:
        pem = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    except ValueError:  # the library refuses it itself
        return
    (tmp_path / "key.pub").write_bytes(pem)
    with pytest.raises(InvalidInput, match="which is nobody's"):
        read_public_key(tmp_path / "key.pub")


def test_a_signature_that_nobody_made_fits_such_a_key():
    """The reason: the neutral point, as key and as R, with S = 0, fits every text."""
    neutral = written(1, 0)
    for text in (b"one", b"another"):
        Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), text)
    with pytest.raises(VerificationFailed, match="nobody's"):
        check_signature(
            DIGEST,
            {"algorithm": "Ed25519", "public_key": neutral.hex(), "signature": (neutral + bytes(32)).hex()},
            None,
        )


@pytest.mark.parametrize("height", [P + 2, P + 18, 2**255 - 1])
def test_keys_that_are_written_otherwise_than_they_must_be_are_refused(height):
    key = written(height, 0).hex()
    with pytest.raises(VerificationFailed, match="nobody's"):
        check_signature(DIGEST, {"algorithm": "Ed25519", "public_key": key, "signature": "00" * 64}, None)


def test_keys_of_people_are_taken(tmp_path):
    for seed in range(20):
        private = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (tmp_path / "key.pem").write_bytes(pem)
        made = sign_digest(DIGEST, tmp_path / "key.pem")
        assert check_signature(DIGEST, made, tmp_path / "key.pem") == made["public_key"]
        with pytest.raises(VerificationFailed, match="changed after signing"):
            check_signature("1" * 64, made, None)
