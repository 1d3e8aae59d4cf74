"""What two networks do on the same inputs, sample by sample: one pass of each, and everything measured on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tamis.certificates.samples import Batch, Fingerprint, Inputs, batches_of
from tamis.certificates.schema import LARGEST_FLOAT
from tamis.errors import InvalidInput
from tamis.graph import Array, Network, sample_digests

# How far outputs may be off on another machine, relative to how large they are.
LARGEST_OUTPUT = LARGEST_FLOAT / 10  # so that a certificate can hold how far two outputs are apart, too
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2**-8, torch.bfloat16: 2**-5}


class Team(Protocol):
    """Processes that share the work; `tamis.training.distributed.Team` is one."""

    @property
    def rank(self) -> int:
        """Which of them this is."""

    @property
    def size(self) -> int:
        """How many they are."""

    @property
    def device(self) -> torch.device:
        """Where this one has what they sum up."""

    def summed(self, figures: Tensor) -> Tensor:
        """The sum over all of them."""


class Alone:
    """A team of one."""

    rank, size, device = 0, 1, torch.device("cpu")

    def summed(self, figures: Tensor) -> Tensor:
        """What there is."""
        return figures


@dataclass(frozen=True)
class Evidence:
    """What was measured; tensors have one entry for each sample.

    Rounding differs between machines. Where the best two scores of a network are closer than a few times the rounding
    of their range, another machine may see another answer: such an answer is in doubt, and claims count it as the worse
    of the two. `width` says how many times the rounding; 0 takes the answers as they are.

    Where samples were given several times, as many count as there are distinct inputs, and of all that were given the
    worst: those that count against the small network stay, as often as they came, and the best are left out. What
    follows then holds if the copies are one draw that somebody repeated, and also if they are many draws from a
    distribution that has few values, for a bound from all draws, or from the distinct ones, is never larger. (But for
    one case: the bound of a change of accuracy from 15 samples or fewer may be smaller than one from more, by 0.0071.)

    Attributes:
        samples: how many count.
        given: how many there are.
        digests: of the samples that were given.
        inputs, labels: the sha256 of the data; of labels None where there are none.
        first: the first inputs, where the network is.
        largest_input: the largest magnitude of an entry of an input.
        largest_score: the largest magnitude of an output of either network.
        distances: ‖R_θ(x) − R_θ'(x)‖_∞.
        answers: of the original and of the small network; zeros where the outputs are not scores of classes.
        margins: by how much the best score is above the second, as a part of their range, of both networks.
        known: the labels, if there are any.
        rounding: how far outputs may be off on another machine, relative to how large they are.
    """

    samples: int
    given: int
    digests: Array
    inputs: str
    labels: str | None
    first: tuple[Tensor, ...]
    largest_input: float
    largest_score: float
    distances: Tensor
    answers: tuple[Tensor, Tensor]
    margins: tuple[Tensor, Tensor]
    known: Tensor | None
    rounding: float

    def different(self, width: float) -> int:
        """In how many samples the answers differ, or may."""
        return self._worst((self.answers[0] != self.answers[1]) | self._doubtful(width))

    def errors(self, width: float) -> int:
        """In how many samples the small network is wrong, or may be."""
        return self._worst(self._wrong(1) | self._in_doubt(1, width))

    def right(self, network: int, width: float = 0) -> tuple[int, int]:
        """In how many of the samples given the original (0) or the small network (1) is right: at least, and at most.

        Both are the same where no answer is in doubt; for `width` 0, always.
        """
        right, doubtful = ~self._wrong(network), self._in_doubt(network, width)
        return int((right & ~doubtful).sum()), int((right | doubtful).sum())

    def most_frequent(self) -> int:
        """In how many of the samples given the class is the most frequent one."""
        assert self.known is not None
        return int(self.known.bincount().max())

    def worse(self, width: float) -> int:
        """In how many samples the small network alone is wrong, or may be."""
        return self._worst((self._wrong(1) & ~self._wrong(0)) | self._doubtful(width))

    def better(self, width: float) -> int:
        """In how many samples the original alone is wrong, beyond doubt."""
        found = int((self._wrong(0) & ~self._wrong(1) & ~self._doubtful(width)).sum())
        return max(0, min(found - (self.given - self.samples), self.samples - self.worse(width)))

    def largest_distances(self) -> Tensor:
        """Those that count."""
        return self.distances.topk(self.samples).values if self.samples < self.given else self.distances

    def _worst(self, bad: Tensor) -> int:
        """How many of the samples that count are bad, the best ones being left out."""
        return min(self.samples, int(bad.sum()))

    def _wrong(self, network: int) -> Tensor:
        assert self.known is not None
        return self.answers[network] != self.known

    def _doubtful(self, width: float) -> Tensor:
        """Where one of the answers is in doubt; outputs that are the same are the same everywhere."""
        return (self._in_doubt(0, width) | self._in_doubt(1, width)) & (self.distances > 0)

    def _in_doubt(self, network: int, width: float) -> Tensor:
        return self.margins[network] < 2 * width * self.rounding


class _Measured(NamedTuple):
    """Of some samples; zero in a process that left them to another, so that sums over the team are whole."""

    figures: Tensor  # (5, samples) float64: distance, largest score, largest input, margins of both
    answers: Tensor  # (2, samples) int64: the original's, the small network's


def gather_evidence(
    original: Network,
    small: Network,
    inputs: Inputs,
    labels: Any = None,
    called: str = "inputs",
    keep: int = 1,
    team: Team | None = None,
    report: Callable[[int], None] = lambda samples: None,
    needs_labels: str | None = None,
) -> Evidence:
    """Run both networks on all samples.

    Args:
        original: before.
        small: after; the same graph.
        inputs, labels, called: as `batches_of` takes them.
        keep: how many of the first inputs to keep.
        team: if given, each process runs its share of the batches; all of them must be given the same data.
        report: told how many samples are done.
        needs_labels: what labels are needed for, as messages say it; None: they are not.

    Raises:
        InvalidInput: something is wrong with the data, or an output is not finite.
    """
    team = team or Alone()
    fingerprint, measured, known, first = Fingerprint(), [], [], []
    digests: list[Array] = []
    samples, rounding = 0, 0.0
    for number, batch in enumerate(batches_of(inputs, labels, original, called)):
        if batch.labels is not None:
            _check_labels(batch.labels, original, called)
        elif needs_labels is not None:
            raise InvalidInput(f"{called} has no labels, which {needs_labels} needs")
        if samples < keep:
            # Copies: a loader may fill the same tensor with the next batch.
            first.append(tuple(value[: keep - samples].clone() for value in batch.inputs))
        if number % team.size == team.rank:
            found, rounding = _measure(original, small, batch, f"{called}: sample {samples:,}")
        else:
            found = _left_to_another(batch.samples)
        measured.append(found)
        fingerprint.add(batch)
        digests.append(sample_digests(batch.inputs, original.input_dtypes))
        known.append(batch.labels)
        samples += batch.samples
        report(samples)
    every = _all_labels(known, called)
    _check_same_data(team, samples, fingerprint, called)
    whole = (torch.cat(parts, 1).to(team.device) for parts in zip(*measured, strict=True))
    figures, answers = (team.summed(part).cpu() for part in whole)
    return Evidence(
        samples=len(np.unique(np.concatenate(digests))),
        given=samples,
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
    """How many classes a network has scores for; None where its output is something else."""
    if len(net.output_names) != 1:
        return None
    shape = next((node.shape for node in net.nodes if node.name == net.output_names[0]), None)
    return shape[1] if shape is not None and len(shape) == 2 and shape[1] > 1 else None


def outputs_of(net: Network, inputs: tuple[Tensor, ...], called: str) -> Tensor:
    """All outputs of each sample side by side, in float64.

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
    before, after = outputs_of(original, inputs, "original"), outputs_of(small, inputs, "small")
    for name, outputs in (("original", before), ("small", after)):
        wrong = (~(outputs.abs() <= LARGEST_OUTPUT)).any(1).nonzero()
        if len(wrong):
            worst = float(outputs[int(wrong[0])].abs().max())
            what = f"{worst:.3g}, too large for a certificate" if math.isfinite(worst) else "not finite"
            raise InvalidInput(f"{first} + {int(wrong[0])}: an output of the {name} network is {what}")
    entries = torch.stack([value.reshape(len(value), -1).double().abs().amax(1) for value in inputs]).amax(0)
    scores = torch.maximum(before.abs().amax(1), after.abs().amax(1))
    margins, answers = [torch.zeros_like(scores)] * 2, [torch.zeros_like(scores, dtype=torch.int64)] * 2
    if classes_of(original) is not None:
        margins, answers = [_margin(before), _margin(after)], [before.argmax(1), after.argmax(1)]
    figures = torch.stack([(before - after).abs().amax(1), scores, entries, *margins])
    return _Measured(figures.cpu(), torch.stack(answers).cpu()), _rounding(original)


