"""A search over the read-out: every change of one ternary weight is weighed by its true training errors.

For a change of one weight of class r by ±1, the errors follow without running the network: class r wins a sample if the
step along that feature exceeds what r lacks there. So all changes are counted in two comparisons of the features.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from experiments.short_codes_network import CLASSES

BEST_FEW = 8  # changes of each kind that are tried after a count


def change_errors(readout: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Return errors after each weight was moved by −1 and by +1, (2, classes, features).

    Args:
        readout: the weights, (classes, features).
        features: what they combine, of each sample; for the bias, a one.
        labels: of the samples.
    """
    scores, columns = features @ readout.T, features.T.contiguous()
    reach = features.abs().amax(dim=1)  # no step along a feature goes further
    errors = torch.empty(2, *readout.shape, dtype=torch.int64, device=readout.device)
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


def sweep(readout: Tensor, features: Tensor, labels: Tensor, others: float) -> bool:
    """Make the best changes of a read-out, at most one for each class; whether there was one.

    Args:
        readout: its weights, which are changed.
        features, labels: of the training set, as `change_errors` takes them.
        others: the bits of all other weights.
    """
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
    """Return an upper bound of the error rate, by Chernoff's inequality: fast, and in the order of the exact one."""
    rate = float((outputs.argmax(dim=1) != labels).double().mean())
    return chernoff(rate, (others + code_bits(readout)) * math.log(2) / len(labels))


def chernoff(rate: float, divergence: float) -> float:
    """Return the largest p with kl(rate, p) ≤ divergence, rounded up."""
    low, high = rate, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        first = rate * math.log(rate / middle) if rate else 0.0
        second = (1 - rate) * math.log((1 - rate) / (1 - middle)) if rate < 1 else 0.0
        # Only what is proved to be too far away ends the search: rounding is less than this.
        low, high = (low, middle) if first + second > divergence + 1e-12 else (middle, high)
    return high


def code_bits(weights: Tensor) -> float:
    """Compute log₂ of the number of ternary matrices with as many nonzeros, and of the possible numbers."""
    entries, nonzeros = weights.numel(), int(weights.count_nonzero())
    supports = math.lgamma(entries + 1) - math.lgamma(nonzeros + 1) - math.lgamma(entries - nonzeros + 1)
    return math.log2(entries + 1) + supports / math.log(2) + nonzeros
