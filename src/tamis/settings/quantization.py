"""The settings of `tamis.quantize` say how to put weights on a few levels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tamis.errors import InvalidInput
from tamis.settings.field import exclude_setting, include_setting, setting

if TYPE_CHECKING:  # for its help alone, a command must not wait for torch
    from typing import Any

    Alphabet = Any  # `tamis.quantization` has these two; it comes later in the order of imports
    Quantizer = Any

Per = Literal["channel", "layer"]
Search = Literal["layer", "global"]
Radius = Literal["median", "max", "least_squares", "given"]
Kernels = Literal["joint", "per_channel"]
Order = Literal["natural", "norm"]


@dataclass(frozen=True)
class Quantization:
    """These settings of `tamis.quantize` say how to put weights on a few levels."""

    levels: int | Iterable[float] | Alphabet | None = setting(
        "How many levels (3 unless `bits` is given), or a sorted list of them, which are then taken as they are.",
        None,
        metavar="LEVELS",
    )
    method: str | Quantizer = setting(
        "How levels are chosen: optq (recommended: drift correction, error feedback, scales fitted by least squares, "
        "coordinate descent), gpfq (the paper's) or msq (the nearest level). In Python, also an object that follows "
        "`tamis.quantization.Quantizer`.",
        "optq",
        choices=("optq", "gpfq", "msq"),
    )
    per: Per = setting(
        "What has a scale of its own: each output channel, or a layer.", "channel", choices=("channel", "layer")
    )
    c_alpha: float | Iterable[float] | None = setting(
        "The largest level, in units of `radius`: a number, or several to choose from on held-out calibration data. "
        "Default: chosen from a built-in list. The scales of optq are fitted afterwards, unless this is one number.",
        None,
        metavar="NUMBERS",
    )
    search: Search = setting(
        "What shares a `c_alpha` that is chosen among several: layer lets each unit take what does best for its layer; "
        "global takes one for the whole network, by quantizing it with each.",
        "layer",
        choices=("layer", "global"),
    )
    bits: int | None = setting("Instead of `levels`, for 2^bits of them.", None, typed=int, metavar="N")
    radius: Radius = setting(
        "What `c_alpha` multiplies: the median or the max of the weights' magnitudes, or the scale that nearest "
        "rounding does best with, by least_squares; given: nothing, so that levels are as they are.",
        "median",
        choices=("median", "max", "least_squares", "given"),
    )
    conv: Kernels = setting(
        "Choose a convolution's weights jointly over its input channels, or one 2-D kernel at a time.",
        "joint",
        choices=("joint", "per_channel"),
    )
    order: Order | None = setting(
        "In which order a neuron's weights are chosen: natural, or norm for the largest inputs first. "
        "Default: the method's.",
        None,
        choices=("natural", "norm"),
    )
    biases: bool = setting("Quantize biases, too, as weights of an input that is always 1.", False, typed=bool)
    bias_correction: bool | None = setting(
        "Keep the mean of every output, by moving biases or batch-norm means. Default: as the method does.",
        None,
        typed=bool,
    )
    include: str | Iterable[str] | None = include_setting("Quantize")
    exclude: str | Iterable[str] | None = exclude_setting()

    def __post_init__(self) -> None:
        if self.per not in ("layer", "channel"):
            raise InvalidInput(f"per={self.per!r} must be 'layer' or 'channel'")
        if self.order not in (None, "natural", "norm"):
            raise InvalidInput(f"order={self.order!r} must be 'natural' or 'norm'")
        if self.search not in ("layer", "global"):
            raise InvalidInput(f"search={self.search!r} must be 'layer' or 'global'")
        if self.biases and self.conv == "per_channel":
            raise InvalidInput("biases=True needs conv='joint': a bias belongs to no single 2-D kernel")
