"""Short trainings of small networks, for the experiments on bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


def perceptron(widths: Sequence[int], bias: bool = True) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    epochs: int,
    batch: int,
    seed: int,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Train a model where it is, in batches that are shuffled anew in every epoch."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs), generator=generator).split(batch):
            optimizer.zero_grad()
            loss(model(inputs[chosen]), targets[chosen]).backward()
            optimizer.step()
            after_step()


@torch.no_grad()
def outputs_of(model: Callable[[Tensor], Tensor], inputs: Tensor, batch: int = 100) -> Tensor:
    """The outputs for all inputs, batch by batch."""
    return torch.cat([model(part) for part in inputs.split(batch)])


def margins_of(logits: Tensor, labels: Tensor) -> Tensor:
    """For each sample, the logit of its class minus the largest other one."""
    own = logits.gather(1, labels[:, None])[:, 0]
    return own - logits.scatter(1, labels[:, None], -torch.inf).amax(1)
