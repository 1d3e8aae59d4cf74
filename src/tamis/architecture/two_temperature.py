"""The two-temperature relaxation gives nearly binary masks the gradients of softer ones.

Numbered departures from the text:
1. (15) prints the gradient without the factor t_s that (7) has; it is here (ERRATA 26).
2. (17) prints −2γ(1 + w) and −2γθ inside the step, which climbs the penalty (18); here they are added (ERRATA 25).
3. A step can take more connections across 0 than the target allows. Of those, the ones nearest to 0 stay where they
   were before the step, so that 1[w > 0] has the target's number of entries exactly.

Reference: colombo2021architecture.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tamis.architecture.architecture import Architecture, count_kept_connections, keep_largest
from tamis.architecture.layers import maskable_weights
from tamis.errors import InvalidInput, TrainingDiverged
from tamis.graph import Patterns, lasting
from tamis.settings import Search, documents


class _Relaxation(torch.autograd.Function):
    """The relaxation is the mask σ(t_l w), with the gradient of σ(t_s w) in place of its own."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, t_l: float, t_s: float) -> Tensor:
        ctx.save_for_backward(w)
        ctx.t_s = t_s
        return torch.sigmoid(t_l * w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (w,) = ctx.saved_tensors
        # At t_l the slope vanishes away from w = 0 and nothing would learn; at the higher temperature it does not.
        v = torch.sigmoid(ctx.t_s * w)
        # Printed in (15): without t_s; see ERRATA 26.
        return gradients[0] * (ctx.t_s * v * (1 - v)), None, None


def relaxed_mask(w: Tensor, t_l: float, t_s: float) -> Tensor:
    """Compute the mask v = σ(t_l w) (6), with the gradient ∇_v L ∘ t_s σ(t_s w)(1 − σ(t_s w)) with respect to w (7).

    At t_s = t_l this is the gradient of σ(t_l w) itself.

    Example:
        >>> relaxed_mask(torch.tensor([-1.0, 0.0, 1.0]), t_l=100.0, t_s=10.0)
        tensor([0.0000, 0.5000, 1.0000])

    Reference: colombo2021architecture.
    """
    return _Relaxation.apply(w, t_l, t_s)


class _Masked(nn.Module):
    """This parametrization maps a weight θ to σ(t_l w) ∘ θ, for torch.nn.utils.parametrize."""

    def __init__(self, logits: Tensor, t_l: float, t_s: float) -> None:
        super().__init__()
        self.t_l, self.t_s = t_l, t_s
        self.logits = nn.Parameter(logits)

    def forward(self, weight: Tensor) -> Tensor:
        # w is float32 at least; the weight's own dtype is what its layer multiplies in.
        return weight * relaxed_mask(self.logits, self.t_l, self.t_s).to(weight.dtype)


@documents(Search, "t_l", "t_s", "include", "exclude", "spread")
class TwoTemperature(nn.Module):
    """A `TwoTemperature` is a copy of a model with weights θ̃ = σ(t_l w) ∘ θ, of which θ and w are trained (13, 14).

    It computes what the model computes, with θ̃ for θ; any training that fills gradients will do, followed by `update`
    for the masks. `tamis.architecture.search` is such a training. Without `include` and `exclude`, the weights of all
    linear and convolution layers are masked. The default of t_s is that of algorithm A.1, and `spread` is ε_w: masks
    begin at |N(0, ε_w²)|.

    Args:
        model: any module; it is left as it is.
        <settings>
        seed: of where the masks begin; the same on any device.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> relaxed = TwoTemperature(model, t_l=100.0, t_s=10.0, exclude="2")
        >>> nn.functional.cross_entropy(relaxed(torch.randn(5, 4)), torch.tensor([0, 1, 2, 0, 1])).backward()
        >>> relaxed.update(rate=0.1, gamma=1e-3, keep=10)  # whether no more than 10 connections are left
        False
        >>> relaxed.architecture()
        Architecture(32 of 32 connections, 1 layers)

    Reference: colombo2021architecture.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        t_l: float = 100.0,
        t_s: float | None = None,
        include: Patterns = None,
        exclude: Patterns = None,
        spread: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        t_s = t_l / 10 if t_s is None else t_s
        _check_temperatures(t_l, t_s)
        if not 0 < spread < math.inf:
            raise InvalidInput(f"spread={spread!r} must be a number > 0")
        self.t_l, self.t_s = float(t_l), float(t_s)
        self.model = copy.deepcopy(model)
        chosen = maskable_weights(self.model, lasting(include), lasting(exclude))
        generator = torch.Generator().manual_seed(seed)
        # One mask for all names of a tied weight: as one parameter it is one connection, kept or gone everywhere.
        for name, every_name in chosen.items():
            masked = _Masked(
                _draw_initial_logits(self.model.get_parameter(name), spread, generator), self.t_l, self.t_s
            )
            for tied in every_name:
                place, _, leaf = tied.rpartition(".")
                module = self.model.get_submodule(place)
                if not parametrize.is_parametrized(module, leaf):  # the same module may have several names, too
                    parametrize.register_parametrization(module, leaf, masked)
        self.names = tuple(chosen)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    @property
    def logits(self) -> dict[str, nn.Parameter]:
        """Return w, by the names that weights have in the user's model; connections with w > 0 are kept."""
        return {name: self._find_parametrization(name)[0].logits for name in self.names}

    @property
    def weights(self) -> dict[str, nn.Parameter]:
        """Return θ, without masks, by the same names."""
        return {name: self._find_parametrization(name).original for name in self.names}

    @property
    def total(self) -> int:
        """Return D, the number of connections."""
        return sum(w.numel() for w in self.logits.values())

    @property
    def kept(self) -> int:
        """Return 1ᵀ1[w > 0], the number of connections that are kept."""
        # Added up on the device, so that a number is fetched once and not for each layer.
        return int(torch.stack([(w > 0).sum() for w in self.logits.values()]).sum())

    @property
    def sparsity(self) -> float:
        """Return the fraction of connections with w ≤ 0."""
        return 1 - self.kept / self.total

    def penalty(self) -> Tensor:
        """Compute the penalty 1ᵀ((1 + w)² + θ²) over the masked weights, which γ multiplies in (18)."""
        # The pull towards w = −1 and θ = 0 is what prunes: a connection that the loss does not need drifts below 0.
        terms = [(1 + w).square().sum() for w in self.logits.values()]
        terms += [weight.square().sum() for weight in self.weights.values()]
        return torch.stack(terms).sum()

    @torch.no_grad()
    def add_weight_penalty(self, gamma: float) -> None:
        """Add 2γθ, the penalty's part, to the gradients of the weights (17)."""
        for weight in self.weights.values():
            if weight.grad is not None:
                weight.grad.add_(weight, alpha=2 * gamma)  # printed: −2γθ; see ERRATA 25

    @torch.no_grad()
    def update(self, rate: float, gamma: float, keep: int) -> bool:
        """Take one step of the masks along the gradients that `backward` has filled, until `keep` connections are left.

            w ← w − α (∇̃_w L + 2γ(1 + w))                                                        (17, with ERRATA 25)

        Args:
            rate: α.
            gamma: γ, which pushes w towards −1.
            keep: how many connections to keep.

        Returns:
            Whether no more than `keep` connections were left. Then exactly `keep` are, w > 0, and it is time to stop
            (ERRATA 29).
        """
        before = {name: w.clone() for name, w in self.logits.items()}  # to undo what a step takes too many
        for w in self.logits.values():
            push = 2 * gamma * (1 + w)  # printed: −2γ(1 + w); see ERRATA 25
            w.sub_(rate * (push if w.grad is None else w.grad + push))
        # Checked once the target is reached, and not in each step: asking a GPU makes it wait.
        if self.kept > keep:
            return False
        self._check_finite()
        self._undo_crossings(before, keep - self.kept)
        return True

    def architecture(self, sparsity: float | None = None) -> Architecture:
        """Return the connections with w > 0 (ERRATA 29); with a sparsity, as many as it leaves, of the largest w."""
        if sparsity is None:
            return Architecture({name: w > 0 for name, w in self.logits.items()})
        keep = count_kept_connections(sparsity, self.total)
        return Architecture(keep_largest({name: w.detach() for name, w in self.logits.items()}, keep))

    def _undo_crossings(self, before: dict[str, Tensor], missing: int) -> None:
        """Undo the step of the `missing` connections that crossed 0 and ended nearest to it."""
        logits = self.logits
        # Only these may come back: a connection that was gone before this step stays gone.
        crossed = {name: (before[name] > 0) & (w <= 0) for name, w in logits.items()}
        # Crossed ones are ≤ 0 now, so that the largest of them is the nearest to 0.
        nearness = {name: w.masked_fill(~crossed[name], -math.inf) for name, w in logits.items()}
        for name, back in keep_largest(nearness, missing).items():
            # Where fewer connections crossed than are missing, `keep_largest` also marks some that did not: they stay.
            logits[name].copy_(torch.where(back & crossed[name], before[name], logits[name]))

    def _check_finite(self) -> None:
        for name, w in self.logits.items():
            if not w.isfinite().all():
                raise TrainingDiverged(
                    f"the mask of '{name}' is no longer finite; try a smaller rate for the masks or for the weights"
                )

    def _find_parametrization(self, name: str) -> Any:
        place, _, leaf = name.rpartition(".")
        parametrizations: Any = self.model.get_submodule(place).parametrizations
        return parametrizations[leaf]


def _draw_initial_logits(weight: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Draw |N(0, ε_w²)| in the shape of a weight, never 0, in float32 at least, since less would lose small steps."""
    # In float64 and on the CPU, whatever the weights are, so that a seed begins alike everywhere.
    logits = torch.randn(weight.shape, generator=generator, dtype=torch.float64).abs() * spread
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return logits.to(weight.device, dtype).clamp_(min=torch.finfo(dtype).tiny)


def _check_temperatures(t_l: float, t_s: float) -> None:
    for name, value in (("t_l", t_l), ("t_s", t_s)):
        if isinstance(value, bool) or not 0 < value < math.inf:
            raise InvalidInput(f"{name}={value!r} must be a number > 0: it is the inverse of a temperature")
    if t_s > t_l:
        raise InvalidInput(f"t_s={t_s!r} must not be greater than t_l={t_l!r}: its temperature 1/t_s is the higher one")
