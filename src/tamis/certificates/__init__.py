"""Certificates: `tamis.certify` issues them; what they are made of and checked by is in `tamis.verification`."""

from tamis.certificates.issuing import certify as certify

__all__ = [
    "certify",
]
