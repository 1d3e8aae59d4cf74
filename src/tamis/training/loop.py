"""The training loop: classification by SGD or AdamW, resumable to the bit, on one device or many, with masks held."""

from __future__ import annotations

import copy
import hashlib
import math
import operator
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, AdamW, Optimizer

from tamis.artifact import Masks
from tamis.errors import InvalidInput, TrainingDiverged
from tamis.graph import SeenSamples, remember
from tamis.progress import Listener, reporting
from tamis.training.augmentation import crop_and_flip
from tamis.training.checkpoint import DATA_CONTENT, Journal
from tamis.training.constraint import Constraint
from tamis.training.data import Data
from tamis.training.distributed import Team, device_of, join_team, training_device
from tamis.training.model_check import check_fits, check_smallest_step

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("cosine", "multistep")
MILESTONE_FACTOR = 0.1
EVALUATION_BATCH = 1000
LARGEST_BATCH = 2**63 - 1  # torch counts in 64 bits


@dataclass(frozen=True)
class Settings:
    """How to train.

    Args:
        epochs: how often training goes through the data, from the first epoch to the last.
        batch: examples per step, over all processes together.
        optimizer: "sgd" or "adamw".
        learning_rate: the largest one, from which the schedule goes down.
        momentum: of SGD; AdamW's β₁.
        weight_decay: of all parameters; decoupled from the gradient with AdamW.
        schedule: "cosine" down to 0, or "multistep": a tenth of it after each of `milestones`. See `learning_rate_at`.
        milestones: epochs, for "multistep".
        warmup_epochs: over so many epochs the learning rate first goes up linearly from 0.
        augment: crop and flip the training images at random (`tamis.training.augmentation`).
        seed: of the order of the data, of augmentation and of dropout. Initial weights are the model's own.
        amp: compute in bfloat16 where it is safe (torch.autocast) on CUDA; without effect on a CPU. Weights stay as
            they are, and there is no loss to scale: bfloat16 has the range of float32.

    Example:
        >>> Settings(epochs=90, schedule="multistep", milestones=(30, 60, 80))  # ResNets on ImageNet, in the thesis
    """

    epochs: int
    batch: int = 256
    optimizer: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    schedule: Literal["cosine", "multistep"] = "cosine"
    milestones: tuple[int, ...] = ()
    warmup_epochs: int = 0
    augment: bool = False
    seed: int = 0
    amp: bool = False

    def __post_init__(self) -> None:
        self._take_plain_values()
        _demand("epochs", self.epochs, "a whole number ≥ 1", _whole(self.epochs, least=1))
        _check_batch(self.batch)
        _demand("optimizer", self.optimizer, " or ".join(OPTIMIZERS), self.optimizer in OPTIMIZERS)
        right = _real(self.learning_rate) and 0 < self.learning_rate < math.inf
        _demand("learning_rate", self.learning_rate, "a number > 0", right)
        _demand("momentum", self.momentum, "in [0, 1)", _real(self.momentum) and 0 <= self.momentum < 1)
        right = _real(self.weight_decay) and 0 <= self.weight_decay < math.inf
        _demand("weight_decay", self.weight_decay, "a number ≥ 0", right)
        _demand("schedule", self.schedule, " or ".join(SCHEDULES), self.schedule in SCHEDULES)
        wanted = "a sequence of epochs, such as (30, 60)"
        _demand("milestones", self.milestones, wanted, isinstance(self.milestones, tuple))
        inside = all(_whole(milestone, least=1) and milestone < self.epochs for milestone in self.milestones)
        rising = inside and list(self.milestones) == sorted(set(self.milestones))
        wanted = f"different epochs in rising order, from 1 to {self.epochs - 1}"
        _demand("milestones", self.milestones, wanted, rising)
        wanted = "given with schedule='multistep', and only then"
        _demand("milestones", self.milestones, wanted, bool(self.milestones) == (self.schedule == "multistep"))
        wanted = f"a whole number from 0 to {self.epochs - 1}"
        right = _whole(self.warmup_epochs, least=0) and self.warmup_epochs < self.epochs
        _demand("warmup_epochs", self.warmup_epochs, wanted, right)
        _demand("seed", self.seed, "a whole number ≥ 0", _whole(self.seed, least=0))
        _demand("augment", self.augment, "True or False", isinstance(self.augment, bool))
        _demand("amp", self.amp, "True or False", isinstance(self.amp, bool))

    def _take_plain_values(self) -> None:
        """Python's own numbers for those of numpy and torch, which a checkpoint cannot be read back with."""
        for names, plain in (
            (("epochs", "batch", "warmup_epochs", "seed"), _plain_whole),
            (("learning_rate", "momentum", "weight_decay"), _plain_real),
            (("optimizer", "schedule"), lambda value: str(value) if isinstance(value, str) else value),
            (("milestones",), _plain_wholes),
            (("augment", "amp"), _plain_truth),
        ):
            for name in names:
                object.__setattr__(self, name, plain(getattr(self, name)))

    @property
    def in_effect(self) -> dict[str, Any]:
        """Settings for a recipe, as a file gives them back, without those that are off."""
        plain = {**asdict(self), "milestones": list(self.milestones)}
        return {name: value for name, value in plain.items() if value is not False and value != []}


