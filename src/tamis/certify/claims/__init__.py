"""Everything that a certificate can say, one kind of claim in each file."""

from tamis.certify.claim import Kind
from tamis.certify.claims.accuracy_change import AccuracyChange
from tamis.certify.claims.boxes import Boxes
from tamis.certify.claims.deviation import Deviation
from tamis.certify.claims.disagreement import Disagreement
from tamis.certify.claims.error_rate import ErrorRate
from tamis.certify.claims.generalization import Generalization
from tamis.certify.claims.path_metric import PathMetric

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
