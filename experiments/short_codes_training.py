"""Training of ternary weights at a given price for each bit of their code.

Each weight is drawn from a distribution q over −1, 0, 1 of its own, whose log-odds are trained. What is minimised is

    E cross-entropy + price · Σ [CE(q, q̄) − (1 − a)·H(q)]   in bits,

with q̄ the mean of q over the weights of a matrix: what a code for that matrix is made for. At a = 0 this is a
divergence, and certainty has its price; as a grows to 1, doubt is no longer rewarded. Outputs of a layer are drawn
from the normal distribution with their mean and variance, instead of weights from theirs. In the last part of the
training each weight is its likeliest value, and gradients pass as if it were its mean.

Reference: the normal approximation is that of local reparametrisation (Kingma, Salimans, Welling 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from experiments.short_codes_network import FLOOR, SHIFT, Shape, ShortNetwork, Stage, prepare
from tamis.training import Data

BETAS = (0.9, 0.99)
BATCH = 100  # images that are looked at together where nothing is learned; they fit into a cache
WARM_UP = 200  # steps
BIT = math.log(2)
DEAR, SETTLED = 0.1, 0.9  # the parts of the training after which the price is full, and odds count fully


@dataclass(frozen=True)
class Plan:
    """What to train, and how.

    Attributes:
        shape: of the network.
        price: what a bit of the code costs, in nats of cross-entropy per image; it rises to that from a small one.
        batch, rate, seed: of the training; `rate` is the highest learning rate, a cosine leads from it to zero.
        free: the part of the training after which a grows from 0 to 1, and log-odds count more and more, up to `sharp`
            times; it ends at SETTLED.
        hard: the part of the training after which the likeliest weights are used.
        nothing: the mean log-odds of 0 at the start; those of −1 and 1 have the mean 0.
    """

    shape: Shape
    price: float = 9e-5
    batch: int = 512
    rate: float = 0.2
    seed: int = 0
    free: float = 0.5
    sharp: float = 4.0
    hard: float = 0.75
    nothing: float = 3.0


class Trainer:
    """One training, step by step, without a word between the processor and the device.

    Args:
        plan: what to train.
        images, labels: the training set on the device, images as the network's stem gives them.
        steps: how many steps there will be.
    """

    def __init__(self, plan: Plan, images: Tensor, labels: Tensor, steps: int) -> None:
        device = images.device
        self.plan, self.images, self.labels = plan, images, labels
        self.net = ShortNetwork(plan.shape).to(device)
        generator = torch.Generator().manual_seed(plan.seed)
        self.names = [name for name, _ in self.net.named_parameters()]
        self.odds: list[Tensor] = []
        for parameter in self.net.parameters():
            drawn = torch.randn((3, *parameter.shape), generator=generator)
            drawn[1] += plan.nothing
            self.odds.append(drawn.to(device).requires_grad_())
        self.heat = torch.zeros((), device=device, requires_grad=True)  # of the softmax; no part of the network
        self.first = [torch.zeros_like(value) for value in (*self.odds, self.heat)]
        self.second = [torch.zeros_like(value) for value in (*self.odds, self.heat)]
        self.steps = torch.tensor(float(steps), device=device)
        self.done = torch.zeros((), device=device)
        self.banks = [spread_bank(stage) for stage in self.net.each_stage]

    def weights(self) -> dict[str, Tensor]:
        """Return the likeliest ternary weights by name."""
        return {name: odds.detach().argmax(dim=0).float() - 1 for name, odds in zip(self.names, self.odds, strict=True)}

    def step(self) -> None:
        """Take one step; it may be captured as a CUDA graph and replayed."""
        chosen = torch.randint(len(self.labels), (self.plan.batch,), device=self.labels.device)
        part = self.done / self.steps
        settled = ((part - self.plan.free) / (SETTLED - self.plan.free)).clamp(0, 1)
        sharpness = torch.exp(settled * math.log(self.plan.sharp))
        laws = [(sharpness * odds).softmax(dim=0) for odds in self.odds]
        outputs = draw_outputs(self.net, self.banks, laws, (part > self.plan.hard).float(), self.images[chosen])
        loss = functional.cross_entropy(outputs.float() * self.heat.exp(), self.labels[chosen])
        price = self.plan.price * (part / DEAR).clamp(max=1)
        length = torch.stack([code_length(law, settled) for law in laws]).sum()
        gradients = torch.autograd.grad(loss + price * length, [*self.odds, self.heat])
        with torch.no_grad():
            self._move(gradients, part)

    def _move(self, gradients: Sequence[Tensor], part: Tensor) -> None:
        """Take a step of Adam."""
        self.done += 1
        rate = self.plan.rate * (self.done / WARM_UP).clamp(max=1) * (0.5 + 0.5 * (math.pi * part).cos()) + 1e-5
        corrections = [1 - torch.exp(self.done * math.log(beta)) for beta in BETAS]
        moved = (*self.odds, self.heat)
        for value, first, second, gradient in zip(moved, self.first, self.second, gradients, strict=True):
            first.lerp_(gradient, 1 - BETAS[0])
            second.lerp_(gradient.square(), 1 - BETAS[1])
            value.sub_(rate * (first / corrections[0]) / ((second / corrections[1]).sqrt() + 1e-8))


def code_length(law: Tensor, certain: Tensor | float) -> Tensor:
    """Return bits for weights drawn from a law (3, …): CE(q, q̄) − (1 − certain)·H(q), where q̄ has equal signs."""
    nonzero = (1 - law[1]).mean().clamp(1e-6, 1 - 1e-6)
    count = law[1].numel()
    cross = -count * (nonzero * (nonzero / 2).log() + (1 - nonzero) * (1 - nonzero).log())
    entropy = -(law * (law + 1e-9).log()).sum()
    return (cross - (1 - certain) * entropy) / BIT


def spread_bank(stage: Stage) -> tuple[Tensor, int]:
    """Return a stage's cosines as filters, and the groups of that convolution. On a GPU one dense convolution is
    faster.
    """
    if stage.bank.device.type == "cpu":
        return stage.bank.repeat(stage.channels, 1, 1)[:, None], stage.channels
    places = torch.eye(stage.channels, device=stage.bank.device)
    dense = torch.einsum("cd,khw->ckdhw", places, stage.bank)
    return dense.flatten(0, 1).to(memory_format=torch.channels_last), 1


def draw_outputs(
    net: ShortNetwork, banks: Sequence[tuple[Tensor, int]], laws: Sequence[Tensor], hard: Tensor, values: Tensor
) -> Tensor:
    """Return the network's outputs for weights drawn for each image, or (`hard` is 1) for the likeliest weights.

    Args:
        net, banks: the network, and the cosines of its stages as `spread_bank` gives them.
        laws: of its weights.
        hard: 0 or 1. Gradients of the likeliest weights are those of the mean weights.
        values: what comes out of the stem.
    """
    for stage, (bank, groups), law in zip(net.each_stage, banks, laws, strict=False):
        responses = values
        if stage.margin:
            padded = functional.pad(values, [stage.margin] * 4, mode="replicate")
            responses = functional.conv2d(padded, bank.to(values.dtype), groups=groups)
        mean, spread, power = _compute_moments(law, hard)
        norm = (power.sum(dim=1, keepdim=True) + FLOOR).rsqrt()
        values = stage.hand_on(values, _draw(responses, mean * norm, spread * norm.square(), SHIFT))
    mean, spread, _ = _compute_moments(laws[-1], hard)
    features = net.readout.features(values)
    return _draw(features[:, :, None, None], mean, spread, 1.0)[:, :, 0, 0]


def _compute_moments(law: Tensor, hard: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, variance and mean square of the weights."""
    mean, power = law[2] - law[0], 1 - law[1]
    spread = (power - mean.square()) * (1 - hard)
    likeliest = law.detach().argmax(dim=0).float() - 1
    mean = mean + hard * (likeliest - mean).detach()
    return mean, spread, power + hard * (likeliest.square() - power).detach()


