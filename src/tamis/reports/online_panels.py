"""These panels show a run of the online learner, beside experts and the bound.

Reference: chee2021xnor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.bayes import BOUND, GUESS
from tamis.reports.figures import Panel


def online_panels(found: Mapping[str, Mapping[str, Any]], title: str = "") -> list[Panel]:
    """Make two panels of what `tamis.bayes.compute_curves` gives: losses so far, and the likeliest architectures.

    Args:
        found: the curves.
        title: of both panels.
    """
    return [
        Panel(found["losses"], "round", "loss so far, nats", title, dashed=(BOUND, GUESS)),
        Panel(found["architectures"], "round", "posterior probability", title),
    ]
