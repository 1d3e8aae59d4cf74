"""Many small networks of one shape, trained at once: their weights lie in one tensor for each layer.

The recipe of the synthetic experiments, whose reason is that hidden signals shrink like c^k (ERRATA 24). Written in
U_l = W_l / c and u_l = b_l / c^l, a hidden layer of the paper's class has columns of norm at most 1 and signals of one
size for every c, and the output layer is U = c^k W. Steps are made in these coordinates:

    hidden layer l    U_l ← U_l − η √(outputs) ĝ,  u_l ← u_l − η ĝ,  then the projection; ĝ is the gradient divided by
                      its Euclidean norm, with momentum, and η = 0.01;
    output layer      Adam with a step of 0.05 c^{3/4} for U, which is 0.05 c^{3/4 − k} for the weights, and of 0.001
                      for the bias, whose size has nothing to do with c.

All steps go down to 0 along a cosine. Hidden biases begin at 0: others would drown the signal, which is c times smaller
in every layer. Adam in hidden layers would undo what the projection is for: its steps are of one size for all weights,
and so no weight falls behind and becomes zero. After the last step, a projection onto a ball that is 1/10,000 smaller
clears weights that are not zero only because a step was too small to lead out of the ball by more than rounding.

The factor c^{3/4} is what makes the gap between training and test fall with c. Without it, networks of all c are
trained alike but for the biases, and have much the same gap: the class leaves the output layer free, and its weights
make up for c. With it, the time of training bounds the output layer's norm in these coordinates.

Networks without a constraint, and those with other regularizers, are trained by Adam with a step of 0.001.

Reference: yang2021l1inf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from experiments.bounds_training import make_perceptron
from tamis.errors import InvalidInput
from tamis.l1inf.projection import project_

LAST_RADIUS = 1 - 1e-4  # of the last projection, in parts of c
SMALLEST = 1e-30  # a gradient of zero is not divided by its norm


@dataclass(frozen=True)
class Recipe:
    """How networks are trained; the steps are those of the coordinates above.

    Attributes:
        steps, batch: how many, and of how many samples, drawn with replacement.
        hidden: η.
        output, exponent: Adam's step for the output weights is output · c^exponent.
        free: Adam's step where there is no constraint, and for the output bias.
    """

    steps: int = 1000
    batch: int = 100
    hidden: float = 0.01
    momentum: float = 0.9
    output: float = 0.05
    exponent: float = 0.75
    free: float = 0.001


@dataclass(frozen=True)
class Regularizer:
    """c of the constraint, or another way: λ‖w‖₁, (λ/2)‖w‖₂² of all weights, or dropout after every hidden layer."""

    c: float | None = None
    l1: float = 0.0
    l2: float = 0.0
    dropout: float = 0.0


@dataclass(frozen=True)
class Task:
    """Samples of all networks together, and what is to be learnt of them.

    Attributes:
        inputs, targets: (samples, …); labels if they are whole numbers, and otherwise regression's targets.
    """

    inputs: Tensor
    targets: Tensor

    @property
    def classifies(self) -> bool:
        return not self.targets.is_floating_point()

    def losses(self, outputs: Tensor, places: Tensor) -> Tensor:
        """Return the cross-entropy or half the squared error of each sample, in the shape of `places`."""
        wanted = self.targets[places]
        if not self.classifies:
            return (outputs[..., 0] - wanted).square() / 2
        return cross_entropy(outputs.flatten(0, -2), wanted.flatten(), reduction="none").view(places.shape)


class Stack:
    """Perceptrons with the same widths, one for each seed; those of the same seed begin alike.

    Args:
        widths: of the layers.
        seeds: of the networks.
        device: of the weights.

    Example:
        >>> stack = Stack((500, 100, 2), seeds=(0, 1, 2))
        >>> stack(torch.randn(3, 10, 500)).shape
        torch.Size([3, 10, 2])
    """

    def __init__(self, widths: Sequence[int], seeds: Sequence[int], device: str = "cpu") -> None:
        models = []
        for seed in seeds:
            torch.manual_seed(seed)
            models.append([layer for layer in make_perceptron(widths) if isinstance(layer, nn.Linear)])
        layers = list(zip(*models, strict=True))
        self.weights = [_stack([layer.weight for layer in same], device) for same in layers]
        self.biases = [_stack([layer.bias for layer in same], device) for same in layers]

    def __len__(self) -> int:
        return len(self.weights[0])

    @property
    def k(self) -> int:
        """Return how many hidden layers there are."""
        return len(self.weights) - 1

    def __call__(self, inputs: Tensor, drop: float = 0.0) -> Tensor:
        """Map (networks, batch, inputs) → (networks, batch, outputs)."""
        values = inputs
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            values = torch.baddbmm(bias[:, None], values, weight.mT).relu()
            values = dropout(values, drop) if drop else values
        return torch.baddbmm(self.biases[-1][:, None], values, self.weights[-1].mT)

    @torch.no_grad()
    def outputs(self, network: int, inputs: Tensor) -> Tensor:
        """Compute the outputs of one network, (batch, inputs) → (batch, outputs)."""
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            inputs = torch.addmm(bias[network], inputs, weight[network].mT)
            inputs = inputs.relu() if number < self.k else inputs
        return inputs

    @torch.no_grad()
    def project(self, c: float) -> None:
        """Project every hidden neuron's incoming weights with its bias, onto the ℓ1-ball."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            project_(weight.detach().flatten(0, 1), c, bias.detach().flatten())

    def sparsity(self) -> list[float]:
        """Return for each network the share of zeros among hidden weights."""
        zeros = sum((weight == 0).flatten(1).sum(1) for weight in self.weights[:-1])
        total = sum(weight[0].numel() for weight in self.weights[:-1])
        return [int(count) / total for count in zeros]  # type: ignore[union-attr]

    def norms(self) -> list[list[float]]:
        """Return for each hidden layer ‖T_l‖_{1,∞} of each network."""
        pairs = zip(self.weights[:-1], self.biases[:-1], strict=True)
        return [(w.detach().double().abs().sum(2) + b.detach().double().abs()).amax(1).tolist() for w, b in pairs]


