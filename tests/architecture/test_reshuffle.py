"""Reshuffled masks: as many connections in each layer, and any of them as likely as another."""

import torch

from tamis.architecture.architecture import Architecture
from tamis.architecture.reshuffle import reshuffle


def an_architecture() -> Architecture:
    generator = torch.Generator().manual_seed(0)
    shapes = {"b": (4, 5), "a": (3, 2, 2), "none": (6,), "all": (7,)}
    masks = {name: torch.rand(shape, generator=generator) > 0.6 for name, shape in shapes.items()}
    return Architecture({**masks, "none": torch.zeros(6, dtype=torch.bool), "all": torch.ones(7, dtype=torch.bool)})


def test_every_layer_keeps_its_density_and_shape() -> None:
    before = an_architecture()
    after = reshuffle(before, seed=0)
    assert after.densities == before.densities and after.fingerprint == before.fingerprint
    assert after != before and before == an_architecture()


def test_the_same_seed_gives_the_same_masks_in_whatever_order_layers_come() -> None:
    before = an_architecture()
    turned = Architecture(dict(reversed([*before.masks.items()])))
    assert reshuffle(before, 1) == reshuffle(before, 1) == reshuffle(turned, 1) != reshuffle(before, 2)


def test_every_connection_is_as_likely() -> None:
    """Each of 10 places is kept with probability 0.3: over 2,000 seeds within 5 standard deviations, 0.051."""
    before = Architecture({"a": torch.arange(10) < 3})
    counts = torch.stack([reshuffle(before, seed).masks["a"] for seed in range(2000)]).float().mean(0)
    assert (counts - 0.3).abs().max() < 0.052
