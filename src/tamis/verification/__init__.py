"""Verification holds `tamis.verify` and every check of a certificate; it neither compresses nor issues anything.

The forms of certificates, the kinds of claims (`claims/`, one a file) and the way each is derived are here, because a
verifier must derive them again; `tamis.certificates` imports them to issue. Of tamis, this package imports `graph`,
`paths`, `bounds` and `artifact` alone.
"""

from tamis.verification.arguments import as_network as as_network
from tamis.verification.arguments import check_prior_kind as check_prior_kind
from tamis.verification.arguments import load_small as load_small
from tamis.verification.arguments import open_file as open_file
from tamis.verification.certificate import Certificate as Certificate
from tamis.verification.claim import Case as Case
from tamis.verification.claims import kinds_of as kinds_of
from tamis.verification.claims.boxes import check_boxes as check_boxes
from tamis.verification.evidence import Evidence as Evidence
from tamis.verification.facts import accuracy_facts as accuracy_facts
from tamis.verification.facts import data_facts as data_facts
from tamis.verification.facts import file_facts as file_facts
from tamis.verification.facts import network_facts as network_facts
from tamis.verification.measurement import Team as Team
from tamis.verification.measurement import classes_of as classes_of
from tamis.verification.measurement import gather_evidence as gather_evidence
from tamis.verification.measurement import gather_training_evidence as gather_training_evidence
from tamis.verification.notes import notes_of as notes_of
from tamis.verification.requirements import REQUIRED as REQUIRED
from tamis.verification.requirements import describe_requirement as describe_requirement
from tamis.verification.requirements import judge as judge
from tamis.verification.requirements import parse_rate as parse_rate
from tamis.verification.requirements import refuse_without_classes as refuse_without_classes
from tamis.verification.requirements import required_bounds as required_bounds
from tamis.verification.requirements import requirement_of_labels as requirement_of_labels
from tamis.verification.requirements import verdict as verdict
from tamis.verification.samples import Inputs as Inputs
from tamis.verification.samples import Samples as Samples
from tamis.verification.samples import first_input as first_input
from tamis.verification.samples import name_of as name_of
from tamis.verification.samples import quote_name as quote_name
from tamis.verification.schema import VERSION as VERSION
from tamis.verification.schema import printable as printable
from tamis.verification.settings import Settings as Settings
from tamis.verification.settings import make_settings as make_settings
from tamis.verification.shares import share_of_disagreement as share_of_disagreement
from tamis.verification.shares import share_out as share_out
from tamis.verification.signature import ALGORITHM as ALGORITHM
from tamis.verification.signature import check_signer as check_signer
from tamis.verification.signature import read_private_key as read_private_key
from tamis.verification.unseen import check_unseen as check_unseen
from tamis.verification.unseen import recognition_note as recognition_note
from tamis.verification.verifier import Verification as Verification
from tamis.verification.verifier import verify as verify
from tamis.verification.wording import format_rate as format_rate
from tamis.verification.wording import format_share as format_share

__all__ = [
    "ALGORITHM",
    "REQUIRED",
    "VERSION",
    "Case",
    "Certificate",
    "Evidence",
    "Inputs",
    "Samples",
    "Settings",
    "Team",
    "Verification",
    "accuracy_facts",
    "as_network",
    "check_boxes",
    "check_prior_kind",
    "check_signer",
    "check_unseen",
    "classes_of",
    "data_facts",
    "describe_requirement",
    "file_facts",
    "first_input",
    "format_rate",
    "format_share",
    "gather_evidence",
    "gather_training_evidence",
    "judge",
    "kinds_of",
    "load_small",
    "make_settings",
    "name_of",
    "network_facts",
    "notes_of",
    "open_file",
    "parse_rate",
    "printable",
    "quote_name",
    "read_private_key",
    "recognition_note",
    "refuse_without_classes",
    "required_bounds",
    "requirement_of_labels",
    "share_of_disagreement",
    "share_out",
    "verdict",
    "verify",
]
