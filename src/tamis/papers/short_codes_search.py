"""A last search over the read-out: every change of one ternary weight is weighed by its true training errors.

For a change of one weight of class r by ±1, the errors follow without running the network: class r wins a sample if the
step along that feature exceeds what r lacks there. So all changes are counted in two comparisons of the features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tamis.papers.short_codes_network import CLASSES, Shape, ShortNetwork, prepared
from tamis.train.data import Data

READOUT = "readout.weight"
BEST_FEW = 8  # changes of each kind that are tried after a count
BATCH = 100  # images that fit into a cache


def better_readout(shape: Shape, weights: Mapping[str, Tensor], train: Data, sweeps: int = 200) -> dict[str, Tensor]:
    """The weights with a read-out that no change of one weight makes cheaper, or after so many sweeps.

    Args:
        shape: of the network.
        weights: its ternary weights by name; they stay as they are.
        train: the training set.
        sweeps: at most so many counts of all changes.
    """
    net = ShortNetwork(shape)
    net.load_state_dict({name: values.float() for name, values in weights.items()})
    features, labels = _features(net, train), train.labels.cpu()
    readout = net.readout.weight.detach().clone()
    others = sum(_bits(value) for name, value in weights.items() if name != READOUT)
    for _ in range(sweeps):
        if not _swept(readout, features, labels, others):
            break
    return {name: value.float().cpu() for name, value in weights.items()} | {READOUT: readout}


def change_errors(readout: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Errors after each weight was moved by −1 and by +1, (2, classes, features)."""
    scores, columns = features @ readout.T, features.T.contiguous()
    reach = features.abs().amax(dim=1)  # no step along a feature goes further
    errors = torch.empty(2, *readout.shape, dtype=torch.int64)
    for own in range(CLASSES):
        others = scores.clone()
        others[:, own] = -torch.inf
        best, winner = others.max(dim=1)
        lacking = best - scores[:, own]
        mine, theirs = labels == own, (winner == labels) & (labels != own)
        lost = int((~mine & ~theirs).sum()) + int((mine & (lacking > reach)).sum())
        mine, theirs = mine & (lacking.abs() <= reach), theirs & (lacking < reach)
        for index, step in enumerate((-1.0, 1.0)):
            missed = (step * columns[:, mine] <= lacking[mine]).sum(dim=1)
            taken = (step * columns[:, theirs] > lacking[theirs]).sum(dim=1)
            errors[index, own] = lost + missed + taken
    return errors


def _swept(readout: Tensor, features: Tensor, labels: Tensor, others: float) -> bool:
    """Make the best changes, at most one for each class; whether there was one."""
    errors = change_errors(readout, features, labels)
    score = _score(features @ readout.T, readout, labels, others)
    tried: list[tuple[float, int, int, float]] = []
    for index, step in enumerate((-1.0, 1.0)):
        moved = readout + step
        for grown in (True, False):
            allowed = (moved.abs() <= 1) & ((moved != 0) == grown)
            counts = errors[index].masked_fill(~allowed, len(labels) + 1).flatten()
            for place in counts.argsort()[:BEST_FEW].tolist():
                if counts[place] <= len(labels):
                    tried.append((float(counts[place]), place // readout.shape[1], place % readout.shape[1], step))
    used: set[int] = set()
    for _, row, column, step in sorted(tried):
        if row in used:
            continue
        readout[row, column] += step
        now = _score(features @ readout.T, readout, labels, others)
        if now < score:
            score = now
            used.add(row)
        else:
            readout[row, column] -= step
    return bool(used)


def _score(outputs: Tensor, readout: Tensor, labels: Tensor, others: float) -> float:
    """An upper bound of the error rate, by Chernoff's inequality: fast, and in the order of the exact one."""
    rate = float((outputs.argmax(dim=1) != labels).double().mean())
    return chernoff(rate, (others + _bits(readout)) * math.log(2) / len(labels))


def chernoff(rate: float, divergence: float) -> float:
    """The largest p with kl(rate, p) ≤ divergence."""
    low, high = rate, 1 - 1e-12
    for _ in range(50):
        middle = (low + high) / 2
        first = rate * math.log(rate / middle) if rate else 0.0
        second = (1 - rate) * math.log((1 - rate) / (1 - middle)) if rate < 1 else 0.0
        low, high = (low, middle) if first + second > divergence else (middle, high)
    return low


def _bits(weights: Tensor) -> float:
    """log₂ of the number of ternary matrices with as many nonzeros, and of the possible numbers."""
    entries, nonzeros = weights.numel(), int(weights.count_nonzero())
    supports = math.lgamma(entries + 1) - math.lgamma(nonzeros + 1) - math.lgamma(entries - nonzeros + 1)
    return math.log2(entries + 1) + supports / math.log(2) + nonzeros


@torch.no_grad()
def _features(net: ShortNetwork, train: Data) -> Tensor:
    """What the read-out sees of each sample, and a one for the bias."""
    batches = train.inputs.cpu().split(BATCH)
    features = torch.cat([net.readout.features(net.stages(net.stem(prepared(batch)))) for batch in batches])
    return torch.cat([features, torch.ones(len(features), 1)], dim=1)