def _draw(features: Tensor, mean: Tensor, spread: Tensor, shift: float) -> Tensor:
    """Return combinations with their noise, which is one number for all places of an image, as weights are shared
    there.
    """
    kind = features.dtype
    centre = functional.conv2d(features, mean[:, :-1, None, None].to(kind), shift * mean[:, -1].to(kind))
    variance = functional.conv2d(
        features.square(), spread[:, :-1, None, None].to(kind), shift**2 * spread[:, -1].to(kind)
    )
    return centre + torch.randn_like(centre[:, :, :1, :1]) * (variance.clamp(min=0) + 1e-6).sqrt()


@torch.no_grad()
def errors_of(net: ShortNetwork, data: Data) -> int:
    """Return how many images are taken for another class, in float32, on the CPU."""
    wrong = 0
    for start in range(0, len(data), BATCH):
        images, labels = (values[start : start + BATCH].cpu() for values in (data.inputs, data.labels))
        wrong += int((net(prepare(images)).argmax(dim=1) != labels).sum())
    return wrong


def train_network(plan: Plan, train: Data, steps: int) -> dict[str, Tensor]:
    """Return the ternary weights after so many steps on a training set, where that is; they are returned on the CPU."""
    trainer = Trainer(plan, run_stem(plan.shape, train), train.labels, steps)
    run_steps(trainer, steps)
    return {name: values.cpu() for name, values in trainer.weights().items()}


def run_steps(trainer: Trainer, steps: int) -> None:
    """Take all steps of a training."""
    step, on_gpu = capture(trainer), trainer.labels.is_cuda
    trainer.done.zero_()
    if on_gpu:  # steps have a stream of their own
        torch.cuda.synchronize()
    for _ in range(steps):
        step()
    if on_gpu:
        torch.cuda.synchronize()


@torch.no_grad()
def run_stem(shape: Shape, train: Data) -> Tensor:
    """Return what comes out of the stem for every image; in half the bits on a GPU."""
    device = train.inputs.device
    stem = ShortNetwork(shape).to(device).stem
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    batches = (stem(prepare(batch)) for batch in train.inputs.split(BATCH))
    return torch.cat([batch.to(dtype, memory_format=torch.channels_last) for batch in batches])


def capture(trainer: Trainer) -> Callable[[], None]:
    """Return the step as a replay on a stream of its own; on a CPU, the step."""
    if trainer.labels.device.type != "cuda":
        return trainer.step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            trainer.step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        trainer.step()

    def replay() -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay
