"""`tamis.certify` issues certificates; `tamis.verification` holds what they are made of and checked by."""

from tamis.certificates.issuing import certify as certify

__all__ = [
    "certify",
]
