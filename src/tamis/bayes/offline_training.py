"""Offline training fits one network to a whole sequence of rounds, as a comparison for an online learner.

Weights are those of latent coordinates (`tamis.bayes.prior`), so that they lie where the prior does; a sign is that of
a real number behind it, to which its gradient goes straight through.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.bayes.prior import SIGN, Prior
from tamis.bayes.space import Space, Structure
from tamis.bayes.target import Rounds
from tamis.bounds import check_count

STEP = 0.05


def train_offline(
    space: Space, prior: Prior, rounds: Rounds, structure: Structure, *, steps: int = 500, seed: int = 0
) -> Tensor:
    """Train a network to a small Σ_t ℓ_t(w) by Adam from a draw of the prior, and return its best weights (p,).

    Args:
        space, prior: of the network.
        rounds: the whole sequence.
        structure: of the network.
        steps: of Adam, each over all rounds.
        seed: of the draw.

    Example:
        >>> from tamis.bayes import Dense
        >>> space = Dense((4,), 3, layers=[2], filters=[5])
        >>> x, y = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
        >>> rounds = Rounds().with_round(x, y, drawn=0.0)
        >>> train_offline(space, Prior(0.1), rounds, space.structures[0], steps=5).shape
        torch.Size([43])

    Reference: chee2021xnor.
    """
    check_count("steps", steps)
    device = rounds.labels[0].device
    kinds = space.kinds(structure)
    behind = prior.sample_latent(kinds, 1, torch.Generator().manual_seed(seed))[0].to(device)
    signs = (kinds == SIGN).to(device)
    # Signs begin near 0, where a few steps can still flip them.
    behind = torch.where(signs, behind * 0.1, behind).requires_grad_()
    optimizer = torch.optim.Adam([behind], lr=STEP)
    best, least = behind.detach().clone(), float("inf")
    # One round more than steps, because a loss is known only after its step: the last weights are judged as well.
    for _ in range(steps + 1):
        weights = prior.weights(_pass_straight_through(behind, signs), kinds.to(device))
        loss = torch.stack([space.round_losses(structure, weights, x, y).sum() for _, x, y in rounds.stacks]).sum()
        if float(loss.detach()) < least:
            best, least = weights.detach().clone(), float(loss.detach())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return best


def _pass_straight_through(behind: Tensor, signs: Tensor) -> Tensor:
    """Return the latent coordinates with signs as ±1, which pass the gradient to the number behind them."""
    flat = torch.where(behind >= 0, 1.0, -1.0)
    return torch.where(signs, behind + (flat - behind).detach(), behind)
