"""The training loop classifies by SGD or AdamW, resumes to the bit, and holds masks, on one device or many."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, AdamW, Optimizer

from tamis.artifact import Masks
from tamis.errors import InvalidInput, TrainingDiverged
from tamis.graph import SeenSamples, remember
from tamis.progress import Listener, reporting
from tamis.settings import as_plain_int, as_plain_ints, is_int, require
from tamis.training.augmentation import crop_and_flip
from tamis.training.checkpoint import RunDirectory
from tamis.training.constraint import Constraint
from tamis.training.data import Data
from tamis.training.distributed import Team, device_of, join_team, training_device
from tamis.training.evaluation import EVALUATION_BATCH, count_correct, eval_mode
from tamis.training.model_check import check_fits, check_smallest_step
from tamis.training.origin import describe_origin
from tamis.training.randomness import derive_seed, fork_randomness, seed_global_generators
from tamis.training.settings import Settings, learning_rate_at


@dataclass(frozen=True)
class Epoch:
    """An `Epoch` holds the figures of one epoch of training.

    `epoch` counts from 1: it is the number of epochs trained by then. `loss` and `accuracy` are means over the training
    data as the epoch went through it, augmentation and dropout included; `learning_rate` is that of the first step.
    """

    epoch: int
    loss: float
    accuracy: float
    test_accuracy: float | None
    learning_rate: float
    seconds: float

    @property
    def reported_accuracy(self) -> float:
        """Return the accuracy on the test data, or on the training data where there is no test data."""
        return self.accuracy if self.test_accuracy is None else self.test_accuracy


@dataclass(frozen=True)
class Trained:
    """A `Trained` holds a trained copy of a model, in eval mode on the original's device, and each epoch's figures."""

    model: nn.Module
    history: tuple[Epoch, ...]


def train(
    model: nn.Module,
    data: Data,
    settings: Settings,
    *,
    test: Data | None = None,
    masks: Masks | None = None,
    constraint: Constraint | None = None,
    directory: str | Path | None = None,
    first_epoch: int = 0,
    keep: Sequence[int] = (),
    device: str | torch.device | None = None,
    progress: Listener = True,
) -> Trained:
    """Train a copy of a model to classify, by the mean cross-entropy over batches; the model itself is not changed.

    With a `directory`, each epoch ends with a checkpoint there. The same call goes on from it after whatever broke it
    off, with the same weights and figures to the last bit as if nothing had (on CUDA, as far as its kernels repeat
    themselves), and returns at once when training was finished. The weights that the model comes with are then of no
    account. A call with other settings, other content of the data or other modules is refused there, and so is a second
    training while the first is at work.

    Order, augmentation and dropout are drawn anew for each epoch from `settings.seed` and the epoch, and the caller's
    random state is put back. The learning rate is set before each step, to that of the step's beginning.

    Every module of the copy is in train mode while it is trained, those too that the caller had put in eval mode:
    `requires_grad_(False)` keeps weights as they are, but the statistics of a batch-norm move.

    What does not fit is refused before anything is written: inputs that the model does not take, fewer scores than
    classes, a last step on one example where batch-norm cannot have it, augmentation of what is no image.

    The model that comes out remembers the samples it was trained on, by digests, and so do the networks and files that
    are made of it: `tamis.certify` refuses them as held-out data.

    Under `torchrun` the processes share each batch, and the steps are those of one process with the whole batch, but
    for batch-norm, whose statistics are over each process' share, and for augmentation and dropout, which every process
    draws on its own. The first process writes and reports; all of them must see the directory.

    Args:
        model: any module that takes `data`'s inputs and returns a score for each class.
        data: what to train on; it is moved to the device once.
        settings: see `Settings`.
        test: measured after each epoch.
        masks: weights that are pruned; they are zero from the first step to the last.
        constraint: what weights satisfy after every step, such as `tamis.l1inf.L1InfConstraint`.
        directory: where to leave checkpoints and kept weights; made if it is not there.
        first_epoch: how many epochs the model has been trained already: training does the rest of `settings.epochs`.
        keep: epochs after which the weights are written for `load_epoch_weights`; 0 for those before the first.
        device: where to train; None for where the model is.
        progress: True, False, or a function of a `Progress` (see `tamis.progress`), called after each epoch.

    Example:
        >>> from tamis.training import load_data
        >>> model, data = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), load_data("digits[:60]")
        >>> trained = train(model, data, Settings(epochs=3, batch=30), first_epoch=1, progress=False)  # rewound
        >>> [epoch.epoch for epoch in trained.history]
        [2, 3]
    """
    # Plain integers: a number of numpy or torch would be written to a checkpoint that then cannot be read.
    first_epoch, keep = as_plain_int(first_epoch), as_plain_ints(keep)
    _check_arguments(model, settings, directory, first_epoch, keep)
    team = join_team(training_device(model, device))
    # Everything that can refuse the arguments comes before the directory is touched.
    training = TrainingRun(model, data, test, settings, constraint, team)
    # Without a directory nothing is compared, and digests of all the data would be computed for nothing.
    origin = {} if directory is None else describe_origin(model, data, test, settings, first_epoch, constraint)
    run_directory = RunDirectory(directory, keep, origin, masks, team)
    # What is entered first is left last: the directory stays locked until everything else has ended.
    with ExitStack() as stack:
        stack.enter_context(run_directory.lock())
        history = [Epoch(**record) for record in run_directory.resume(training.model, training.optimizer)]
        begin = history[-1].epoch if history else first_epoch
        _check_same_epoch(begin, team)
        # Only now: a checkpoint's weights come in first, and the masks then zero what they prune.
        if masks is not None:
            stack.callback(masks.hold(training.model, training.optimizer).release)
        # Each epoch seeds the global generators; the caller's state comes back in the end.
        stack.enter_context(fork_randomness(team.device))
        report = stack.enter_context(reporting(progress if team.leads else False, "training", settings.epochs))
        # Only before the first epoch; a training that goes on has weights of a later one.
        if not history:
            run_directory.save_weights(first_epoch, training.model)
        for epoch in range(begin + 1, settings.epochs + 1):
            history.append(training.run_epoch(epoch))
            # Written before it is reported: whoever hears of an epoch may rely on its checkpoint.
            run_directory.write(epoch, training.model, training.optimizer, [asdict(record) for record in history])
            report(epoch, **_list_progress_figures(history[-1], masks))
    # Outside of the lock: nothing is written any more.
    result = training.result(device_of(model))
    remember(result, SeenSamples.of(data.sample_digests, "training"))
    return Trained(result, tuple(history))


class TrainingRun:
    """A training run trains a copy of a model one epoch at a time; epochs count from 1."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        test: Data | None,
        settings: Settings,
        constraint: Constraint | None,
        team: Team,
    ) -> None:
        on_cuda = team.device.type == "cuda"
        self.settings, self.team = settings, team
        # All of it, once: a copy of each batch would make a GPU wait.
        self.data = data.to(team.device)
        self.test = None if test is None else test.to(team.device)
        images = data.inputs.dim() == 4
        # Convolutions on CUDA are fastest with channels last; on a CPU the other layout is.
        self.layout = torch.channels_last if on_cuda and images else torch.contiguous_format
        # A copy, so that the caller's model keeps its weights, its mode and its device.
        self.model = _set_layout(copy.deepcopy(model).to(team.device), self.layout)
        # bfloat16 has the range of float32, so that gradients need no scaling, as float16 would.
        self.autocast = torch.autocast(team.device.type, torch.bfloat16, enabled=settings.amp and on_cuda)
        self._check_fits()
        # After the copy and the move: an optimizer holds the parameters themselves, and those of the caller are others.
        optimizer = _make_optimizer(self.model, settings)
        self.optimizer = optimizer if constraint is None else constraint.wrap(optimizer, self.model)
        self.parallel = team.wrap(self.model)  # after the optimizer: DDP hooks into the parameters that it steps

    def _check_fits(self) -> None:
        if self.settings.augment and self.data.inputs.dim() != 4:
            raise InvalidInput(
                f"augment=True crops and flips images N×C×H×W, but the inputs of '{self.data.name}' have shape "
                f"{tuple(self.data.inputs.shape)}; train them with augment=False"
            )
        if self.test is not None:
            check_fits(self.model, self.test)
        with self.autocast:  # as in training, but not in testing
            check_fits(self.model, self.data)
            check_smallest_step(self.model, self.data, self.settings.batch, self.team.size)

    def run_epoch(self, epoch: int) -> Epoch:
        """Go through the data once, and return the figures of the epoch."""
        began, settings, team = time.perf_counter(), self.settings, self.team
        # All seeds depend on the epoch and not on what was drawn before, so that a resumed run draws the same numbers.
        seed_global_generators(derive_seed(settings.seed, epoch, "global", team.rank), team.device)
        # The order is the same in all processes, which share each batch; augmentation and dropout differ by rank.
        order = torch.Generator().manual_seed(derive_seed(settings.seed, epoch, "order"))
        # Drawn on the CPU, so that a seed means the same order on every device.
        batches = torch.randperm(len(self.data), generator=order).to(team.device).split(settings.batch)
        noise = torch.Generator(team.device).manual_seed(derive_seed(settings.seed, epoch, "augment", team.rank))
        totals = torch.zeros(2, dtype=torch.float64, device=team.device)  # read once: on CUDA reading is waiting
        self.parallel.train()
        for step, batch in enumerate(batches):
            # Set anew for each step, from the epoch alone: a schedule with a state of its own would have to be written
            # and read.
            rate = learning_rate_at(settings, epoch - 1 + step / len(batches))
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            totals += self._step(batch, noise)
        # Each process has normalised its own part of every batch: the running means of the first are those of all.
        team.broadcast_buffers(self.model)
        loss, accuracy = (team.summed(totals) / len(self.data)).tolist()
        rate = learning_rate_at(settings, epoch - 1)
        self._check_finite(loss, epoch, rate)
        return Epoch(epoch, loss, accuracy, self._measure_test_accuracy(), rate, time.perf_counter() - began)

    def _step(self, batch: Tensor, noise: torch.Generator) -> Tensor:
        """Take one step on a batch, and return this process' sums of the loss and of correct answers."""
        # Every process draws the same order, and takes its own part of it.
        mine, counts = self.team.share(batch)
        inputs, labels = self.data.batch(mine)
        if self.settings.augment:
            inputs = crop_and_flip(inputs, noise)
        with self.autocast:
            scores = self.parallel(inputs.contiguous(memory_format=self.layout))
            # A process without a share of the batch computes on a sample that counts 0: DDP waits for every process.
            loss = counts * F.cross_entropy(scores, labels, reduction="sum")
        self.optimizer.zero_grad()
        # DDP averages over processes, whose shares may differ: this way the average is the mean over the whole batch.
        (loss * (self.team.size / len(batch))).backward()
        self.optimizer.step()
        right = counts * (scores.argmax(1) == labels).sum()
        return torch.stack([loss.detach(), right])

    def _check_finite(self, loss: float, epoch: int, rate: float) -> None:
        """Raise TrainingDiverged for a loss or weights that are not finite, before they are written anywhere."""
        weights = dict(self.model.named_parameters())
        # One question for all weights: each that is asked by itself makes a GPU wait.
        finite = torch.stack([weight.isfinite().all() for weight in weights.values()]).tolist()
        broken = [name for name, fine in zip(weights, finite, strict=True) if not fine]
        if not math.isfinite(loss) or broken:
            what = f"'{broken[0]}' is not finite" if math.isfinite(loss) else f"the loss is {loss}"
            raise TrainingDiverged(
                f"training diverged in epoch {epoch} of {self.settings.epochs}, begun at learning rate {rate:g}: "
                f"{what}. What was written after earlier epochs is still there; try a smaller learning rate or a warmup"
            )

    def _measure_test_accuracy(self) -> float | None:
        if self.test is None:
            return None
        # Parts without overlap. A `DistributedSampler` would repeat samples to make them equal, and count those twice.
        everything = torch.arange(len(self.test), device=self.team.device)
        mine = everything.tensor_split(self.team.size)[self.team.rank]
        with eval_mode(self.model):
            right = count_correct(self.model, self.test, mine, EVALUATION_BATCH)
        return int(self.team.summed(right)) / len(self.test)

    def result(self, device: torch.device) -> nn.Module:
        """Return a copy on a device, without the hooks of DDP and without gradients."""
        return _set_layout(copy.deepcopy(self.model).to(device), torch.contiguous_format).eval()


