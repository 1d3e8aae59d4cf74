"""The randomness of a training comes from seeds derived from one, and the caller's random state is restored."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager

import torch


def fork_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that restores the random state of the CPU and of this device on exit."""
    # Of one GPU alone: by default the state of each is read, which takes memory on all of them.
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def seed_global_generators(seed: int, device: torch.device) -> None:
    """Seed the generators that dropout draws from, which are those of the CPU and of one device."""
    # Not `torch.manual_seed`, which seeds every GPU, also those that others compute on.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def derive_seed(*parts: int | str) -> int:
    """Derive a separate seed for each purpose from the given parts, as 63 bits of their SHA-256."""
    # A hash, and not seed + epoch: neighbouring seeds and epochs must not share their draws.
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1
