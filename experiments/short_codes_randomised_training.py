"""Training of a randomised network: the laws of its ternary weights, at a price for each bit they say about the data.

What is minimised is E loss + price · KL(laws ‖ prior) in bits, the prior of a weight being the mean law of all weights
of its matrix that belong to the same cosine. Nothing is made certain: the network that is used is drawn from the laws.

A network is drawn for each image. What a layer gives is what the drawn weights give; its gradient is that of
mean + ε · deviation, where ε is what the draw made of it, as in local reparametrisation.

The loss is (1 − p^κ)/κ with p the probability of the right class: cross-entropy (κ = 0) for the first part of the
training, then with a growing κ, which counts errors rather than surprise. The price falls with it, as a bit is worth
less of it.

Reference: the loss is that of Zhang and Sabuncu (2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from experiments.short_codes_network import FLOOR, SHIFT, ShortNetwork, normalise, split_signs
from experiments.short_codes_training import BIT, DEAR, Plan, Trainer, run_stem, run_steps
from tamis.training import Data

BEND, BENT = 0.4, 0.7  # the parts of the training between which κ grows
SMALLEST = 1e-3  # κ before: cross-entropy but for rounding
RARE = 1e-6  # the least density of a prior in the training


@dataclass(frozen=True)
class RandomisedPlan(Plan):
    """What to train, and how; `free`, `sharp` and `hard` of a `Plan` do not matter here.

    Attributes:
        price: what a bit costs where κ is 0.
        late_price: what it costs where κ is 1; between, the logarithm of the price is linear in κ.
        bend: κ at the end.
    """

    price: float = 5e-5
    late_price: float = 1.6e-5
    bend: float = 0.5
    batch: int = 256
    nothing: float = 4.0


class RandomisedTrainer(Trainer):
    """A training of laws. See `Trainer`."""

    plan: RandomisedPlan

    def step(self) -> None:
        """Take one step; it may be captured as a CUDA graph and replayed."""
        chosen = torch.randint(len(self.labels), (self.plan.batch,), device=self.labels.device)
        labels, part = self.labels[chosen], self.done / self.steps
        laws = [odds.softmax(dim=0) for odds in self.odds]
        outputs = compute_outputs_of_draws(self.net, self.banks, laws, self.images[chosen]).float()
        kappa = SMALLEST + self.plan.bend * ((part - BEND) / (BENT - BEND)).clamp(0, 1)
        # The heat is that of the cross-entropy: the loss itself would have it infinite.
        surprise = functional.cross_entropy((1 + kappa) * self.heat.detach().exp() * outputs, labels, reduction="none")
        loss = (-torch.expm1(-kappa * surprise) / kappa).mean()
        loss = loss + functional.cross_entropy(self.heat.exp() * outputs.detach(), labels)
        price = torch.exp((1 - kappa) * math.log(self.plan.price) + kappa * math.log(self.plan.late_price))
        bits = [divergence(law, waves) for law, waves in zip(laws, count_waves(self.net), strict=True)]
        total = loss + price * (part / DEAR).clamp(max=1) * torch.stack(bits).sum()
        gradients = torch.autograd.grad(total, [*self.odds, self.heat])
        with torch.no_grad():
            self._move(gradients, part)


def train_odds(plan: RandomisedPlan, train: Data, steps: int) -> dict[str, Tensor]:
    """Return the log-odds (3, …) of −1, 0 and 1 by parameter, after so many steps; they are returned on the CPU."""
    trainer = RandomisedTrainer(plan, run_stem(plan.shape, train), train.labels, steps)
    run_steps(trainer, steps)
    return {name: odds.detach().cpu() for name, odds in zip(trainer.names, trainer.odds, strict=True)}


def count_waves(net: ShortNetwork) -> list[int]:
    """Return for each matrix of weights how many cosines there are: columns of one cosine are so many apart."""
    return [*(len(stage.bank) for stage in net.each_stage), len(net.readout.bank)]


def compute_densities(law: Tensor, waves: int) -> Tensor:
    """Return for each cosine the mean probability that a weight of it is not zero; the bias counts with the first."""
    nonzero = 1 - law[1]
    return torch.stack([nonzero[:, wave::waves].mean() for wave in range(waves)])


def divergence(law: Tensor, waves: int, density: Tensor | None = None) -> Tensor:
    """Compute KL(laws ‖ prior) in bits, of a matrix of weights.

    Args:
        law: (3, rows, columns), the probabilities of −1, 0 and 1.
        waves: columns of one cosine are so many apart.
        density: for each cosine, the probability under the prior that a weight is not zero, half of it for each sign;
            by default, that of the mean law.
    """
    density = compute_densities(law, waves).clamp(RARE, 1 - RARE) if density is None else density
    of_column = density.repeat(-(-law.shape[2] // waves))[: law.shape[2]]
    cross = -((1 - law[1]) * (of_column / 2).log() + law[1] * torch.log1p(-of_column)).sum()
    negative_entropy = (law * law.clamp(min=torch.finfo(law.dtype).tiny).log()).sum()
    return (cross + negative_entropy) / BIT


def compute_outputs_of_draws(
    net: ShortNetwork, banks: Sequence[tuple[Tensor, int]], laws: Sequence[Tensor], values: Tensor
) -> Tensor:
    """Return the outputs of a network for each image, drawn independently.

    Args:
        net, banks: the network, whose own weights do not count, and the cosines of its stages as `spread_bank` gives
            them.
        laws: of its weights.
        values: what comes out of the stem.
    """
    for stage, (bank, groups), law in zip(net.each_stage, banks, laws, strict=False):
        responses = values
        if stage.margin:
            responses = functional.conv2d(repeat_edges(values, stage.margin), bank.to(values.dtype), groups=groups)
        sums, terms = _draw(responses, law, SHIFT)
        expected = ((1 - law[1]).sum(dim=1) + FLOOR).rsqrt()
        norms = (terms + FLOOR).rsqrt() * (expected / expected.detach())
        outputs = sums * norms[:, :, None, None].to(values.dtype)
        # As `stage.handed_on`, with channels last; what needs no gradient is pooled apart from what does.
        outputs = split_signs(normalise(outputs.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        parts = [values, outputs] if stage.kept else [outputs]
        values = torch.cat([functional.avg_pool2d(part, stage.pool) for part in parts], dim=1)
    features = net.readout.features(values)[:, :, None, None]
    return _draw(features, laws[-1], 1.0)[0][:, :, 0, 0]


def repeat_edges(values: Tensor, margin: int) -> Tensor:
    """Return images with their edges repeated around them, as `pad` does it, with channels last."""
    values = values.permute(0, 2, 3, 1)
    for axis in (1, 2):
        first, last = values.narrow(axis, 0, 1), values.narrow(axis, -1, 1)
        values = torch.cat([*[first] * margin, values, *[last] * margin], dim=axis)
    return values.permute(0, 3, 1, 2)


def _draw(responses: Tensor, law: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    """Return sums of responses with weights drawn for each image, and the number of nonzero weights of each sum."""
    with torch.no_grad():
        chance = torch.rand((len(responses), *law.shape[1:]), device=law.device)
        weights = (chance >= law[0] + law[1]).to(responses.dtype) - (chance < law[0]).to(responses.dtype)
        flat, places = responses.flatten(2).transpose(1, 2), responses.shape[2:]
        sums = torch.baddbmm(shift * weights[:, None, :, -1], flat, weights[:, :, :-1].transpose(1, 2))
        sums = sums.unflatten(1, places).permute(0, 3, 1, 2)
        terms = weights.abs().sum(dim=2, dtype=torch.float32)
    return (sums + _add_pathwise_gradient(sums, responses, law, shift) if torch.is_grad_enabled() else sums), terms


def _add_pathwise_gradient(sums: Tensor, responses: Tensor, law: Tensor, shift: float) -> Tensor:
    """Return zero, with the gradient of mean + ε · deviation, for the ε that gives these sums."""
    kind = responses.dtype
    mean = law[2] - law[0]
    spread = 1 - law[1] - mean.square()
    centre = functional.conv2d(responses, mean[:, :-1, None, None].to(kind), shift * mean[:, -1].to(kind))
    variance = functional.conv2d(
        responses.square(), spread[:, :-1, None, None].to(kind), shift**2 * spread[:, -1].to(kind)
    )
    deviation = (variance.clamp(min=0) + 1e-6).sqrt()
    path = centre + ((sums - centre) / deviation).detach() * deviation
    return path - path.detach()
