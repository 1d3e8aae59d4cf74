"""`Codes` hold a quantized parameter as one small index for each entry, the levels they choose from, and scales."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tamis.errors import InvalidInput

FEWEST_LEVELS, MOST_LEVELS = 2, 65536
# Numbers below these count as zero. Above them no product is subnormal, and those are what threads do not agree on:
# one that flushes them (`torch.set_flush_denormal`) takes them for zero. Products of float16 are made in float32.
FLOORS = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-125, torch.float32: 2.0**-125, torch.float64: 2.0**-1021}
INTEGERS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
BLOCK = 1 << 20  # entries that are looked up at a time: torch takes indices of four bytes, of which few should exist


def cast_scales(scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast scales to the dtype of a parameter, and keep those positive that would vanish in it."""
    return scales.to(dtype).clamp_min(torch.finfo(dtype).tiny)


@dataclass(frozen=True, eq=False)
class Codes:
    """A quantized parameter: each entry is the scale of its unit × levels[its index].

    Attributes:
        indices: integers 0 … M − 1 in the parameter's shape; uint8, or int32 if M > 256.
        levels: [M], ascending, 2 ≤ M ≤ 65536, of the parameter's dtype, which is floating-point; for all units.
        scales: a positive factor for each unit, of the same dtype. The shape has as many axes as the parameter's, and
            each length divides that of the parameter: (1, 1, 1, 1) is one unit, (C_out, 1, 1, 1) one for each output
            channel, and (g, C_out/g, 1, 1) has blocks of consecutive rows, as a transposed convolution of g groups.

    Example:
        >>> indices = torch.tensor([[0, 2], [1, 1]], dtype=torch.uint8)
        >>> Codes(indices, torch.tensor([-1.0, 0, 1]), torch.tensor([[0.5]])).values()
        tensor([[-0.5000,  0.5000],
                [ 0.0000,  0.0000]])
    """

    indices: Tensor
    levels: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        for name in ("indices", "levels", "scales"):
            if not isinstance(value := getattr(self, name), Tensor):
                raise InvalidInput(f"the {name} of codes must be a tensor, got {type(value).__name__}")
            object.__setattr__(self, name, value.detach())
        self._check_levels()
        self._check_scales()
        self._check_indices()
        object.__setattr__(
            self, "levels", self.levels.masked_fill(_map_to_ranks(self.levels) == 0, 0)
        )  # −0.0 becomes +0.0

    def __repr__(self) -> str:
        return f"Codes({tuple(self.indices.shape)}, {len(self.levels)} levels, {self.scales.numel()} scales)"

    @property
    def bits(self) -> float:
        """Return the bits of information in an index: log₂ M."""
        return math.log2(len(self.levels))

    def values(self, mask: Tensor | None = None) -> Tensor:
        """Compute the parameter: scale × level, rounded once to its dtype; +0.0 where a mask is False. Never −0.0.

        Scales, levels and products below 2⁻¹²⁵ in magnitude count as zero (2⁻¹⁰²¹ in float64, 2⁻²⁴ in float16).
        """
        levels, scales, floor = self.levels, self.scales, FLOORS[self.levels.dtype]
        if tiny := self._has_tiny_products(floor):
            levels, scales = (factor.masked_fill(factor.abs() < floor, 0) for factor in (levels, scales))
        result = _look_up(levels, self.indices).mul_(_spread(scales, tuple(self.indices.shape)))
        if tiny:
            result.masked_fill_(result.abs() < floor, 0)
        if mask is not None:
            _view_bits(result).masked_fill_(~mask.to(result.device), 0)
        return result

    def to(self, device: torch.device | str) -> Codes:
        """Return the codes on a device; the same object if they are there."""
        if self.indices.device == torch.device(device):
            return self
        return Codes(self.indices.to(device), self.levels.to(device), self.scales.to(device))

    def clone(self) -> Codes:
        """Return a copy, in memory of its own."""
        return Codes(self.indices.clone(), self.levels.clone(), self.scales.clone())

    def apply_mask(self, mask: Tensor) -> Codes:
        """Return the codes with the index 0 wherever a mask is False: the index of a pruned entry has no meaning."""
        return replace(self, indices=self.indices * mask.to(self.indices.device))

    def _has_tiny_products(self, floor: float) -> bool:
        """Tell whether some scale × level other than 0 may be below `floor`."""
        if self.scales.numel() == 0:
            return False
        others = self.levels[_map_to_ranks(self.levels) != 0].abs()
        level, scale = float(others.min()), float(self.scales.min())
        return min(level, scale, level * scale) < floor

    def _check_levels(self) -> None:
        levels = self.levels
        if levels.dtype not in FLOORS or levels.dim() != 1:
            raise InvalidInput(
                f"levels must be a row of float16, bfloat16, float32 or float64, got {levels.dtype} of shape "
                f"{tuple(levels.shape)}"
            )
        if not FEWEST_LEVELS <= len(levels) <= MOST_LEVELS:
            raise InvalidInput(f"there must be {FEWEST_LEVELS} to {MOST_LEVELS} levels, got {len(levels)}")
        ranks = _map_to_ranks(levels)
        wrong = ~levels.isfinite()
        wrong[1:] |= ranks[1:] <= ranks[:-1]
        if wrong.any():
            place = int(wrong.int().argmax())
            before = f" after {float(levels[place - 1])}" if place else ""
            raise InvalidInput(
                f"levels must be finite and ascending, but level {place} is {float(levels[place])}{before}"
            )

    def _check_scales(self) -> None:
        scales, shape = self.scales, tuple(self.indices.shape)
        if scales.dtype is not self.levels.dtype:
            raise InvalidInput(f"scales must be of the levels' {self.levels.dtype}, got {scales.dtype}")
        units = tuple(scales.shape)
        if not divides(units, shape):
            raise InvalidInput(
                f"scales of shape {units} do not fit indices of shape {shape}: they need as many axes, and lengths "
                "that divide those of the indices"
            )
        wrong = ~scales.isfinite() | (_map_to_ranks(scales) <= 0)
        if wrong.any():
            raise InvalidInput(f"scales must be positive and finite, but there is {float(scales[wrong][0])}")
        if scales.numel() and not (largest := scales.max() * self.levels.abs().max()).isfinite():
            raise InvalidInput(
                f"the scale {float(scales.max())} times the level {float(self.levels.abs().max())} is {float(largest)} "
                f"in {scales.dtype}"
            )

    def _check_indices(self) -> None:
        indices, number = self.indices, len(self.levels)
        wanted = torch.uint8 if number <= 256 else torch.int32
        if indices.dtype is not wanted:
            raise InvalidInput(f"indices of {number} levels must be {wanted}, got {indices.dtype}")
        if indices.device != self.levels.device or indices.device != self.scales.device:
            raise InvalidInput(
                f"indices are on {indices.device}, levels on {self.levels.device}, scales on {self.scales.device}: "
                "they must be on one device"
            )
        if indices.numel():
            smallest, largest = (int(bound) for bound in indices.aminmax())
            if smallest < 0 or largest >= number:
                raise InvalidInput(
                    f"indices must be 0 to {number - 1}, of {number} levels, but go from {smallest} to {largest}"
                )


