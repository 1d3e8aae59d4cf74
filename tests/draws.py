"""Random tensors for tests."""

import torch
from torch import Tensor


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(shape, generator=generator, dtype=torch.float64)
