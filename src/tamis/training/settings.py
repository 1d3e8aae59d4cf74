"""The learning rate follows the schedule that the settings of a training name."""

from __future__ import annotations

import math

from tamis.settings import Training as Settings
from tamis.settings import require

MILESTONE_FACTOR = 0.1


def learning_rate_at(settings: Settings, epoch: float) -> float:
    """Compute the learning rate η · r(t) after t epochs, fractions included, with w warmup epochs out of T.

    - r(t) = t / w for t < w, and from then on
    - cosine: r(t) = ½ (1 + cos(π (t − w) / (T − w)));
    - multistep: r(t) = 10^{−m}, with m the number of milestones ≤ t.

    It depends on nothing but the epoch, so that training can resume at any.

    Reference: I. Loshchilov and F. Hutter, "SGDR: Stochastic gradient descent with warm restarts", ICLR 2017 (cosine).
    """
    require("epoch", epoch, f"from 0 to {settings.epochs}", 0 <= epoch <= settings.epochs)
    warmup = settings.warmup_epochs
    # Strictly below: with no warmup there is nothing to divide by, and at its end both formulas give η.
    if epoch < warmup:
        return settings.learning_rate * epoch / warmup
    if settings.schedule == "cosine":
        # 1 at the end of training, where the rate would be 0; the last step begins before it.
        fraction = (epoch - warmup) / (settings.epochs - warmup)
        return settings.learning_rate * (1 + math.cos(math.pi * fraction)) / 2
    drops = sum(milestone <= epoch for milestone in settings.milestones)
    return settings.learning_rate * MILESTONE_FACTOR**drops
