"""Bounds of the error rate from short codes, beside those of Lotfi et al. (2022) without data-dependent priors.

    python -m experiments short-codes                               minutes: certifies the stored networks anew
    python -m experiments short-codes --full --device cuda          trains them again; --only mnist for one of them

Occam's razor: if a network has a code of b bits, fixed before the training data was seen, then with confidence 95% its
error rate is at most the largest p with P[Bin(n, p) ≤ training errors] ≥ 0.05 · 2^−b, whatever was done to find it. So
networks are trained on all of the training set for few errors and few bits at once.

How bits are counted:
    1. The code of short_codes_ternary.py tells every weight: numbers of nonzeros, places, signs. The message is
       decoded, and must give the network bit for bit.
    2. The architecture with its code is one of at most CANDIDATES that were tried: log₂ CANDIDATES bits. Settings of
       the training (rates, seeds, prices) need no bits, since a receiver does not need them.
    3. Filters, scaling of pixels and normalisations are fixed formulas, in short_codes_network.py; nothing in them was
       measured on data.
    4. Errors are counted in float32 on a CPU, on the training set as it is, without augmentation.

The stored networks come from several trainings, some with an earlier schedule that steered the price towards a wanted
length, and from a search over single weights of all layers. --full trains with the present schedule and searches the
read-out alone; it finds other networks. A bound does not depend on how its network was found. For CIFAR-10 a randomised
network has a lower bound: short_codes_randomised.py.

Reference: lotfi2022pacbayes; the bound is that of langford2005tutorial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments import RESULTS
from experiments.command_line import Parser
from experiments.record import store
from experiments.short_codes_network import Shape, ShortNetwork, prepare
from experiments.short_codes_refinement import refine
from experiments.short_codes_search import code_bits
from experiments.short_codes_ternary import count_bits, decode, encode
from experiments.short_codes_training import Plan, errors_of, train_network
from tamis.artifact import Codes, Compressed, load
from tamis.bounds import occam
from tamis.errors import CorruptArtifact
from tamis.graph import trace
from tamis.training import Data, load_data

DELTA = 0.05
QUOTED = 4  # bounds that are quoted together, that of the randomised network among them
CANDIDATES = 1024  # architectures and codes; far fewer were tried
GUESSING = 0.9
PUBLISHED = {"mnist": 0.116, "fashion_mnist": 0.328, "cifar10": 0.582}  # lotfi2022pacbayes, Table 1
STEPS = 20_000
ROUNDS = 6  # of the search after the training
GREY = Shape(1, (4, 8), ((5, 15), (3, 9)), (2, 2), 4)
COLOUR = Shape(3, (12, 12, 12), ((1, 1), (3, 3), (3, 6)), (2, 2, 2), 2, kept=True, stem=3)
PLANS = {
    "mnist": Plan(GREY, price=6e-5),
    "fashion_mnist": Plan(GREY, price=6e-5),
    "cifar10": Plan(COLOUR, price=8e-5),
}
STORED = RESULTS / "short_codes"


def make_small_network(
    shape: Shape, weights: Mapping[str, Tensor], example: Tensor, steps: Sequence[Mapping[str, Any]] = ()
) -> Compressed:
    """Return ternary weights as a network with codes.

    Args:
        shape: of the network.
        weights: of −1, 0 and 1, by the names of a ShortNetwork's parameters.
        example: an input.
        steps: the recipe.
    """
    net = ShortNetwork(shape)
    net.load_state_dict({name: values.float() for name, values in weights.items()})
    codes = {
        name: Codes((values + 1).to(torch.uint8), torch.tensor([-1.0, 0.0, 1.0]), torch.ones(1, 1))
        for name, values in weights.items()
    }
    return Compressed(trace(net, example), codes=codes, recipe=steps)


def certify_network(small: Compressed, shape: Shape, train: Data, test: Data | None = None) -> dict[str, Any]:
    """Return bits, training errors and the bound of a network; the test error is beside them for information.

    Raises:
        CorruptArtifact: the message does not give back the network.
    """
    number, base = encode(small.params)
    bits, net = count_bits(base), ShortNetwork(shape)
    weights = decode(number, {name: tuple(value.shape) for name, value in small.params.items()})
    if any(not torch.equal(weights[name], value) for name, value in small.params.items()):
        raise CorruptArtifact(f"the message of {bits} bits does not give back {small!r}")
    net.load_state_dict(weights)
    errors = errors_of(net, train)
    bound, together = (
        occam(errors, len(train), bits, delta, CANDIDATES, GUESSING).value for delta in (DELTA, DELTA / QUOTED)
    )
    figures = {
        "bits": bits + math.ceil(math.log2(CANDIDATES)),
        "bits by part": {
            **{name: code_bits(value) for name, value in weights.items()},
            "architecture": math.ceil(math.log2(CANDIDATES)),
        },
        "nonzeros": {name: int(values.count_nonzero()) for name, values in weights.items()},
        "training errors": errors,
        "training samples": len(train),
        "training error": errors / len(train),
        "bound": bound,
        "bound, all together": together,
    }
    return figures | ({"test error": errors_of(net, test) / len(test)} if test is not None else {})


def run(name: str, directory: Path, plan: Plan | None, device: str, steps: int) -> dict[str, Any]:
    """Return the figures of one dataset: of the stored network, or (with a plan) of one that is trained and stored."""
    train, test = load_data(f"{name}:train"), load_data(f"{name}:test")
    path = directory / f"{name}.tamis"
    shape = PLANS[name].shape
    example = prepare(train.inputs[:1])
    if plan is not None:
        on_device = train.to(device)
        weights = refine(shape, train_network(plan, on_device, steps), on_device, ROUNDS)
        directory.mkdir(parents=True, exist_ok=True)
        make_small_network(shape, weights, example, [{"step": "short codes", "steps": steps}]).save(path)
    small = load(path, ShortNetwork(shape))
    return {"shape": vars(shape), **certify_network(small, shape, train, test), "published": PUBLISHED[name]}


def show(found: Mapping[str, Mapping[str, Any]]) -> None:
    print(
        "Error rate with confidence 95%, %: ours, ours where all four hold together, that of Lotfi et al. (2022), and"
    )
    print("what it is made of")
    print(f"{'':16}{'bound':>8}{'together':>10}{'theirs':>8}{'training':>10}{'test':>8}{'bits':>8}")
    for name, figures in found.items():
        limits = [math.ceil(1e4 * figures[which] - 1e-9) / 100 for which in ("bound", "bound, all together")]
        rates = [100 * figures[which] for which in ("published", "training error", "test error")]
        cells = [*(f"{limit:.2f}" for limit in limits), *(f"{rate:.1f}" for rate in rates)]
        print(f"{name:16}{cells[0]:>8}{cells[1]:>10}{cells[2]:>8}{cells[3]:>10}{cells[4]:>8}{figures['bits']:>8}")


def main(options: Sequence[str] | None = None) -> None:
    """Run the experiment with these options, those of the command line unless given."""
    parser = Parser(
        "short-codes",
        __doc__,
        "train again instead of certifying what is stored",
        tuple(PUBLISHED),
        only="one dataset instead of all",
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for the training")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the training")
    parser.add_argument("--directory", type=Path, help=f"of the networks; {STORED}, or out/short_codes")
    arguments = parser.parse_args(options)
    directory = arguments.directory or (Path("out/short_codes") if arguments.full else STORED)
    names = [arguments.only] if arguments.only else list(PUBLISHED)
    plans = {name: PLANS[name] if arguments.full else None for name in names}
    found = {name: run(name, directory, plans[name], arguments.device, arguments.steps) for name in names}
    if arguments.results:
        store(arguments.results / "short_codes.json", found)
    show(found)