def divides(units: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Tell whether scales of one shape fit a parameter of another: as many axes, each length dividing the parameter's.

    Along an axis of length 0 there may be one unit, or none.
    """
    return len(units) == len(shape) and all(
        unit == length or (0 < unit <= max(length, 1) and length % unit == 0)
        for unit, length in zip(units, shape, strict=True)
    )


def _look_up(levels: Tensor, indices: Tensor) -> Tensor:
    row, result = indices.reshape(-1), levels.new_empty(indices.shape)
    entries = result.view(-1)
    for start in range(0, len(row), BLOCK):
        block = slice(start, start + BLOCK)
        torch.index_select(levels, 0, row[block].int(), out=entries[block])
    return result


def _spread(scales: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeat each scale along its block, on axes with several blocks of several rows; other axes broadcast."""
    for axis, (units, length) in enumerate(zip(scales.shape, shape, strict=True)):
        if 1 < units < length:
            scales = scales.repeat_interleave(length // units, dim=axis)
    return scales


def _view_bits(values: Tensor) -> Tensor:
    """View the bits of contiguous numbers as integers, which share their memory."""
    return values.view(INTEGERS.get(values.dtype, torch.int64))


def _map_to_ranks(values: Tensor) -> Tensor:
    """Map values to integers in the same order, 0 for both zeros; comparing these does not depend on flushing."""
    bits = _view_bits(values.contiguous())
    return torch.where(bits < 0, torch.iinfo(bits.dtype).min - bits, bits)
