"""One pass of both networks over the same samples measures everything that claims need."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph import Array, Network, sample_digests
from tamis.verification.evidence import Evidence
from tamis.verification.samples import Batch, Fingerprint, Samples, iterate_batches, quote_name
from tamis.verification.schema import LARGEST_FLOAT

LARGEST_OUTPUT = LARGEST_FLOAT / 10  # so that a certificate can hold how far two outputs are apart, too
# How far outputs may be off on another machine, relative to how large they are.
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}


class Team(Protocol):
    """Processes that share the work; `tamis.training.distributed.Team` is one."""

    @property
    def rank(self) -> int:
        """Return which of the processes this is."""

    @property
    def size(self) -> int:
        """Return how many processes there are."""

    @property
    def device(self) -> torch.device:
        """Return where this process has what they sum up."""

    def summed(self, figures: Tensor) -> Tensor:
        """Return the sum over all processes."""


class SingleProcess:
    """A team of one process, which has nothing to sum up with others."""

    rank, size, device = 0, 1, torch.device("cpu")

    def summed(self, figures: Tensor) -> Tensor:
        """Return the figures as they are."""
        return figures


class _Measured(NamedTuple):
    """What was measured of some samples; zeros in a process that left them to another, so that sums are whole."""

    figures: Tensor  # (5, samples) float64: distance, largest score, largest input, margins of both
    answers: Tensor  # (2, samples) int64: the original's, the small network's


def gather_evidence(
    original: Network,
    small: Network,
    samples: Samples,
    keep: int = 1,
    team: Team | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Evidence:
    """Run both networks on all samples.

    Args:
        original: before.
        small: after; the same graph.
        samples: the inputs, with their labels if there are any.
        keep: how many of the first inputs to keep.
        team: if given, each process runs its share of the batches; all of them must be given the same data.
        report: called with the number of samples that are done.

    Raises:
        InvalidInput: something is wrong with the data, or an output is not finite.
    """
    team, called = team or SingleProcess(), samples.called
    fingerprint, measured, known, first = Fingerprint(), [], [], []
    digests: list[Array] = []
    done, rounding = 0, 0.0
    for number, batch in enumerate(iterate_batches(samples.inputs, samples.labels, original, called)):
        if batch.labels is not None:
            _check_labels(batch.labels, original, called)
        elif samples.needs_labels is not None:
            raise InvalidInput(f"{called} has no labels, which {samples.needs_labels} needs")
        if done < keep:
            # Copies: a loader may fill the same tensor with the next batch.
            first.append(tuple(value[: keep - done].clone() for value in batch.inputs))
        # Every process reads, counts and hashes all batches, so that each can say what the data is; only the networks,
        # which take the time, are run by one of them for each batch.
        if number % team.size == team.rank:
            found, rounding = _measure(original, small, batch, f"{called}: sample {done:,}")
        else:
            found = _leave_to_another(batch.samples)
        measured.append(found)
        fingerprint.add(batch)
        digests.append(sample_digests(batch.inputs, original.input_dtypes))
        known.append(batch.labels)
        done += batch.samples
        report(done)
    every = _join_labels(known, called)
    _check_same_data(team, done, fingerprint, called)
    whole = (torch.cat(parts, 1).to(team.device) for parts in zip(*measured, strict=True))
    figures, answers = (team.summed(part).cpu() for part in whole)
    return Evidence(
        samples=len(np.unique(np.concatenate(digests))),
        given=done,
        digests=np.concatenate(digests),
        inputs=fingerprint.inputs,
        labels=None if every is None else fingerprint.labels,
        first=tuple(torch.cat(parts).to(original.device) for parts in zip(*first, strict=True)),
        largest_input=float(figures[2].max()),
        largest_score=float(figures[1].max()),
        distances=figures[0],
        answers=(answers[0], answers[1]),
        margins=(figures[3], figures[4]),
        known=every,
        rounding=rounding,
    )


def classes_of(net: Network) -> int | None:
    """Return how many classes a network has scores for; None where its output is something else."""
    if len(net.output_names) != 1:
        return None
    shape = next((node.shape for node in net.nodes if node.name == net.output_names[0]), None)
    return shape[1] if shape is not None and len(shape) == 2 and shape[1] > 1 else None


def compute_outputs(net: Network, inputs: tuple[Tensor, ...], called: str) -> Tensor:
    """Compute all outputs of each sample, side by side, in float64.

    Raises:
        InvalidInput: torch cannot compute them; `called` says of which network.
    """
    try:
        return net.flat_outputs(*inputs)
    except (RuntimeError, IndexError) as error:
        shapes = ", ".join(str(tuple(value.shape)) for value in inputs)
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InvalidInput(f"the {called} network cannot be run on inputs of shape {shapes}: {reason:.300}") from error


@torch.inference_mode()
def _measure(original: Network, small: Network, batch: Batch, first: str) -> tuple[_Measured, float]:
    inputs = tuple(value.to(original.device) for value in batch.inputs)
    before, after = compute_outputs(original, inputs, "original"), compute_outputs(small, inputs, "small")
    for name, outputs in (("original", before), ("small", after)):
        # Negated, so that NaN, which no comparison holds for, is refused as well.
        wrong = (~(outputs.abs() <= LARGEST_OUTPUT)).any(1).nonzero()
        if len(wrong):
            worst = float(outputs[int(wrong[0])].abs().max())
            what = f"{worst:.3g}, too large for a certificate" if math.isfinite(worst) else "not finite"
            raise InvalidInput(f"{first} + {int(wrong[0])}: an output of the {name} network is {what}")
    entries = torch.stack([value.reshape(len(value), -1).double().abs().amax(1) for value in inputs]).amax(0)
    scores = torch.maximum(before.abs().amax(1), after.abs().amax(1))
    margins, answers = [torch.zeros_like(scores)] * 2, [torch.zeros_like(scores, dtype=torch.int64)] * 2
    if classes_of(original) is not None:
        margins, answers = [_compute_margin(before), _compute_margin(after)], [before.argmax(1), after.argmax(1)]
    figures = torch.stack([(before - after).abs().amax(1), scores, entries, *margins])
    return _Measured(figures.cpu(), torch.stack(answers).cpu()), _find_rounding(original)


def _compute_margin(outputs: Tensor) -> Tensor:
    """Return by how much the best score is above the second, as a part of the range of the scores."""
    best, second = outputs.topk(2, dim=1).values.unbind(1)
    scale = outputs.amax(1) - outputs.amin(1)
    return torch.where(scale > 0, (best - second) / scale, 0.0)


def _find_rounding(net: Network) -> float:
    """Return the rounding of the coarsest floats among inputs and parameters."""
    floats = [value.dtype for value in net.params.values() if value.is_floating_point()]
    floats += [dtype for dtype in net.input_dtypes if dtype.is_floating_point]
    return max((ROUNDING.get(dtype, 2**-5) for dtype in floats), default=ROUNDING[torch.float32])


def _leave_to_another(samples: int) -> _Measured:
    return _Measured(torch.zeros(5, samples, dtype=torch.float64), torch.zeros(2, samples, dtype=torch.int64))


def _check_same_data(team: Team, samples: int, fingerprint: Fingerprint, called: str) -> None:
    """Raise InvalidInput where processes were given different data: their sums would mix different samples."""
    mine = torch.tensor([samples, int(fingerprint.inputs[:8], 16), int(fingerprint.labels[:8], 16)], device=team.device)
    if not torch.equal(team.summed(mine), mine * team.size):
        raise InvalidInput(
            f"{called}: the processes were given different data; give each of them all, in the same order"
        )


def _join_labels(parts: list[Tensor | None], called: str) -> Tensor | None:
    given = [part.cpu() for part in parts if part is not None]
    if given and len(given) < len(parts):
        raise InvalidInput(f"{called}: {len(given)} of {len(parts)} batches have labels; all must have them, or none")
    return torch.cat(given) if given else None


def _check_labels(labels: Tensor, net: Network, called: str) -> None:
    classes = classes_of(net)
    if classes is None:
        raise InvalidInput(
            f"{called}: labels need a network with one score for each class, and {net!r} has other outputs; "
            "leave the labels out"
        )
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or most >= classes:
        raise InvalidInput(f"{called}: labels go from {least} to {most}, the network has classes 0 to {classes - 1}")


def gather_training_evidence(
    original: Network,
    small: Network,
    training: Any,
    team: Team | None = None,
    report: Callable[[int], None] = lambda samples: None,
) -> Evidence | None:
    """Run both networks on the training data; return None where there is none.

    Args:
        original, small, team, report: as `gather_evidence` takes them.
        training: data that brings its labels, or a pair of inputs and labels.
    """
    if training is None:
        return None
    pair = isinstance(training, tuple)
    if pair and len(training) != 2:
        raise InvalidInput(f"training must be data with labels, or a pair of inputs and labels; got {training!r:.80}")
    inputs, labels = training if pair else (training, None)
    called, why = quote_name(inputs, "training"), "the bound from the code length"
    samples = Samples(inputs, labels, called, needs_labels=why)
    return gather_evidence(original, small, samples, team=team, report=report)
