"""A network computes in the precision of its own numbers, whatever the caller has switched on around a call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def without_autocast() -> Iterator[None]:
    """Switch `torch.autocast` off meanwhile, since what is measured of a network must not depend on who measures it.

    Example:
        >>> layer = torch.nn.Linear(2, 2)
        >>> with torch.autocast("cpu", torch.bfloat16), without_autocast():
        ...     layer(torch.zeros(1, 2)).dtype
        torch.float32
    """
    accelerator = torch.accelerator.current_accelerator()
    with ExitStack() as stack:
        for kind in ("cpu", *([] if accelerator is None else [accelerator.type])):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield
