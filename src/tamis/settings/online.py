"""The settings of online learning name the stream, the union of networks, and the learner."""

from __future__ import annotations

from dataclasses import dataclass

from tamis.settings.field import documents, setting


@dataclass(frozen=True)
class OnlineLearning:
    """The settings of online learning name the stream, the union of networks, and the learner.

    What `layers`, `filters` and `sizes` leave open, the kind of networks decides.

    Args:
        <settings>

    Example:
        >>> OnlineLearning("digits", "dense", rounds=2).batch
        16
    """

    data: str = setting("The stream: images by a name or a path, as mnist:train, or series, or graph.", metavar="DATA")
    space: str = setting(
        "Which networks to learn with: dense, conv1d, conv2d, graph or xnor.",
        choices=("dense", "conv1d", "conv2d", "graph", "xnor"),
    )
    rounds: int = setting("How many rounds to learn; with more, a run that is over goes on.", typed=int, metavar="N")
    batch: int = setting("Examples in a round.", 16, typed=int, metavar="N")
    particles: int = setting("How many networks stand for the posterior.", 100, typed=int, metavar="N")
    lam: float = setting(
        "How much a round counts, λ > 0. A larger one trusts the data more, but above 1 or so little is learnt.",
        1.0,
        typed=float,
        metavar="LAMBDA",
    )
    tau: float = setting("The scale τ of the weights' prior.", 0.3, typed=float, metavar="TAU")
    seed: int = setting(
        "The seed of everything that is drawn, as the order of a stream's examples.", 0, typed=int, metavar="N"
    )
    pool: int = setting("Take the mean of N x N pixels for one.", 1, typed=int, metavar="N")
    layers: tuple[int, ...] = setting("The numbers of layers in the union of networks.", (), metavar="NUMBERS")
    filters: tuple[int, ...] = setting("The numbers of filters in a layer.", (), metavar="NUMBERS")
    sizes: tuple[int, ...] = setting("The sizes of filters.", (), metavar="NUMBERS")
    subsample: int | None = setting(
        "How many past rounds a move of particles sees, drawn anew each time. All of them, in Python None, are exact "
        "and slower: a round then costs more the more there were.",
        None,
        typed=int,
        metavar="N",
    )
    spread: float = setting(
        "The part of the particles that a resampling deals evenly to all architectures that have any, and not by "
        "weight. It keeps those alive that have little weight so far, at the cost of particles for the others.",
        0.5,
        typed=float,
        metavar="PART",
    )


documents(OnlineLearning)(OnlineLearning)
