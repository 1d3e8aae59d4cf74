"""The settings of binarization say which layers become binary, how they are scaled, and how long they are trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tamis.settings.field import setting


@dataclass(frozen=True)
class Binarization:
    """These settings are those of `tamis.binary.binarize`, and the length of the first of two stages of training.

    In Python, `tamis.binary.train_binary` takes settings of its own for the first stage, and not its epochs alone.
    """

    keep: str | Iterable[str] = setting(
        "Which layers stay real: first and last, in the order in which an example passes them, and names or patterns, "
        "as *.downsample.*. The words mean the places; a module that is called so is first*.",
        ("first", "last"),
        metavar="LAYERS",
    )
    scale: str = setting(
        "What an output of a binary layer is multiplied with: analytic, the mean size of its channel's weights; or "
        "what is learnt: channel, a number for each channel; full, for each channel, row and column; spatial, for each "
        "channel, times one for each row and column; rank_one, for each channel, times one for each row, times one for "
        "each column.",
        "rank_one",
        choices=("rank_one", "spatial", "full", "channel", "analytic"),
    )
    estimator: str = setting(
        "What stands for the gradient of a sign: clipped, 1 where the input is at most 1 in size; approx_sign, a "
        "triangle there; rsign, the same around a shift that is learnt for each channel.",
        "clipped",
        choices=("clipped", "approx_sign", "rsign"),
    )
    activation_epochs: int | None = setting(
        "Epochs of the first stage, with binary activations and real weights; 0 leaves it out. Default: as many as of "
        "the second stage.",
        None,
        typed=int,
        metavar="N",
    )
