"""The settings of online learning name the stream, the union of networks, and the learner."""

from __future__ import annotations

from dataclasses import dataclass

from tamis.settings.field import setting


@dataclass(frozen=True)
class OnlineLearning:
    """These settings of `tamis online` are those of `tamis.bayes.RunSettings`, as one types them.

    What `layers`, `filters` and `sizes` leave open, the kind of networks decides.
    """

    data: str = setting("The stream: images by a name or a path, as mnist:train, or series, or graph.", metavar="DATA")
    space: str = setting("Which networks to learn with.", choices=("dense", "conv1d", "conv2d", "graph", "xnor"))
    rounds: int = setting("How many; with more, a run that is over goes on.", typed=int, metavar="N")
    batch: int = setting("Examples in a round.", 16, typed=int, metavar="N")
    particles: int = setting("How many networks stand for the posterior.", 100, typed=int, metavar="N")
    lam: float = setting("How much a round counts; 1 or less.", 1.0, typed=float, metavar="LAMBDA")
    tau: float = setting("The scale of the weights' prior.", 0.3, typed=float, metavar="TAU")
    seed: int = setting("Of the order of the examples and of all draws.", 0, typed=int, metavar="N")
    layers: str | None = setting("Of the union of networks, as 1,2,3.", None, metavar="NUMBERS")
    filters: str | None = setting("In a layer, as 2,4.", None, metavar="NUMBERS")
    sizes: str | None = setting("Of filters, as 3,5.", None, metavar="NUMBERS")
    pool: int = setting("Take the mean of N x N pixels for one.", 1, typed=int, metavar="N")
    subsample: int = setting(
        "How many past rounds a move of particles sees; 0 for all, exact and slower.", 32, typed=int, metavar="N"
    )
