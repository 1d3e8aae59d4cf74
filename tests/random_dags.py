"""Random small networks over all kinds of homogeneous operations, drawn by Hypothesis so that failures shrink.

Shapes are changed by `packed` and by plain views: `flatten` and its like would send every one of these networks through
torch's own pass, which takes several times as long as the rest of tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

Shape = tuple[int, ...]


def packed(x: Tensor, *shape: int) -> Tensor:
    """The entries of each sample in their order, in another shape."""
    return x.clone(memory_format=torch.contiguous_format).view(-1, *shape)


class Dag(nn.Module):
    """Steps that each read one or two earlier tensors and append a new one; the last is returned."""

    def __init__(self, shape: Shape, steps: list[tuple[nn.Module, tuple[int, ...]]]) -> None:
        super().__init__()
        self.shape = shape
        self.steps = nn.ModuleList([module for module, _ in steps])
        self.reads = [reads for _, reads in steps]

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step, reads in zip(self.steps, self.reads, strict=True):
            values.append(step(*(values[i] for i in reads)))
        return values[-1]

    def example(self, batch: int = 2, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(batch, *self.shape, generator=generator, dtype=torch.float64)


class Apply(nn.Module):
    """A function of one or more tensors, as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Tensor) -> Tensor:
        return self.function(*x)


class Between(nn.Module):
    """A layer with a change of shape before and after it."""

    def __init__(self, layer: nn.Module, before: Callable[[Tensor], Tensor], after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.before, self.after = layer, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.layer(self.before(x)))


def in_a_line(x: Tensor) -> Tensor:
    """An image of several channels as a line of pixels."""
    return packed(x, x.shape[1], x.shape[2] * x.shape[3])


