"""A quantizer is what `tamis.quantize(method=…)` takes; those that ship are listed here by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tamis.errors import InvalidInput
from tamis.layerwise import Gram
from tamis.quantization.along_data import AlongData
from tamis.quantization.feedback import Recursion
from tamis.quantization.gpfq import gpfq, gpfq_of_rows
from tamis.quantization.msq import msq
from tamis.quantization.optq import optq
from tamis.quantization.problem import Order


@runtime_checkable
class Quantizer(Protocol):
    """A quantizer chooses the levels of a layer's weights; `tamis.quantize(method=…)` takes one, or a name.

    Attributes:
        name: what recipes and files call it.
        improves: whether its choice is then improved by coordinate descent, and the scales by least squares.
        bias_correction: whether the means of a layer's outputs are kept, unless the user says otherwise.
        order: in which features come, unless the user says otherwise.
        along_data: the same choice along rows of data, without Gram matrices of all features; None if there is none.
    """

    @property
    def name(self) -> str: ...
    @property
    def improves(self) -> bool: ...
    @property
    def bias_correction(self) -> bool: ...
    @property
    def order(self) -> Order: ...
    @property
    def along_data(self) -> AlongData | None: ...

    @property
    def recursion(self) -> Callable[[Tensor, Gram], Recursion]:
        """Return a function of weights, (problems, neurons, features) in float64, and their inputs' Gram matrices."""


@dataclass(frozen=True)
class Method:
    """A method is a quantizer made of a function; the attributes are those of `Quantizer`.

    Example:
        >>> def round_each(weights, gram):
        ...     return Recursion(weights, weights, coupling=None)
        >>> net, inputs = tamis.trace(torch.nn.Linear(4, 2), torch.zeros(1, 4)), torch.randn(20, 4)
        >>> tamis.quantize(net, inputs, levels=3, method=Method(round_each), progress=False).recipe[-1]["method"]
        'round_each'
    """

    recursion: Callable[[Tensor, Gram], Recursion]
    along_data: AlongData | None = None
    improves: bool = False
    bias_correction: bool = False
    order: Order = "natural"
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            # The class is frozen, and this is still its construction.
            object.__setattr__(self, "name", getattr(self.recursion, "__name__", type(self.recursion).__name__))


METHODS: dict[str, Quantizer] = {
    "msq": Method(msq),
    "gpfq": Method(gpfq, gpfq_of_rows),
    # GPFQ is as in the paper: natural order, biases as they are. OPTQ is free to do better: a feature of a large norm
    # costs most when it is rounded late, with few weights left to make up for it.
    "optq": Method(optq, improves=True, bias_correction=True, order="norm"),
}


def quantizer_of(method: str | Quantizer) -> Quantizer:
    """Return the quantizer of a name, or the object itself where it is one already."""
    if isinstance(method, str):
        if method not in METHODS:
            raise InvalidInput(f"method={method!r} is not a quantizer; these are: {', '.join(METHODS)}")
        return METHODS[method]
    if not isinstance(method, Quantizer):
        # `isinstance` with a protocol only says no; the user needs to know what is missing.
        missing = [name for name in _MEMBERS if not hasattr(method, name)]
        raise InvalidInput(f"method={_shorten(method)} is not a quantizer: it has no {', '.join(missing)}")
    if method.order not in ("natural", "norm"):
        raise InvalidInput(f"order={method.order!r} of the quantizer {method.name} must be 'natural' or 'norm'")
    return method


_MEMBERS = ("name", "recursion", "along_data", "improves", "bias_correction", "order")


def _shorten(value: Any) -> str:
    return f"{value!r:.80}"
