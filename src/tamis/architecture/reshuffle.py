"""Reshuffling draws random connections, as many in each layer as an architecture has there."""

from __future__ import annotations

import torch

from tamis.architecture.architecture import Architecture


def reshuffle(architecture: Architecture, seed: int) -> Architecture:
    """Permute the mask of each layer at random, which keeps every |m⁽ˡ⁾| and nothing else (section 3.3, Table 1).

    What it loses against the architecture is what the choice of connections was worth; what it keeps is what the
    density of each layer is worth.

    Args:
        architecture: left as it is.
        seed: the same one gives the same masks, on any device.

    Example:
        >>> found = Architecture({"weight": torch.tensor([True, False, False, True])})
        >>> reshuffle(found, seed=0).densities == found.densities
        True

    Reference: colombo2021architecture.
    """
    generator = torch.Generator().manual_seed(seed)
    return Architecture(
        {
            name: mask.flatten()[torch.randperm(mask.numel(), generator=generator)].view(mask.shape)
            # By name, so that the seed gives the same masks in whatever order layers were listed.
            for name, mask in sorted(architecture.masks.items())
        },
        architecture.seen,
    )
