"""Many sub-networks of one network trained at once: the transfer of algorithm A.2, in one convolution for all of them.

Sub-network k has the channels k·C to (k + 1)·C of each layer; a convolution in as many groups as there are sub-networks
keeps them apart, and so do batch-norm, ReLU and pooling, which look at one channel. Each is trained as
`tamis.architecture.transfer` trains it alone, but for the order of the examples, which is drawn otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from tamis.architecture import Architecture, reinitialise
from tamis.errors import InvalidInput, TrainingDiverged
from tamis.training import Data, Settings, learning_rate_at

EVALUATION_BATCH = 100
CHANNEL_BY_CHANNEL = (nn.ReLU, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Flatten)
Pair = tuple[Architecture, int]  # what is trained, and from which seed


class Together(nn.Module):
    """Sub-networks of a sequential network side by side: images N×(K·C)×H×W to scores N×K×classes.

    Args:
        model: a sequence of convolutions, batch-norms, ReLUs, poolings and linear layers; its weights do not count.
        pairs: an architecture and a seed for each sub-network, from which it draws its weights as `transfer` does.
        device: where to train.
    """

    def __init__(self, model: nn.Sequential, pairs: Sequence[Pair], device: str | torch.device) -> None:
        super().__init__()
        for place, module in model.named_children():
            if not isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.Linear, *CHANNEL_BY_CHANNEL)):
                raise InvalidInput(
                    f"'{place}' ({type(module).__name__}) cannot be trained for several networks at once"
                )
        for architecture, _ in pairs:
            architecture.check_fits(model)
        self.layers, self.count = dict(model.named_children()), len(pairs)
        fresh = {seed: reinitialise(model, seed).state_dict() for seed in {seed for _, seed in pairs}}
        trained = {name for name, _ in model.named_parameters()}
        for name in model.state_dict():
            stacked = torch.stack([fresh[seed][name] for _, seed in pairs]).to(device)
            if name in trained:
                self.register_parameter(_name_attribute(name), nn.Parameter(stacked))
            else:
                self.register_buffer(_name_attribute(name), stacked)
        self.masks: dict[str, Tensor] = {}
        for name in pairs[0][0].masks:
            mask = torch.stack([architecture.masks[name] for architecture, _ in pairs]).to(device)
            parameter = getattr(self, _name_attribute(name))
            parameter.data.mul_(mask)
            parameter.register_hook(mask.to(parameter.dtype).mul)
            self.masks[name] = mask

    def forward(self, x: Tensor) -> Tensor:
        for place, module in self.layers.items():
            if isinstance(module, nn.Conv2d):
                x = self._convolve(x, place, module)
            elif isinstance(module, nn.BatchNorm2d):
                names = ("running_mean", "running_var", "weight", "bias")
                mean, variance, weight, bias = (self._gather(f"{place}.{name}") for name in names)
                assert module.momentum is not None
                x = F.batch_norm(x, mean, variance, weight, bias, self.training, module.momentum, module.eps)
            elif isinstance(module, nn.Linear):
                weight, bias = (self.get_parameter(_name_attribute(f"{place}.{name}")) for name in ("weight", "bias"))
                x = torch.einsum("nkf,kcf->nkc", x.reshape(len(x), self.count, -1), weight) + bias
            else:
                x = module(x)
        return x

    def _convolve(self, x: Tensor, place: str, module: nn.Conv2d) -> Tensor:
        bias = None if module.bias is None else self._gather(f"{place}.bias")
        assert isinstance(module.padding, tuple)
        groups = self.count * module.groups
        weight = self._gather(f"{place}.weight")
        return F.conv2d(x, weight, bias, module.stride, module.padding, module.dilation, groups)

    def _gather(self, name: str) -> Tensor:
        """Return what all sub-networks have of a parameter or buffer, one after the other; no copy."""
        value: Tensor = getattr(self, _name_attribute(name))
        return value.flatten(0, 1)


def train_together(
    model: nn.Sequential, pairs: Sequence[Pair], data: Mapping[int, Data], settings: Settings, device: str
) -> Together:
    """Train sub-networks at once, each from its own seed, on the data of that seed.

    Args:
        model, pairs: as `Together` takes them.
        data: as many examples for each seed.
        settings: for all of them, as `transfer` takes them, but for the seed; plain SGD without augmentation.
        device: where to train; on CUDA in bfloat16, if `settings.amp`.
    """
    if settings.optimizer != "sgd" or settings.augment:
        raise InvalidInput("networks are trained together by SGD without augmentation only")
    seeds = sorted({seed for _, seed in pairs})
    rows = torch.tensor([seeds.index(seed) for _, seed in pairs], device=device)
    inputs = torch.stack([data[seed].normalised() for seed in seeds]).to(device)
    labels = torch.stack([data[seed].labels for seed in seeds]).to(device)
    together = Together(model, pairs, device).train()
    optimizer = SGD(
        together.parameters(), settings.learning_rate, momentum=settings.momentum, weight_decay=settings.weight_decay
    )
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    each = torch.arange(len(seeds), device=device)[:, None]
    # Convolutions in a hundred groups: cuDNN's first guess can be a slow one.
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        for epoch in range(settings.epochs):
            order = torch.stack([torch.randperm(labels.shape[1], generator=own) for own in generators]).to(device)
            batches = order.split(settings.batch, dim=1)
            for step, batch in enumerate(batches):
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate_at(settings, epoch + step / len(batches))
                scores = _compute_scores(together, inputs[each, batch][rows], settings.amp)
                loss = _compute_loss(scores, labels[each, batch][rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    if not bool(loss.isfinite()):
        raise TrainingDiverged(f"one of {len(pairs)} networks diverged at learning rate {settings.learning_rate:g}")
    return together.eval()


@torch.no_grad()
def measure_accuracies(together: Together, test: Data, amp: bool) -> list[float]:
    """Return top-1 accuracy of each sub-network."""
    device = next(together.parameters()).device
    test = test.to(device)
    right = torch.zeros(together.count, dtype=torch.int64, device=device)
    for chosen in torch.arange(len(test), device=device).split(EVALUATION_BATCH):
        inputs, labels = test.batch(chosen)
        scores = _compute_scores(together, inputs.expand(together.count, *inputs.shape), amp)
        right += (scores.argmax(2) == labels[:, None]).sum(0)
    return (right.double() / len(test)).tolist()


def _compute_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of each sub-network, added up, which keeps their gradients apart.

    Args:
        scores: example × sub-network × class.
        labels: sub-network × example.
    """
    return F.cross_entropy(scores.flatten(0, 1).float(), labels.T.flatten(), reduction="sum") / labels.shape[1]


def _compute_scores(together: Together, inputs: Tensor, amp: bool) -> Tensor:
    """Map inputs K×N×C×H×W to scores N×K×classes."""
    images = inputs.transpose(0, 1).flatten(1, 2)
    on_cuda = images.device.type == "cuda"
    layout = torch.channels_last if on_cuda else torch.contiguous_format
    with torch.autocast(images.device.type, torch.bfloat16, enabled=amp and on_cuda):
        scores: Tensor = together(images.contiguous(memory_format=layout))
    return scores


def _name_attribute(name: str) -> str:
    """Return a parameter's name as a module takes it."""
    return name.replace(".", "_")