def train(
    stack: Stack, task: Task, samples: Sequence[Tensor], regularizer: Regularizer, recipe: Recipe, seed: int = 0
) -> None:
    """Train every network of a stack where it is, each on its own samples, by the recipe.

    Args:
        samples: for each network, the places of its samples in the task.
        seed: of the batches, and of dropout. It decides as well which network sees which batch: networks of one seed
            and one number of samples, in stacks of one order, see the same.
    """
    if len(samples) != len(stack):
        raise InvalidInput(f"{len(stack)} networks need the places of their samples each, got {len(samples)} of them")
    c = regularizer.c
    if c is not None:
        for bias in stack.biases[:-1]:
            bias.data.zero_()
        stack.project(c)
    optimizers = _make_optimizers(stack, c, recipe)
    schedules = [CosineAnnealingLR(each, recipe.steps) for each in optimizers]
    draw = _make_draws(samples, recipe.batch, seed, task.inputs.device)
    torch.manual_seed(seed)
    for _ in range(recipe.steps):
        places = draw()
        loss = task.losses(stack(task.inputs[places], regularizer.dropout), places).mean(1).sum()
        (loss + _compute_penalty(stack, regularizer)).backward()
        if c is not None:
            _normalise([*stack.weights[:-1], *stack.biases[:-1]])
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if c is not None:
            stack.project(c)
    if c is not None:
        stack.project(c * LAST_RADIUS)


def _make_optimizers(stack: Stack, c: float | None, recipe: Recipe) -> list[Optimizer]:
    if c is None:
        return [Adam([*stack.weights, *stack.biases], lr=recipe.free)]
    hidden = []
    for number, (weight, bias) in enumerate(zip(stack.weights[:-1], stack.biases[:-1], strict=True), 1):
        hidden.append({"params": [weight], "lr": recipe.hidden * c * weight.shape[1] ** 0.5})
        hidden.append({"params": [bias], "lr": recipe.hidden * c**number})
    output = [
        {"params": [stack.weights[-1]], "lr": recipe.output * c ** (recipe.exponent - stack.k)},
        {"params": [stack.biases[-1]], "lr": recipe.free},
    ]
    return [SGD(hidden, momentum=recipe.momentum), Adam(output, eps=1e-20)]  # the weights' gradients shrink like c^k


def _make_draws(samples: Sequence[Tensor], batch: int, seed: int, device: torch.device) -> Callable[[], Tensor]:
    """Return a function that draws a batch of places for each network, (networks, batch)."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([len(places) for places in samples])[:, None]
    padded = torch.nn.utils.rnn.pad_sequence([places.cpu() for places in samples], batch_first=True)

    def draw() -> Tensor:
        uniform = torch.rand(len(samples), batch, generator=generator, dtype=torch.float64)
        return padded.gather(1, (uniform * counts).long()).to(device, non_blocking=True)

    return draw


def _compute_penalty(stack: Stack, regularizer: Regularizer) -> Tensor | float:
    penalty: Tensor | float = 0.0
    for weight in stack.weights:
        if regularizer.l1:
            penalty = penalty + regularizer.l1 * weight.abs().sum()
        if regularizer.l2:
            penalty = penalty + regularizer.l2 / 2 * weight.square().sum()
    return penalty


def _normalise(parameters: Sequence[Tensor]) -> None:
    """Divide every network's gradient of every layer by its norm."""
    for parameter in parameters:
        assert parameter.grad is not None
        norms = parameter.grad.flatten(1).norm(dim=1).clamp(min=SMALLEST)
        parameter.grad.div_(norms.view(-1, *[1] * (parameter.dim() - 1)))


def _stack(tensors: Sequence[Tensor], device: str) -> Tensor:
    return torch.stack([tensor.detach() for tensor in tensors]).to(device).requires_grad_()


@torch.no_grad()
def measure(stack: Stack, task: Task, network: int, train_places: Tensor, test_places: Tensor) -> dict[str, float]:
    """Return one network's losses in training and test, their gap, and for classification the accuracies."""
    found: dict[str, float] = {}
    for name, places in (("train", train_places), ("test", test_places)):
        outputs = stack.outputs(network, task.inputs[places])
        found[f"{name} loss"] = float(task.losses(outputs, places).mean())
        if task.classifies:
            found[f"{name} accuracy"] = float((outputs.argmax(1) == task.targets[places]).double().mean())
    return {**found, "gap": found["test loss"] - found["train loss"]}
