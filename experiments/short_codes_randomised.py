"""A bound of the error rate of a randomised network for CIFAR-10: one whose weights are drawn anew for each image.

    python -m experiments short-codes-randomised                           counts the stored laws' errors, 20 minutes
    python -m experiments short-codes-randomised --counted                 takes the counts that are stored, seconds
    python -m experiments short-codes-randomised --full --device cuda      trains laws first

A network with a short code (short_codes.py) has one value for each weight, and pays for all of it. Here each ternary
weight has a law over −1, 0, 1, and what is paid for is how far the laws are from a prior: nothing for a weight that is
left to chance. The classifier draws a network for each image that it is shown; its error rate is the mean over draws.

PAC-Bayes: let P be a law over networks that was fixed before the training data was seen. With probability 1 − δ, for
all laws Q at once, kl(ê ‖ e) ≤ (KL(Q ‖ P) + ln(ξ(n)/δ)) / n, where ê is the rate of training errors of networks drawn
from Q, e their error rate, kl the divergence of two coins, and ξ(n) ≤ 2√n the constant of Maurer (2004). So e is at
most the largest p with kl(ê ‖ p) as small.

How it is counted:
    1. P is a mixture of priors P_j, each with the weight 2^−b for the b bits that name it; so
       KL(Q ‖ P) ≤ KL(Q ‖ P_j) + b ln 2. P_j says of every weight, independently, that it is ±1 with the probability
       ρ/2 each. There is a ρ for each matrix and cosine, one of LEVELS; the architecture is one of CANDIDATES.
    2. KL(Q ‖ P_j) is the sum over weights, in float64, of the laws as they are stored. No bits tell Q.
    3. ê is estimated, in passes over the training set in which each image has a network drawn for it alone: so answers
       are independent. Their errors have a tail no heavier than the binomial one of the same mean (Hoeffding 1956), and
       Clopper and Pearson's limit holds, with a part of δ of its own. The laws were chosen before these draws.
    4. Draws are those of a pseudo-random generator, weights and images are computed with in float32.

The stored laws come from three trainings, each of which went on from laws of the one before. --full trains once, and
finds other laws. The bound does not depend on how laws were found.

Reference: langford2005tutorial for the theorem, maurer2004pacbayes for its constant; clopper1934confidence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.command_line import Parser
from experiments.record import store
from experiments.short_codes import CANDIDATES, GUESSING, PUBLISHED, QUOTED, STORED
from experiments.short_codes_network import Shape, ShortNetwork, prepare
from experiments.short_codes_randomised_training import (
    RandomisedPlan,
    compute_densities,
    compute_outputs_of_draws,
    count_waves,
    divergence,
    train_odds,
)
from experiments.short_codes_search import chernoff
from experiments.short_codes_training import spread_bank
from tamis.artifact import replace_file
from tamis.bounds import Bound, log_rounded_up
from tamis.bounds.binomial import largest_rate, log_factorial
from tamis.bounds.bound import EPSILON, round_up
from tamis.progress import reporting
from tamis.training import Data, load_data

NAME, FIGURES = "cifar10", "short_codes_randomised.json"
SHAPE = Shape(3, (12, 16, 32), ((1, 1), (3, 3), (3, 6)), (2, 2, 2), 2, kept=True, stem=3)
DELTA, DELTA_OF_DRAWS = 0.04, 0.01  # of the theorem, and of the estimate of ê
LEVELS = 32  # densities that a prior may have: 2^(−1/3), 2^(−2/3), …
STEP = 1 / 8  # of stored log-odds
STEPS = 40_000
PASSES = 10
TEST_PASSES = 2
BATCHES = {"cpu": 100, "cuda": 2000}  # images that networks are drawn for together


def store_odds(odds: Tensor) -> Tensor:
    """Return log-odds (3, …) of −1, 0 and 1 as steps, those of −1 and of 1 against 0: int8 (2, …)."""
    steps = ((odds - odds[1]) / STEP).round().clamp(-127, 127)
    return steps[[0, 2]].to(torch.int8)


def compute_law(steps: Tensor) -> Tensor:
    """Return the law (3, …) of stored log-odds, in float64."""
    below, above = steps.double() * STEP
    return torch.stack([below, torch.zeros_like(below), above]).softmax(dim=0)


def choose_prior_density(law: Tensor, waves: int) -> Tensor:
    """Return for each cosine the density of LEVELS that is nearest to the mean law's: what the prior's bits say."""
    thirds = (-3 * compute_densities(law, waves).log2()).round().clamp(1, LEVELS)
    return torch.exp2(-thirds / 3)


def count_bits_by_part(laws: Mapping[str, Tensor], waves: Sequence[int]) -> dict[str, float]:
    """Return bits of divergence of each matrix of weights from its prior, and those that name the prior."""
    each = zip(laws.items(), waves, strict=True)
    bits = {name: float(divergence(law, count, choose_prior_density(law, count))) for (name, law), count in each}
    return bits | {"prior": sum(waves) * math.log2(LEVELS), "architecture": math.log2(CANDIDATES)}


@torch.no_grad()
def count_errors_of_draws(shape: Shape, laws: Mapping[str, Tensor], data: Data, passes: int) -> int:
    """Return errors in so many passes over the data, each image with its own network, computed where the data is."""
    device = data.inputs.device
    net = ShortNetwork(shape).to(device)
    banks = [spread_bank(stage) for stage in net.each_stage]
    each = [laws[name].float().to(device) for name, _ in net.named_parameters()]
    wrong, batch = torch.zeros((), dtype=torch.int64, device=device), BATCHES[device.type]
    parts = list(zip(data.inputs.split(batch), data.labels.split(batch), strict=True))
    with reporting(True, f"{passes} passes over {data.name}", len(parts)) as report:
        for done, (images, labels) in enumerate(parts, start=1):
            values = net.stem(prepare(images))
            for _ in range(passes):
                wrong += (compute_outputs_of_draws(net, banks, each, values).argmax(dim=1) != labels).sum()
            report(done)
    return int(wrong)


def maurer_constant(n: int) -> float:
    """Compute ξ(n) = Σ_k C(n, k) (k/n)^k (1 − k/n)^{n−k}, rounded up: E exp(n·kl(ê ‖ e)) for the coin for which it is
    largest.

    It is about √(πn/2) + 2/3, and at most 2√n for n ≥ 8.

    Example:
        >>> round(maurer_constant(2), 9)  # 1 + 2/4 + 1
        2.5

    Reference: maurer2004pacbayes.
    """
    heads = np.arange(1, n)
    tails = n - heads
    logs = log_factorial(np.array(n)) - log_factorial(heads) - log_factorial(tails)
    logs += heads * np.log(heads / n) + tails * np.log(tails / n)
    # Each logarithm is a sum of a few of the size of n ln n.
    return (2 + float(np.exp(logs).sum())) * (1 + 64 * EPSILON * n * math.log(n + 3))


def randomised_bound(errors: int, draws: int, bits: float, n: int, share: float = 1.0) -> Bound:
    """With confidence 95%, the error rate of networks drawn from the laws is at most `value`.

    Args:
        errors: of how many draws the answer was wrong.
        draws: of a network for a training image, as many for each image.
        bits: at least KL(Q ‖ P) in bits.
        n: training images.
        share: the part of 5% that this bound may fail with, where others are quoted with it.

    Reference: langford2005tutorial, maurer2004pacbayes.
    """
    rate = largest_rate(errors, draws, math.log(share * DELTA_OF_DRAWS))
    allowed = round_up((bits * math.log(2) + math.log(maurer_constant(n)) - math.log(share * DELTA)) / n, ulps=16)
    value = chernoff(rate, allowed)
    return Bound(
        value=value,
        log_value=log_rounded_up(value),
        informative=value < GUESSING,
        source="maurer2004pacbayes, Theorem 5",
        assumptions=(
            "the training inputs and their labels are independent draws from the distribution that the rate is meant "
            "for",
            "the prior was fixed before the training data was seen",
            "the generator's draws are as good as independent ones",
        ),
        terms={"errors": errors, "draws": draws, "bits": bits, "n": n, "training error": rate, "divergence": allowed},
    )


def certify_draws(
    shape: Shape, laws: Mapping[str, Tensor], train: Data, passes: int, test: Data | None = None
) -> dict[str, Any]:
    """Return bits, errors of draws and the bound; the test error is beside them for information."""
    errors = count_errors_of_draws(shape, laws, train, passes)
    figures = bound_draws(shape, laws, errors, passes * len(train), len(train))
    if test is None:
        return figures
    wrong = count_errors_of_draws(shape, laws, test, TEST_PASSES)
    return figures | {"test error": wrong / (TEST_PASSES * len(test))}


def bound_draws(shape: Shape, laws: Mapping[str, Tensor], errors: int, draws: int, n: int) -> dict[str, Any]:
    """Return bits and the bound, from errors that were counted."""
    bits = count_bits_by_part(laws, count_waves(ShortNetwork(shape)))
    alone, together = (randomised_bound(errors, draws, sum(bits.values()), n, share) for share in (1.0, 1 / QUOTED))
    return {
        "bits": sum(bits.values()),
        "bits by part": bits,
        "expected nonzeros": {name: float((1 - law[1]).sum()) for name, law in laws.items()},
        "errors of draws": errors,
        "draws": draws,
        "training samples": n,
        "training error": errors / draws,
        "training error at most": alone.terms["training error"],
        "bound": alone.value,
        "bound, all together": together.value,
    }


def save_laws(path: Path, odds: Mapping[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {name: store_odds(values).numpy() for name, values in odds.items()}
    with replace_file(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_laws(path: Path) -> dict[str, Tensor]:
    """Return the laws by parameter."""
    with np.load(path) as file:
        return {name: compute_law(torch.from_numpy(file[name])) for name in file.files}


def run(path: Path, plan: RandomisedPlan | None, device: str, steps: int, passes: int, seed: int = 0) -> dict[str, Any]:
    """Return the figures of the stored laws, or (with a plan) of laws that are trained and stored."""
    train, test = load_data(f"{NAME}:train").to(device), load_data(f"{NAME}:test").to(device)
    shape = SHAPE if plan is None else plan.shape
    if plan is not None:
        save_laws(path, train_odds(plan, train, steps))
    torch.manual_seed(seed)
    figures = certify_draws(shape, load_laws(path), train, passes, test)
    return {"shape": vars(shape), "seed of the draws": seed, **figures, "published": PUBLISHED[NAME]}


def run_counted(path: Path, stored: Path) -> dict[str, Any]:
    """Return the figures of stored laws whose errors were counted before, with how and when that was."""
    record = json.loads(stored.read_text())
    before = record["figures"]
    counts = (before[name] for name in ("errors of draws", "draws", "training samples"))
    counted = before.get("counted by", record["environment"])
    return before | bound_draws(SHAPE, load_laws(path), *counts) | {"counted by": counted}


def show(figures: Mapping[str, Any]) -> None:
    print("CIFAR-10, weights drawn for each image: error rate with confidence 95%, %, and what it is made of")
    print(f"{'bound':>8}{'together':>10}{'theirs':>8}{'training':>10}{'at most':>9}{'test':>8}{'bits':>8}")
    limits = [math.ceil(1e4 * figures[name] - 1e-9) / 100 for name in ("bound", "bound, all together")]
    rates = [100 * figures[name] for name in ("published", "training error", "training error at most", "test error")]
    cells = [f"{rate:.2f}" for rate in (*limits, *rates)]
    print(f"{cells[0]:>8}{cells[1]:>10}{cells[2]:>8}{cells[3]:>10}{cells[4]:>9}{cells[5]:>8}{figures['bits']:8.0f}")


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser("short-codes-randomised", __doc__, "train laws instead of certifying those that are stored")
    parser.add_argument("--counted", action="store_true", help="take the counts that are stored instead of drawing")
    parser.add_argument("--device", default="cpu", choices=tuple(BATCHES))
    parser.add_argument("--steps", type=int, default=STEPS, help="of the training")
    parser.add_argument("--passes", type=int, default=PASSES, help="over the training set, to count errors")
    parser.add_argument(
        "--laws", type=Path, help="their file; experiments/results/short_codes/cifar10_randomised.npz, or in out"
    )
    arguments = parser.parse_args(options)
    if arguments.passes < 1:
        parser.error("--passes must be at least 1")
    if arguments.counted and (arguments.full or arguments.laws):
        parser.error("--counted is about the stored laws: leave out --full and --laws")
    folder = Path("out/short_codes") if arguments.full else STORED
    path = arguments.laws or folder / f"{NAME}_randomised.npz"
    plan = RandomisedPlan(SHAPE) if arguments.full else None
    if arguments.counted:
        figures = run_counted(path, STORED.parent / FIGURES)
    else:
        figures = run(path, plan, arguments.device, arguments.steps, arguments.passes)
    if arguments.results:
        store(arguments.results / FIGURES, figures)
    show(figures)