def _set_layout(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    return model.to(memory_format=layout)  # type: ignore[call-overload]


def _make_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    rate, decay, momentum = settings.learning_rate, settings.weight_decay, settings.momentum
    if settings.optimizer == "sgd":
        return SGD(model.parameters(), rate, momentum=momentum, weight_decay=decay)
    # `momentum` is β₁ here.
    return AdamW(model.parameters(), rate, betas=(momentum, 0.999), weight_decay=decay)


def _list_progress_figures(epoch: Epoch, masks: Masks | None) -> dict[str, float]:
    figures = {"loss": epoch.loss, "accuracy": epoch.reported_accuracy, "learning_rate": epoch.learning_rate}
    return figures if masks is None else {**figures, "sparsity": masks.sparsity}


# -- arguments -----------------------------------------------------------------------------------------------------


def _check_arguments(
    model: nn.Module, settings: Settings, directory: str | Path | None, first_epoch: int, keep: Sequence[int]
) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidInput(f"{type(model).__name__} has no parameter to train (one with requires_grad)")
    lazy = [name for name, value in chain(model.named_parameters(), model.named_buffers()) if is_lazy(value)]
    if lazy:
        raise InvalidInput(
            f"'{lazy[0]}' of {type(model).__name__} has no shape yet, because its module is lazy; run the model on an "
            "input first: model(data.example)"
        )
    right = is_int(first_epoch, least=0) and first_epoch < settings.epochs
    require("first_epoch", first_epoch, f"a whole number from 0 to {settings.epochs - 1}", right)
    require("keep", keep, "a sequence of epochs, such as (5,)", isinstance(keep, tuple))
    right = all(is_int(epoch, least=first_epoch) and epoch <= settings.epochs for epoch in keep)
    require("keep", keep, f"epochs from {first_epoch} to {settings.epochs}", right)
    if keep and directory is None:
        raise InvalidInput(f"to keep the weights of epochs {keep} give a directory to write them to")
    # As `get_extra_state` may return; checkpoints hold tensors alone.
    other = {name: value for name, value in model.state_dict().items() if not isinstance(value, Tensor)}
    if other and directory is not None:
        name, value = next(iter(other.items()))
        raise InvalidInput(
            f"'{name}' in the state of {type(model).__name__} is no tensor but of type {type(value).__name__}, which "
            "checkpoints do not hold; train without a directory"
        )


def _check_same_epoch(begin: int, team: Team) -> None:
    """Raise InvalidInput where processes begin at different epochs: they would wait for each other forever."""
    earliest, latest = team.extremes(begin)
    if earliest != latest:
        raise InvalidInput(
            f"process {team.rank} of {team.size} would go on after epoch {begin}, but the team's are {earliest} to "
            f"{latest}: the directory must be one that all of them see"
        )
