"""Training takes two stages: first with binary activations and real weights, then with both binary.

Gradients through two signs at once are poor guides, above all at the beginning. So the first stage convolves the signs
of activations with the real weights W; the second one takes sign(W), with a scale that begins at mean |W|, the one
that changes the layer least. In the second stage every step is followed by clipping W to [−1, 1], beyond which it has
no gradient, and, if wanted, by a proximal step that makes scales sparse. Weight decay is that of the settings: on W it
is no regularisation of signs, but keeps weights near zero, where they can still change sign.

Reference: bulat2019xnor.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tamis.artifact import Hold, Masks, fingerprint_of_values
from tamis.binary.layers import binary_layers, clip_weights
from tamis.binary.sparse_scales import count_zero_scales, shrink_scales
from tamis.errors import InvalidInput
from tamis.progress import Listener
from tamis.training import CHECKPOINT, Data, Epoch, Settings, read_checkpoint, train

ACTIVATIONS, BOTH = "activations", "both"


@dataclass(frozen=True)
class TrainedBinary:
    """A `TrainedBinary` holds a trained copy of the model, in eval mode, and the figures of each stage.

    Attributes:
        model: on the device of the model that it was copied from.
        activations: the epochs of the first stage, with real weights; none where it was left out.
        history: the epochs of the second one.
    """

    model: nn.Module
    activations: tuple[Epoch, ...]
    history: tuple[Epoch, ...]


def train_binary(
    model: nn.Module,
    data: Data,
    settings: Settings,
    *,
    first: Settings | None = None,
    test: Data | None = None,
    penalty: float = 0.0,
    tau: float = 0.1,
    directory: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Listener = True,
) -> TrainedBinary:
    """Train a copy of a binary network in two stages, without changing the model itself.

    With a `directory`, each epoch ends with a checkpoint, in DIRECTORY/activations and then in DIRECTORY/both. The same
    call goes on from there, or returns at once, as `tamis.training.train` does; another first stage, scale, estimator
    or penalty is another training.

    Args:
        model: what `binarize` made, or any module with binary layers.
        data, test, device, progress: as `tamis.training.train` takes them.
        settings: of the second stage.
        first: of the first stage; None to leave it out.
        penalty: the weight of `scale_penalty` in the loss of the second stage: after each step `shrink_scales` goes as
            far as the learning rate times this.
        tau: τ of that penalty.
        directory: where to leave checkpoints; made if it is not there.

    Example:
        >>> data = Data(torch.randn(8, 4), torch.tensor([0, 1] * 4), 2)
        >>> binary = nn.Sequential(tamis.binary.BinaryLinear(4, 4), nn.Linear(4, 2))
        >>> settings = Settings(epochs=2, optimizer="adamw", learning_rate=1e-3, weight_decay=0.0, batch=4)
        >>> trained = train_binary(binary, data, settings, first=settings, directory="runs/binary", progress=False)
        >>> len(trained.activations), len(trained.history)
        (2, 2)

    Reference: bulat2019xnor.
    """
    # Refuses a model without binary layers, which would be trained as a real one.
    binary_layers(model)
    _check_penalty(model, penalty, tau)
    folder = None if directory is None else Path(directory)
    activations: tuple[Epoch, ...] = ()
    layers = _describe_layers(model)
    origin = layers | {"the first stage": "left out" if first is None else str(first)}
    second = folder and folder / _name_second_folder(penalty, tau)
    _check_checkpoint(second, origin)  # now: the first stage may take long
    if first is not None:
        first_stage = train(
            with_real_weights(model),
            data,
            first,
            test=test,
            # Estimators and scales are not in a state's shapes, so that a checkpoint of others would load without an
            # error.
            constraint=_Origin(layers),
            directory=folder and folder / ACTIVATIONS,
            device=device,
            progress=progress,
        )
        # A second stage that was interrupted must not continue from another first stage.
        origin["what the first stage came to"] = _digest(first_stage.model)
        model, activations = with_binary_weights(first_stage.model), first_stage.history
    second_stage = train(
        model,
        data,
        settings,
        test=test,
        # In the place of masks, whose hooks follow each step and whose sparsity is reported after each epoch.
        masks=_BinarySteps(penalty, tau),
        # Without a penalty, τ is of no account, and a checkpoint of any other τ may be continued.
        constraint=_Origin(origin | ({"penalty": float(penalty), "tau": float(tau)} if penalty else {})),
        directory=second,
        device=device,
        progress=progress,
    )
    return TrainedBinary(second_stage.model, activations, second_stage.history)


def with_real_weights(model: nn.Module) -> nn.Module:
    """Return a copy for the first stage, whose binary layers convolve the signs of their input with W itself.

    Example:
        >>> model = nn.Sequential(tamis.binary.BinaryLinear(4, 2))
        >>> with_real_weights(model)[0].real_weights, model[0].real_weights
        (True, False)
    """
    real = copy.deepcopy(model)
    for layer in binary_layers(real).values():
        layer.real_weights = True
        for factor in layer.factors.values():
            factor.requires_grad_(False)  # unused, which processes that train together would trip over
    return real


def with_binary_weights(model: nn.Module) -> nn.Module:
    """Return a copy for the second stage, whose binary layers take sign(W), with a scale that begins at mean |W|.

    Example:
        >>> real = with_real_weights(nn.Sequential(tamis.binary.BinaryLinear(4, 2)))
        >>> with_binary_weights(real)[0].real_weights
        False
    """
    binary = copy.deepcopy(model)
    for layer in binary_layers(binary).values():
        layer.real_weights = False
        layer.begin_scale()
        for factor in layer.factors.values():
            factor.requires_grad_(True)
    return binary


@dataclass(frozen=True)
class _Origin:
    """These facts must agree with a checkpoint; `train` gets them as a constraint that constrains nothing."""

    in_effect: dict[str, Any]

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> Optimizer:
        """Return the optimizer as it is."""
        return optimizer


class _BinarySteps(Masks):
    """This work follows each step of the second stage; `train` gets it as masks that mask nothing.

    Args:
        penalty: the weight of the penalty of scales.
        tau: τ.
    """

    def __init__(self, penalty: float, tau: float) -> None:
        super().__init__({})
        self.penalty, self.tau = penalty, tau
        self._model: nn.Module | None = None

    @property
    def sparsity(self) -> float:
        """Return the fraction of scales that are zero."""
        zeros, total = (0, 0) if self._model is None else count_zero_scales(self._model)
        return zeros / total if total else 0.0

    def hold(self, model: nn.Module, optimizer: Optimizer) -> Hold:
        """Clip weights and shrink scales after each step of the optimizer."""
        self._model = model
        return _AfterSteps(self, model, optimizer)


class _AfterSteps(Hold):
    """These hooks clip and shrink after the steps of an optimizer; `release()` ends them."""

    def __init__(self, steps: _BinarySteps, model: nn.Module, optimizer: Optimizer) -> None:
        self.steps, self.model, self.optimizer = steps, model, optimizer
        # After the step, which is what takes a weight beyond 1.
        self._hooks = [optimizer.register_step_post_hook(lambda *_: self._after_step())]

    def _after_step(self) -> None:
        clip_weights(self.model)
        if self.steps.penalty:
            # The rate of this very step: under a schedule, the proximal step becomes shorter as the gradient's does.
            rate = self.optimizer.param_groups[0]["lr"]
            shrink_scales(self.model, rate * self.steps.penalty, self.steps.tau)


def _name_second_folder(penalty: float, tau: float) -> str:
    """Name the second stage's folder after its penalty, since a checkpoint with another one cannot be continued."""
    return f"{BOTH}_{float(penalty)}_{float(tau)}" if penalty else BOTH


