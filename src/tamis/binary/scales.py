"""The scale of a binary convolution is a positive factor of its output, in one of the forms of XNOR-Net++.

    analytic    mean |W| of each output channel, from the real weights W: XNOR-Net; nothing of its own to learn
    channel     α: one for each output channel                                         (XNOR-Net++, case 1)
    full        Γ: one for each output channel, row and column                         (case 2)
    spatial     α ⊗ β: α for each channel, β for each row and column                   (case 3)
    rank_one    α ⊗ β ⊗ γ: for each channel, each row, each column                     (case 4; (12) of Chee, Loustau)

XNOR-Net's scale of the input, K, is left out, as it is in (3) and (12): learnt scales stand for both.

A learnt scale is |a| of a parameter a, so that it is never negative. The slope of |a| is ±1 at every size, where that
of softplus or exp would vanish with the scale; weight decay draws the scale itself towards 0; and a scale can be 0,
which removes a channel, row or column. Torch gives |a| the slope 0 at 0: what is removed stays removed.

Products are float32 in this order: α_o · β_hw, and (α_o · β_h) · γ_w.

Reference: bulat2019xnor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tamis.errors import InvalidInput

FORMS = ("analytic", "channel", "full", "spatial", "rank_one")
SPATIAL_FORMS = ("full", "spatial", "rank_one")


def analytic_scale(weight: Tensor) -> Tensor:
    """Compute α_o = mean |W_o|, the α with the smallest ‖W_o − α sign(W_o)‖₂ (XNOR-Net).

    Summed in float64, so that the mean of equal numbers is that number: ± α in the place of W has the scale α again.

    Reference: rastegari2016xnor.
    """
    return weight.abs().flatten(1).mean(1, dtype=torch.float64).to(weight.dtype)


def factor_shapes(form: str, channels: int, output_size: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters of a scale: alpha, and beta and gamma where the form has them.

    Where an output has no rows and columns, every learnt form is that of a channel; with columns alone, "rank_one" is
    "spatial".

    Args:
        form: one of `FORMS`.
        channels: how many there are in the output.
        output_size: rows and columns of an output, columns alone, or () for a linear layer.

    Example:
        >>> factor_shapes("rank_one", 64, (8, 4))
        {'alpha': (64,), 'beta': (8,), 'gamma': (4,)}
    """
    check_form(form)
    if form == "analytic":
        return {}
    if form == "channel" or not output_size:
        return {"alpha": (channels,)}
    if form == "full":
        return {"alpha": (channels, *output_size)}
    if form == "spatial" or len(output_size) == 1:
        return {"alpha": (channels,), "beta": output_size}
    return {"alpha": (channels,), "beta": output_size[:1], "gamma": output_size[1:]}


def compute_scale(factors: Sequence[Tensor], dimensions: int) -> Tensor:
    """Compute the scale |α|, |α| ⊗ |β| or |α| ⊗ |β| ⊗ |γ| from its parameters, to broadcast over a layer's output.

    Args:
        factors: one, two or three of them, in shapes that `factor_shapes` gives.
        dimensions: how many axes an output has after that of its channels.

    Example:
        >>> compute_scale([torch.ones(64), torch.ones(8), torch.ones(4)], 2).shape
        torch.Size([64, 8, 4])

    Reference: bulat2019xnor.
    """
    alpha, *others = (factor.abs() for factor in factors)
    # α has the channels first; for "full" it also has rows and columns, and no axis is missing.
    value = _with_axes(alpha, dimensions + 1 - alpha.dim())
    if len(others) == 2:
        others[0] = _with_axes(others[0], 1)
    # From left to right, as the kernels multiply: another order would round otherwise.
    for other in others:
        value = value * other
    return value


@torch.no_grad()
def begin_factors(factors: Mapping[str, Tensor], weight: Tensor) -> None:
    """Set parameters to the scale of XNOR-Net, in place: α = mean |W|, and ones for rows and columns.

    Channels whose weights are all 0 get the least positive number: from 0 a scale could not move.
    """
    for name, factor in factors.items():
        if name == "alpha":
            # `tiny` is the least normal number: there are smaller ones, but processors may flush them to 0.
            mean = analytic_scale(weight).clamp(min=torch.finfo(weight.dtype).tiny)
            factor.copy_(_with_axes(mean, factor.dim() - 1).expand_as(factor))
        else:
            factor.fill_(1)


def check_form(form: str) -> None:
    """Raise InvalidInput for a name that is not in `FORMS`."""
    if form not in FORMS:
        raise InvalidInput(f"scale must be one of {', '.join(FORMS)}, got {form!r}")


def _with_axes(values: Tensor, axes: int) -> Tensor:
    """Append `axes` axes of length one."""
    return values.reshape(*values.shape, *[1] * axes)
