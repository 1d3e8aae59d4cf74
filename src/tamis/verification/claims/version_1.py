"""The claims that certificates of version 1 derived otherwise: only a verifier of such certificates makes them."""

from __future__ import annotations

from tamis.bounds import Bound, accuracy_change_by_difference
from tamis.verification.claim import Numbers
from tamis.verification.claims.accuracy_change import AccuracyChange
from tamis.verification.claims.generalization import Generalization
from tamis.verification.settings import Settings


class AccuracyChangeOfVersion1(AccuracyChange):
    """The paired difference of the two error rates, not yet ordered by its score."""

    def bound(self, measured: Numbers, settings: Settings, delta: float) -> Bound:
        return accuracy_change_by_difference(measured["worse"], measured["better"], measured["samples"], delta)


class GeneralizationOfVersion1(Generalization):
    """The same bound, with as much of δ as every other claim."""

    part = None