UNARY_IMAGE: dict[str, Callable[[int], nn.Module]] = {
    "conv": lambda c: nn.Conv2d(c, 2, 3, padding=1),
    "conv valid": lambda c: nn.Conv2d(c, 2, 2, padding="valid", bias=False),
    "conv dilated": lambda c: nn.Conv2d(c, 2, 2, padding=1, dilation=2, stride=2),
    "depthwise": lambda c: nn.Conv2d(c, c, 2, padding=1, groups=c),
    "transposed": lambda c: nn.ConvTranspose2d(c, 2, 2, stride=2, padding=1),
    "batch-norm": lambda c: nn.BatchNorm2d(c),
    "relu": lambda c: nn.ReLU(),
    "leaky": lambda c: nn.LeakyReLU(0.3),
    "max-pool": lambda c: nn.MaxPool2d(2, 1, padding=1),
    "max-pool ceil": lambda c: nn.MaxPool2d(2, 2, ceil_mode=True),
    "max-pool dilated": lambda c: nn.MaxPool2d(2, 1, padding=1, dilation=2),
    "avg-pool": lambda c: nn.AvgPool2d(2, 1, padding=1, count_include_pad=False),
    "avg-pool counted": lambda c: nn.AvgPool2d(2, 1, padding=1),
    "adaptive avg": lambda c: nn.AdaptiveAvgPool2d(2),
    "adaptive max": lambda c: nn.AdaptiveMaxPool2d(2),
    "scale": lambda c: Apply(lambda x: -1.5 * x),
    "shift": lambda c: Apply(lambda x: x - 0.25),
    "sort": lambda c: Apply(lambda x: x.sort(dim=2)[0]),
    "top 2": lambda c: Apply(lambda x: x.topk(min(2, x.shape[1]), dim=1)[0]),
    "kth": lambda c: Apply(lambda x: x.kthvalue(1, dim=3, keepdim=True)[0].expand(-1, -1, -1, x.shape[3])),
    "pad": lambda c: Apply(lambda x: F.pad(x, (1, 0, 0, 1))),
    "crop": lambda c: Apply(lambda x: x[:, :, : max(1, x.shape[2] - 1), ::2]),
    "channels": lambda c: Apply(lambda x: x.flip(1)),
    "upsample": lambda c: nn.Upsample(scale_factor=1.5, mode="nearest"),
    "bilinear": lambda c: nn.Upsample(scale_factor=1.5, mode="bilinear"),
    "mean": lambda c: Apply(lambda x: x.mean(2, keepdim=True)),
    "dropout": lambda c: nn.Dropout(0.5),
    "conv 1d": lambda c: Between(nn.Conv1d(c, 2, 2, padding=1), in_a_line, lambda y: y.unsqueeze(2)),
    "conv 3d": lambda c: Between(
        nn.Conv3d(1, 2, 2, padding=1, bias=False),
        lambda x: x[:, None],
        lambda y: packed(y, y.shape[1] * y.shape[2], *y.shape[3:]),
    ),
    "max-pool 1d": lambda c: Between(nn.MaxPool1d(2, 1, 1), in_a_line, lambda y: y.unsqueeze(3)),
    "avg-pool 3d": lambda c: Between(nn.AvgPool3d(2, 1, 1), lambda x: x[:, None], lambda y: y.squeeze(1)),
    "transposed 1d": lambda c: Between(nn.ConvTranspose1d(c, 1, 2, stride=2), in_a_line, lambda y: y.unsqueeze(2)),
    "linear": lambda c: Between(nn.Linear(c, 2), lambda x: x.permute(0, 2, 3, 1), lambda y: y.permute(0, 3, 1, 2)),
    "adjacency": lambda c: Apply(lambda x: ADJACENCY[x.dtype][: x.shape[2], : x.shape[2]] @ x),
    "abs": lambda c: Apply(torch.abs),
    "negative": lambda c: Apply(torch.neg),
    "pixel shuffle": lambda c: Apply(lambda x: F.pixel_shuffle(torch.cat([x] * 4, 1), 2)),
    "stack": lambda c: Apply(lambda x: packed(torch.stack([x, -x], 2), 2 * x.shape[1], *x.shape[2:])),
    "split": lambda c: Apply(lambda x: torch.cat(x.split((x.shape[2] + 1) // 2, 2)[::-1], 2)),
    "select": lambda c: Apply(lambda x: x.select(1, 0).unsqueeze(1)),
    "index": lambda c: Apply(lambda x: x[:, [0] * x.shape[1]]),
    "smallest": lambda c: Apply(lambda x: x.amin(2, keepdim=True)),
    "sum": lambda c: Apply(lambda x: x.sum(1, keepdim=True)),
    "permute": lambda c: Apply(lambda x: x.permute(0, 2, 3, 1)),
    "leaky steep": lambda c: nn.LeakyReLU(-1.7),
}
ADJACENCY = {  # networks are drawn in float32 and then converted
    dtype: torch.tensor([[0.5, 0.25, -1.0], [1.0, 0.5, 0.5], [-0.25, 2.0, 1.0]], dtype=dtype)
    for dtype in (torch.float32, torch.float64)
}
BINARY: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - 2 * y,
    "cat": lambda x, y: torch.cat([x, y], 1),
    "max": torch.maximum,
}
LARGEST = 40  # neurons of one tensor, so that enumeration stays cheap


@st.composite
def dags(draw: Any, most_steps: int = 5) -> Dag:
    """A random network with float64 parameters, batch-norm means far from zero, and not too many paths."""
    torch_seed = draw(st.integers(0, 2**20))
    shape: Shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    steps: list[tuple[nn.Module, tuple[int, ...]]] = []
    values = [torch.zeros(1, *shape)]
    for _ in range(draw(st.integers(1, most_steps))):
        module, reads = draw_step(draw, values)
        try:
            with torch.no_grad():
                result = module.eval()(*(values[i] for i in reads))
        except (RuntimeError, IndexError):  # a window larger than its input
            continue
        readable = bool(torch.isfinite(result).all())  # a pooling window all in the padding gives −∞
        if readable and 0 < result.numel() <= LARGEST:
            steps.append((module, reads))
            values.append(result)
    size = values[-1].numel()
    head = nn.Sequential(Apply(lambda x: packed(x, size)), nn.Linear(size, draw(st.integers(1, 2))))
    return randomized(Dag(shape, [*steps, (head, (len(values) - 1,))]), torch_seed)


def draw_step(draw: Any, values: list[Tensor]) -> tuple[nn.Module, tuple[int, ...]]:
    """A next operation, on the latest tensor and perhaps an earlier one of the same shape."""
    latest = len(values) - 1
    same = [i for i, value in enumerate(values) if value.shape == values[latest].shape]
    if len(same) > 1 and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(BINARY)))
        return Apply(BINARY[name]), (latest, draw(st.sampled_from(same)))
    name = draw(st.sampled_from(sorted(UNARY_IMAGE)))
    return UNARY_IMAGE[name](values[latest].shape[1]), (latest,)


def randomized(module: Dag, seed: int) -> Dag:
    """Random parameters of both signs, batch-norm statistics included."""
    generator = torch.Generator().manual_seed(seed)
    module = module.double().eval()
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64))
        for name, value in module.named_buffers():
            if name.endswith("running_mean"):
                value.copy_(2 * torch.randn(value.shape, generator=generator, dtype=torch.float64))
            if name.endswith("running_var"):
                value.copy_(torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.25)
    return module
