"""Repeated launches of a Triton kernel with other tensors and the same numbers. Needs no Triton.

`kernel[grid](…)` asks of every argument whether it is 1 or a multiple of 16, makes a key of the answers and looks up
what was compiled for it: more work than the launch itself. Numbers that stay give the same answers, and so do tensors
at multiples of 16 bytes. So the compiled kernel, which the first launch returns, is called by itself from then on, as
Triton has it: `compiled[grid](…)`, with every argument in the order of the signature. A tensor at another address is
launched the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

ALIGNED = 16  # bytes


class Launch:
    """A kernel to be launched on one device, with the same numbers each time.

    Args:
        kernel: as `triton.jit` gives it.
        programs: the grid, along its first axis.
        numbers: its arguments after the tensors.
        constants: its `tl.constexpr` arguments, by name.
        options: num_warps and num_stages.
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        numbers: tuple[int, ...],
        constants: Mapping[str, Any],
        options: Mapping[str, int],
    ) -> None:
        self._kernel, self._grid, self._numbers = kernel, (programs, 1, 1), numbers
        self._named = {**constants, **options}
        # The compiled kernel takes its arguments by place alone, constants included: they are put in the signature's
        # order.
        self._rest = (*numbers, *(constants[name] for name in getattr(kernel, "arg_names", ()) if name in constants))
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        # What was compiled for aligned tensors reads 16 bytes at once, which fails at another address.
        aligned = not any(tensor.data_ptr() % ALIGNED for tensor in tensors)
        if aligned and self._compiled is not None:
            self._compiled(*tensors, *self._rest)
            return
        compiled = self._kernel[self._grid](*tensors, *self._numbers, **self._named)
        if aligned and compiled is not None:  # Triton's interpreter compiles nothing
            self._compiled = compiled[self._grid]
