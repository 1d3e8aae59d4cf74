"""Each file of this package holds one kind of claim that a certificate can make."""

from tamis.verification.claim import Kind
from tamis.verification.claims.accuracy_change import AccuracyChange
from tamis.verification.claims.boxes import Boxes
from tamis.verification.claims.deviation import Deviation
from tamis.verification.claims.disagreement import Disagreement
from tamis.verification.claims.error_rate import ErrorRate
from tamis.verification.claims.generalization import Generalization
from tamis.verification.claims.path_metric import PathMetric
from tamis.verification.claims.version_1 import AccuracyChangeOfVersion1, GeneralizationOfVersion1

__all__ = [
    "kinds_of",
]


# In the order of a certificate.
KINDS: tuple[Kind, ...] = (
    Disagreement(),
    AccuracyChange(),
    ErrorRate(),
    Deviation(),
    Boxes(),
    PathMetric(),
    Generalization(),
)

# What certificates of version 1 had instead, so that those of before can be made again.
VERSION_1: tuple[Kind, ...] = (AccuracyChangeOfVersion1(), GeneralizationOfVersion1())


def kinds_of(version: int) -> tuple[Kind, ...]:
    """Return the kinds of claims that certificates of a version have, in their order."""
    before = {kind.name: kind for kind in VERSION_1} if version == 1 else {}
    return tuple(before.get(kind.name, kind) for kind in KINDS)