def _describe_layers(model: nn.Module) -> dict[str, Any]:
    """Describe what a state's shapes do not show of binary layers."""
    return {
        f"the binary layer '{name}'": f"of scale {layer.form!r} and estimator {layer.estimator!r}"
        for name, layer in binary_layers(model).items()
    }


def _digest(model: nn.Module) -> str:
    state = model.state_dict()
    return fingerprint_of_values({name: value for name, value in state.items() if isinstance(value, Tensor)})


def _check_checkpoint(directory: Path | None, origin: dict[str, Any]) -> None:
    """Refuse before the first stage, as far as possible, what `train` would refuse after it."""
    # None where nothing was begun, and then there is nothing to contradict.
    checkpoint = None if directory is None else read_checkpoint(directory)
    if directory is not None and checkpoint is not None:
        # What the first stage comes to is not known yet, and is taken to be what the checkpoint says.
        checkpoint.check_origin(directory / CHECKPOINT, checkpoint.origin | origin, checkpoint.masks)


def _check_penalty(model: nn.Module, penalty: float, tau: float) -> None:
    for name, value, right in (("penalty", penalty, 0 <= penalty < math.inf), ("tau", tau, 0 < tau < math.inf)):
        if isinstance(value, bool) or not right:
            raise InvalidInput(f"{name} must be a number {'≥' if name == 'penalty' else '>'} 0, got {value!r}")
    if penalty and not count_zero_scales(model)[1]:
        raise InvalidInput(f"{penalty=} is of learnt scales, and those of this model are analytic: it has none")