def _margin(outputs: Tensor) -> Tensor:
    """By how much the best score is above the second, as a part of the range of the scores."""
    best, second = outputs.topk(2, dim=1).values.unbind(1)
    scale = outputs.amax(1) - outputs.amin(1)
    return torch.where(scale > 0, (best - second) / scale, 0.0)


def _rounding(net: Network) -> float:
    """That of the coarsest floats among inputs and parameters."""
    floats = [value.dtype for value in net.params.values() if value.is_floating_point()]
    floats += [dtype for dtype in net.input_dtypes if dtype.is_floating_point]
    return max((ROUNDING.get(dtype, 2**-5) for dtype in floats), default=ROUNDING[torch.float32])


def _left_to_another(samples: int) -> _Measured:
    return _Measured(torch.zeros(5, samples, dtype=torch.float64), torch.zeros(2, samples, dtype=torch.int64))


def _check_same_data(team: Team, samples: int, fingerprint: Fingerprint, called: str) -> None:
    """Processes that were given different data would hang, or add up what does not belong together."""
    mine = torch.tensor([samples, int(fingerprint.inputs[:8], 16), int(fingerprint.labels[:8], 16)], device=team.device)
    if not torch.equal(team.summed(mine), mine * team.size):
        raise InvalidInput(
            f"{called}: the processes were given different data; give each of them all, in the same order"
        )


def _all_labels(parts: list[Tensor | None], called: str) -> Tensor | None:
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
