"""What two networks do on the same inputs, sample by sample: one pass of each, and everything measured on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tamis.certify.samples import Batch, Fingerprint, Inputs, batches_of
from tamis.errors import InvalidInput
from tamis.graph.network import Network

# How far a score may be off on another machine, relative to the largest: float32 rounds at 6e-8, and layers add up.
ROUNDING = 1e-4


class Team(Protocol):
    """Processes that share the work; `tamis.train.distributed.Team` is one."""

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

    Attributes:
        samples: how many.
        inputs, labels: the sha256 of the data; of labels None where there are none.
        largest_input: the largest magnitude of an entry of an input.
        largest_score: the largest magnitude of an output of either network.
        largest_outputs: the largest ‖R_θ(x)‖₁ + ‖R_θ'(x)‖₁.
        distances: ‖R_θ(x) − R_θ'(x)‖_∞.
        different: where the answers differ; None where the outputs are not scores of classes.
        original_wrong, small_wrong: where an answer is not the label; None where there are no labels.
        undecided: in how many samples rounding may decide one of the answers.
    """

    samples: int
    inputs: str
    labels: str | None
    largest_input: float
    largest_score: float
    largest_outputs: float
    distances: Tensor
    different: Tensor | None
    original_wrong: Tensor | None
    small_wrong: Tensor | None
    undecided: int


class _Measured(NamedTuple):
    """Of some samples; zero in a process that left them to another, so that sums over the team are whole."""

    figures: Tensor  # (4, samples) float64: distance, largest score, sum of ℓ¹-norms, largest input
    answers: Tensor  # (3, samples) int64: the original's, the small network's, whether rounding may decide one


def gather_evidence(
    original: Network,
    small: Network,
    inputs: Inputs,
    labels: Any = None,
    called: str = "inputs",
    team: Team | None = None,
    report: Callable[[int], None] = lambda samples: None,
) -> Evidence:
    """Run both networks on all samples.

    Args:
        original: before.
        small: after; the same graph.
        inputs, labels, called: as `batches_of` takes them.
        team: if given, each process runs its share of the batches; all of them must be given the same data.
        report: told how many samples are done.

    Raises:
        InvalidInput: something is wrong with the data, or an output is not finite.
    """
    team = team or Alone()
    fingerprint, measured, known = Fingerprint(), [], []
    samples = 0
    with torch.inference_mode():
        for number, batch in enumerate(batches_of(inputs, labels, original, called)):
            mine = number % team.size == team.rank
            first = f"{called}: sample {samples:,}"
            measured.append(_measure(original, small, batch, first) if mine else _left_to_another(len(batch)))
            fingerprint.add(batch)
            known.append(batch.labels)
            samples += len(batch)
            report(samples)
        whole = (torch.cat(parts, 1).to(team.device) for parts in zip(*measured, strict=True))
        figures, answers = (team.summed(part).cpu() for part in whole)
    every = _all_labels(known, called)
    has_classes = classes_of(original) is not None
    if every is not None:
        _check_labels(every, original, called)
    distances, scores, norms, entries = figures
    before, after = answers[0], answers[1]
    return Evidence(
        samples=samples,
        inputs=fingerprint.inputs,
        labels=None if every is None else fingerprint.labels,
        largest_input=float(entries.max()),
        largest_score=float(scores.max()),
        largest_outputs=float(norms.max()),
        distances=distances,
        different=before != after if has_classes else None,
        original_wrong=None if every is None else before != every,
        small_wrong=None if every is None else after != every,
        undecided=int(answers[2].sum()),
    )


def classes_of(net: Network) -> int | None:
    """How many classes a network has scores for; None where its output is something else."""
    if len(net.output_names) != 1:
        return None
    shape = next((node.shape for node in net.nodes if node.name == net.output_names[0]), None)
    return shape[1] if shape is not None and len(shape) == 2 and shape[1] > 1 else None


def _measure(original: Network, small: Network, batch: Batch, first: str) -> _Measured:
    device = next((value.device for value in original.params.values()), None)
    inputs = tuple(value.to(device) for value in batch.inputs)
    before, after = _outputs(original, inputs), _outputs(small, inputs)
    for name, outputs in (("original", before), ("small", after)):
        wrong = (~torch.isfinite(outputs)).any(1).nonzero()
        if len(wrong):
            raise InvalidInput(f"{first} + {int(wrong[0])}: an output of the {name} network is not finite")
    entries = torch.stack([value.reshape(len(value), -1).abs().amax(1).double() for value in inputs]).amax(0)
    scores = torch.maximum(before.abs().amax(1), after.abs().amax(1))
    norms = before.abs().sum(1) + after.abs().sum(1)
    figures = torch.stack([(before - after).abs().amax(1), scores, norms, entries]).cpu()
    if classes_of(original) is None:
        return _Measured(figures, torch.zeros(3, len(batch), dtype=torch.int64))
    doubtful = _close(before, scores) | _close(after, scores)
    return _Measured(figures, torch.stack([before.argmax(1), after.argmax(1), doubtful.long()]).cpu())


def _left_to_another(samples: int) -> _Measured:
    figures, answers = torch.zeros(4, samples, dtype=torch.float64), torch.zeros(3, samples, dtype=torch.int64)
    return _Measured(figures, answers)


def _outputs(net: Network, inputs: tuple[Tensor, ...]) -> Tensor:
    """All outputs of each sample side by side, in float64."""
    leaves = pytree.tree_leaves(net(*inputs))
    return torch.cat([value.reshape(len(value), -1) for value in leaves], 1).double()


def _close(outputs: Tensor, scores: Tensor) -> Tensor:
    """Where the best two scores are no further apart than rounding could move them."""
    best, second = outputs.topk(2, dim=1).values.unbind(1)
    return best - second <= 2 * ROUNDING * scores


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