@dataclass(frozen=True)
class Epoch:
    """What an epoch of training gave.

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
        """On the test data, or on the training data where there is no test."""
        return self.accuracy if self.test_accuracy is None else self.test_accuracy


@dataclass(frozen=True)
class Trained:
    """A trained copy of the model, in eval mode, on the device of the model it was copied from; and how it went."""

    model: nn.Module
    history: tuple[Epoch, ...]


def learning_rate_at(settings: Settings, epoch: float) -> float:
    """The learning rate after so many epochs, fractions included: η · r(t), with w warmup epochs out of T.

    - r(t) = t / w for t < w, and from then on
    - cosine: r(t) = ½ (1 + cos(π (t − w) / (T − w)));
    - multistep: r(t) = 10^{−m}, with m the number of milestones ≤ t.

    It depends on nothing but the epoch, so that training can begin at any.

    Reference: I. Loshchilov and F. Hutter, "SGDR: Stochastic gradient descent with warm restarts", ICLR 2017 (cosine).
    """
    _demand("epoch", epoch, f"from 0 to {settings.epochs}", 0 <= epoch <= settings.epochs)
    warmup = settings.warmup_epochs
    if epoch < warmup:
        return settings.learning_rate * epoch / warmup
    if settings.schedule == "cosine":
        gone = (epoch - warmup) / (settings.epochs - warmup)
        return settings.learning_rate * (1 + math.cos(math.pi * gone)) / 2
    passed = sum(milestone <= epoch for milestone in settings.milestones)
    return settings.learning_rate * MILESTONE_FACTOR**passed


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
    """Train a copy of a model to classify, by the mean cross-entropy over batches; the model itself is left alone.

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
        constraint: what weights satisfy after every step, such as `tamis.l1inf.Within`.
        directory: where to leave checkpoints and kept weights; made if it is not there.
        first_epoch: how many epochs the model has been trained already: training does the rest of `settings.epochs`.
        keep: epochs after which the weights are written for `kept_weights`; 0 for those before the first.
        device: where to train; None for where the model is.
        progress: True, False, or a function of a `Progress` (see `tamis.progress`), called after each epoch.

    Example:
        >>> dense = train(model, data, settings, directory="runs/dense", keep=(5,))
        >>> model.load_state_dict(kept_weights("runs/dense", 5))
        >>> sparse = train(model, data, settings, masks=masks, first_epoch=5)  # rewound and retrained
    """
    first_epoch, keep = _plain_whole(first_epoch), _plain_wholes(keep)
    _check_arguments(model, settings, directory, first_epoch, keep)
    team = join_team(training_device(model, device))
    training = _Training(model, data, test, settings, constraint, team)
    origin = {} if directory is None else _origin(model, data, test, settings, first_epoch, constraint)
    journal = Journal(directory, keep, origin, masks, team)
    with ExitStack() as stack:
        stack.enter_context(journal.alone())
        history = [Epoch(**record) for record in journal.resume(training.model, training.optimizer)]
        begin = history[-1].epoch if history else first_epoch
        _agree_on(begin, team)
        if masks is not None:
            stack.callback(masks.hold(training.model, training.optimizer).release)
        stack.enter_context(_callers_randomness_put_back(team.device))
        report = stack.enter_context(reporting(progress if team.leads else False, "training", settings.epochs))
        if not history:
            journal.keep(first_epoch, training.model)
        for epoch in range(begin + 1, settings.epochs + 1):
            history.append(training.epoch(epoch))
            journal.write(epoch, training.model, training.optimizer, [asdict(record) for record in history])
            report(epoch, **_figures(history[-1], masks))
    result = training.result(device_of(model))
    remember(result, SeenSamples.of(data.sample_digests, "training"))
    return Trained(result, tuple(history))


def evaluate(
    model: nn.Module, data: Data, batch: int = EVALUATION_BATCH, device: str | torch.device | None = None
) -> float:
    """Top-1 accuracy in eval mode, as a fraction; the model is left in the modes that it was in.

    Args:
        model: any module that takes `data`'s inputs and returns a score for each class.
        data: what to measure on.
        batch: how many examples to run at once.
        device: where to run, on a copy if the model is elsewhere; None for where the model is.

    Example:
        >>> evaluate(trained.model, load_data("digits:test"))
        0.975
    """
    _check_batch(batch)
    where = device_of(model) if device is None else torch.device(device)
    if where != device_of(model):
        model = copy.deepcopy(model).to(where)
    data = data.to(where)
    with _eval_mode(model):
        return int(_count_right(model, data, torch.arange(len(data), device=where), batch)) / len(data)


class _Training:
    """A copy of a model on its way, one epoch at a time; epochs count from 1."""

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
        self.data = data.to(team.device)
        self.test = None if test is None else test.to(team.device)
        images = data.inputs.dim() == 4
        self.layout = torch.channels_last if on_cuda and images else torch.contiguous_format
        self.model = _laid_out(copy.deepcopy(model).to(team.device), self.layout)
        self.autocast = torch.autocast(team.device.type, torch.bfloat16, enabled=settings.amp and on_cuda)
        self._check_fits()
        optimizer = _optimizer(self.model, settings)
        self.optimizer = optimizer if constraint is None else constraint.wrap(optimizer, self.model)
        self.parallel = team.wrapped(self.model)

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

    def epoch(self, epoch: int) -> Epoch:
        """Go through the data once."""
        began, settings, team = time.perf_counter(), self.settings, self.team
        _seed_global_generators(_derived_seed(settings.seed, epoch, "global", team.rank), team.device)
        order = torch.Generator().manual_seed(_derived_seed(settings.seed, epoch, "order"))
        batches = torch.randperm(len(self.data), generator=order).to(team.device).split(settings.batch)
        noise = torch.Generator(team.device).manual_seed(_derived_seed(settings.seed, epoch, "augment", team.rank))
        totals = torch.zeros(2, dtype=torch.float64, device=team.device)  # read once: on CUDA reading is waiting
        self.parallel.train()
        for step, batch in enumerate(batches):
            rate = learning_rate_at(settings, epoch - 1 + step / len(batches))
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            totals += self._step(batch, noise)
        team.agree_on_buffers(self.model)
        loss, accuracy = (team.summed(totals) / len(self.data)).tolist()
        rate = learning_rate_at(settings, epoch - 1)
        self._check_finite(loss, epoch, rate)
        return Epoch(epoch, loss, accuracy, self._test_accuracy(), rate, time.perf_counter() - began)

    def _step(self, batch: Tensor, noise: torch.Generator) -> Tensor:
        """One step on a batch; this process' sums of the loss and of right answers."""
        mine, counts = self.team.share(batch)
        inputs, labels = self.data.batch(mine)
        if self.settings.augment:
            inputs = crop_and_flip(inputs, noise)
        with self.autocast:
            scores = self.parallel(inputs.contiguous(memory_format=self.layout))
            loss = counts * F.cross_entropy(scores, labels, reduction="sum")
        self.optimizer.zero_grad()
        # DDP averages over processes, whose shares may differ: this way the average is the mean over the whole batch.
        (loss * (self.team.size / len(batch))).backward()
        self.optimizer.step()
        right = counts * (scores.argmax(1) == labels).sum()
        return torch.stack([loss.detach(), right])

    def _check_finite(self, loss: float, epoch: int, rate: float) -> None:
        """Here, before anything is written: what is kept is good."""
        weights = dict(self.model.named_parameters())
        finite = torch.stack([weight.isfinite().all() for weight in weights.values()]).tolist()
        broken = [name for name, fine in zip(weights, finite, strict=True) if not fine]
        if not math.isfinite(loss) or broken:
            what = f"'{broken[0]}' is not finite" if math.isfinite(loss) else f"the loss is {loss}"
            raise TrainingDiverged(
                f"training diverged in epoch {epoch} of {self.settings.epochs}, begun at learning rate {rate:g}: "
                f"{what}. What was written after earlier epochs is still there; try a smaller learning rate or a warmup"
            )

    def _test_accuracy(self) -> float | None:
        if self.test is None:
            return None
        everything = torch.arange(len(self.test), device=self.team.device)
        mine = everything.tensor_split(self.team.size)[self.team.rank]
        with _eval_mode(self.model):
            right = _count_right(self.model, self.test, mine, EVALUATION_BATCH)
        return int(self.team.summed(right)) / len(self.test)

    def result(self, device: torch.device) -> nn.Module:
        """A copy without the hooks of DDP and without gradients."""
        return _laid_out(copy.deepcopy(self.model).to(device), torch.contiguous_format).eval()


