"""Certificates: `tamis.certify(net, "small.tamis", inputs)` and what it is made of, one kind of claim a file."""

from tamis.certificates.certificate import Certificate as Certificate
from tamis.certificates.claim import part as part
from tamis.certificates.claim import percent as percent
from tamis.certificates.evidence import classes_of as classes_of
from tamis.certificates.evidence import gather_evidence as gather_evidence
from tamis.certificates.issuing import as_network as as_network
from tamis.certificates.issuing import certify
from tamis.certificates.issuing import network_facts as network_facts
from tamis.certificates.rebuilt import load_beside as load_beside
from tamis.certificates.rebuilt import load_rebuilding as load_rebuilding
from tamis.certificates.rebuilt import rebuilt_for as rebuilt_for
from tamis.certificates.requirements import REQUIRED as REQUIRED
from tamis.certificates.requirements import asked_for as asked_for
from tamis.certificates.requirements import in_words as in_words
from tamis.certificates.requirements import rate_of as rate_of
from tamis.certificates.requirements import verdict as verdict
from tamis.certificates.requirements import what_needs_labels as what_needs_labels
from tamis.certificates.samples import first_of as first_of
from tamis.certificates.schema import VERSION as VERSION
from tamis.certificates.shares import share_out as share_out
from tamis.certificates.verify import check_signer as check_signer
from tamis.certificates.verify import verify as verify

__all__ = [
    "REQUIRED",
    "VERSION",
    "Certificate",
    "as_network",
    "asked_for",
    "certify",
    "check_signer",
    "classes_of",
    "first_of",
    "gather_evidence",
    "in_words",
    "load_beside",
    "load_rebuilding",
    "network_facts",
    "part",
    "percent",
    "rate_of",
    "rebuilt_for",
    "share_out",
    "verdict",
    "verify",
    "what_needs_labels",
]
