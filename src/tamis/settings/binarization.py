"""The settings of binarization say which layers become binary, how they are scaled, and how long they are trained."""

from __future__ import annotations

from dataclasses import dataclass

from tamis.settings.field import setting


@dataclass(frozen=True)
class Binarization:
    """These settings of `tamis binarize` are those of `tamis.binary.binarize` and of the two stages of training."""

    scale: str = setting(
        "What an output of a binary layer is multiplied with: learnt for channels, rows and columns, and how "
        "these go together, or the mean size of the weights.",
        "rank_one",
        choices=("rank_one", "spatial", "full", "channel", "analytic"),
    )
    estimator: str = setting(
        "What stands for the gradient of a sign.", "clipped", choices=("clipped", "approx_sign", "rsign")
    )
    keep: str = setting(
        "Which layers stay real: first, last, and names or patterns, with commas between.",
        "first,last",
        metavar="LAYERS",
    )
    activation_epochs: int | None = setting(
        "Epochs of the first stage, with binary activations and real weights; 0 leaves it out. Default: as --epochs, "
        "which are those of the second stage.",
        None,
        typed=int,
        metavar="N",
    )