def _laid_out(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    return model.to(memory_format=layout)  # type: ignore[call-overload]


def _optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    rate, decay, momentum = settings.learning_rate, settings.weight_decay, settings.momentum
    if settings.optimizer == "sgd":
        return SGD(model.parameters(), rate, momentum=momentum, weight_decay=decay)
    return AdamW(model.parameters(), rate, betas=(momentum, 0.999), weight_decay=decay)


def _origin(
    model: nn.Module,
    data: Data,
    test: Data | None,
    settings: Settings,
    first_epoch: int,
    constraint: Constraint | None,
) -> dict[str, Any]:
    """What must be the same for training to go on, in the words of the message that says what is not."""
    return {
        **asdict(settings),
        "first_epoch": first_epoch,
        "the data": f"{data.name} ({len(data)} examples)",
        "the test data": None if test is None else f"{test.name} ({len(test)} examples)",
        DATA_CONTENT: f"sha256 {data.digest()}",
        "the content of the test data": None if test is None else f"sha256 {test.digest()}",
        **_computation(model),
        **({} if constraint is None else constraint.in_effect),
    }


def _computation(model: nn.Module) -> dict[str, Any]:
    """What a model computes, but for its weights, as far as its modules say it of themselves."""
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    modules = model.named_modules(remove_duplicate=False)  # an activation may stand in several places
    return {
        **{f"the shape of '{name}'": tuple(value.shape) for name, value in model.state_dict().items()},
        **{f"the module '{name}'" if name else "the model": _in_words(module) for name, module in modules},
        "the part without requires_grad": ", ".join(frozen) or None,
    }


def _in_words(module: nn.Module) -> str:
    """Its class and settings, as torch prints them; less the addresses of objects, which the next process has not."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", f"{type(module).__name__}({module.extra_repr()})")


def _figures(epoch: Epoch, masks: Masks | None) -> dict[str, float]:
    figures = {"loss": epoch.loss, "accuracy": epoch.reported_accuracy, "learning_rate": epoch.learning_rate}
    return figures if masks is None else {**figures, "sparsity": masks.sparsity}


@torch.inference_mode()
def _count_right(model: nn.Module, data: Data, indices: Tensor, batch: int) -> Tensor:
    right = torch.zeros((), dtype=torch.int64, device=indices.device)
    for chosen in indices.split(batch) if len(indices) else ():
        inputs, labels = data.batch(chosen)
        right += (model(inputs).argmax(1) == labels).sum()
    return right


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode meanwhile; then each module is back in its own."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


# -- randomness ----------------------------------------------------------------------------------------------------


def _callers_randomness_put_back(device: torch.device) -> Any:
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def _seed_global_generators(seed: int, device: torch.device) -> None:
    """Those that dropout draws from; not `torch.manual_seed`, which seeds every GPU, of whoever it may be."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)


def _derived_seed(*parts: int | str) -> int:
    """A seed for each purpose: 63 bits of a hash."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


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
    right = _whole(first_epoch, least=0) and first_epoch < settings.epochs
    _demand("first_epoch", first_epoch, f"a whole number from 0 to {settings.epochs - 1}", right)
    _demand("keep", keep, "a sequence of epochs, such as (5,)", isinstance(keep, tuple))
    right = all(_whole(epoch, least=first_epoch) and epoch <= settings.epochs for epoch in keep)
    _demand("keep", keep, f"epochs from {first_epoch} to {settings.epochs}", right)
    if keep and directory is None:
        raise InvalidInput(f"to keep the weights of epochs {keep} give a directory to write them to")
    other = {name: value for name, value in model.state_dict().items() if not isinstance(value, Tensor)}
    if other and directory is not None:
        name, value = next(iter(other.items()))
        raise InvalidInput(
            f"'{name}' in the state of {type(model).__name__} is no tensor but of type {type(value).__name__}, which "
            "checkpoints do not hold; train without a directory"
        )


def _check_batch(batch: int) -> None:
    _demand("batch", batch, "a whole number ≥ 1", _whole(batch, least=1))
    _demand("batch", batch, f"at most {LARGEST_BATCH}", batch <= LARGEST_BATCH)


def _agree_on(begin: int, team: Team) -> None:
    """Processes at different epochs would wait for each other forever."""
    earliest, latest = team.extremes(begin)
    if earliest != latest:
        raise InvalidInput(
            f"process {team.rank} of {team.size} would go on after epoch {begin}, but the team's are {earliest} to "
            f"{latest}: the directory must be one that all of them see"
        )


def _plain_whole(value: Any) -> Any:
    """The int that a value stands for; itself where it stands for none."""
    try:
        return value if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return value


def _plain_wholes(values: Any) -> Any:
    """The ints that values stand for; itself where it is no sequence."""
    try:
        return tuple(map(_plain_whole, values))
    except TypeError:
        return values


def _plain_truth(value: Any) -> Any:
    """The bool that a value stands for; itself where it stands for none."""
    try:
        return bool(value) if value in (True, False) else value
    except (ValueError, RuntimeError):  # an array or a tensor, of which each entry has its own answer
        return value


def _plain_real(value: Any) -> Any:
    """The float that a value stands for; itself where it stands for none. A text is no number, whatever it says."""
    try:
        return value if isinstance(value, bool | str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _real(value: object) -> bool:
    return isinstance(value, float)


def _demand(name: str, value: object, wanted: str, right: bool) -> None:
    if not right:
        raise InvalidInput(f"{name} must be {wanted}, got {value!r}")
