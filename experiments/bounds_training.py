"""Short trainings of small networks, for the experiments on bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


def make_perceptron(widths: Sequence[int], bias: bool = True) -> nn.Sequential:
    """Make linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class Batches:
    """In which batches samples are seen, and how often: shuffled anew in every epoch, by a seed."""

    inputs: Tensor
    targets: Tensor
    epochs: int
    batch: int
    seed: int

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epochs):
            for chosen in torch.randperm(len(self.inputs), generator=generator).split(self.batch):
                yield self.inputs[chosen], self.targets[chosen]


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    batches: Batches,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Train a model where it is."""
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
        after_step()


@torch.no_grad()
def compute_outputs(model: Callable[[Tensor], Tensor], inputs: Tensor, batch: int = 100) -> Tensor:
    """Return the outputs for all inputs, batch by batch."""
    return torch.cat([model(part) for part in inputs.split(batch)])


def compute_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute for each sample the logit of its class minus the largest other one."""
    own = logits.gather(1, labels[:, None])[:, 0]
    return own - logits.scatter(1, labels[:, None], -torch.inf).amax(1)
