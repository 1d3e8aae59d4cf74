"""The claims that certificates of version 1 derived otherwise: only a verifier of such certificates makes them."""

from __future__ import annotations

from tamis.certify.claims.generalization import Generalization


class GeneralizationOfVersion1(Generalization):
    """The same bound, with as much of δ as every other claim."""

    part = None
