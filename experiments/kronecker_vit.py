"""Table 5.5 of the thesis: parts of ViT-S/16 with products of two Kronecker-sparse factors for linear layers.

Replaced are the two layers of each feed-forward network, and the projections to queries, keys and values; the
projection after attention and the classifier stay dense, as section 5.5 has it. Where it leaves freedom:

1. It gives patterns for N × N and 4N × N, and none for the way down, N × 4N. Here they are those of the way up, each
   transposed and in the reverse order.
2. Dense networks have one matrix of 3N × N for queries, keys and values, as is usual, which is faster than three.
   Replaced ones have three products of N × N, for which the text gives patterns.
3. Images give 196 tokens and one for the class. The part "linear N × N" is measured without that one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tamis.kernels import time_in_turns
from tamis.kronecker import KroneckerLayer, KroneckerLinear, Pattern, replace
from tamis.training.models.vit import Attention, Block, VisionTransformer, vit_s16

SQUARE = (Pattern(1, 192, 48, 2), Pattern(2, 48, 192, 1))
UP = (Pattern(1, 768, 192, 2), Pattern(6, 64, 64, 1))
DOWN = tuple(pattern.transposed for pattern in reversed(UP))
WIDTH, TOKENS, IMAGE = 384, 196, 224
LINEAR, FEED_FORWARD, ATTENTION, BLOCK, WHOLE = PARTS = (
    "linear N × N",
    "feed-forward network",
    "multi-head attention",
    "block",
    "ViT-S/16",
)
TRAINING = "training step"
DENSE = "fully-connected"
PRINTED = {  # Table 5.5: time over that of the fully-connected part
    LINEAR: {"bmm": 0.82, "kernel": 0.50},
    FEED_FORWARD: {"bmm": 0.91, "kernel": 0.77},
    ATTENTION: {"bmm": 0.87, "kernel": 0.79},
    BLOCK: {"bmm": 0.90, "kernel": 0.78},
    WHOLE: {"bmm": 0.89, "kernel": 0.78},
}
Row = dict[str, Any]


class SeparateAttention(nn.Module):
    """The attention of `Attention`, with a layer each for queries, keys and values."""

    def __init__(self, joint: Attention) -> None:
        super().__init__()
        self.heads, self.proj = joint.heads, joint.proj
        layers = [nn.Linear(joint.qkv.in_features, joint.proj.in_features) for _ in range(3)]
        weights, biases = joint.qkv.weight.detach().chunk(3), joint.qkv.bias.detach().chunk(3)
        for layer, weight, bias in zip(layers, weights, biases, strict=True):
            layer.weight, layer.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        self.query, self.key, self.value = layers

    def forward(self, x: Tensor) -> Tensor:
        # (N, tokens, dim) -> (N, heads, tokens, dim / heads)
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).flatten(2))


def patterns_of(rows: int, columns: int) -> tuple[Pattern, ...] | None:
    """Return the text's patterns for the sizes that it replaces."""
    return {(WIDTH, WIDTH): SQUARE, (4 * WIDTH, WIDTH): UP, (WIDTH, 4 * WIDTH): DOWN}.get((rows, columns))


def make_sparse_vit(dense: VisionTransformer, seed: int = 0) -> VisionTransformer:
    """Return a copy with products in the place of linear layers, drawn from scratch."""
    separate = copy.deepcopy(dense)
    for block in separate.blocks:
        assert isinstance(block, Block)
        block.register_module("attn", SeparateAttention(block.attn))
    replaced = replace(separate, patterns_of, keep="blocks.*.attn.proj", begin="scratch", seed=seed)
    assert isinstance(replaced, VisionTransformer)
    return replaced


def set_backend(model: VisionTransformer, backend: str | None) -> VisionTransformer:
    """Have all Kronecker-sparse layers of a model multiply in this way; it is changed."""
    for module in model.modules():
        if isinstance(module, KroneckerLayer):
            module.backend = backend
    return model


def find_parts(model: VisionTransformer) -> dict[str, nn.Module]:
    """Return the rows of the table: modules of the first block, and the whole."""
    block = model.blocks[0]
    assert isinstance(block, Block)
    attention: nn.Module = block.attn
    linear = attention.query if isinstance(attention, SeparateAttention) else block.attn.proj
    modules = {LINEAR: linear, FEED_FORWARD: nn.Sequential(block.norm2, block.mlp), BLOCK: block, WHOLE: model}
    modules[ATTENTION] = nn.Sequential(block.norm1, attention)
    return {name: modules[name] for name in PARTS}


def measure_parts(
    ways: dict[str, str | None], images: int, device: str, dtype: torch.dtype, seconds: float, depth: int | None = None
) -> Iterator[Row]:
    """Yield the milliseconds of each part, dense and with each way to multiply: in inference, then a step of training.

    Args:
        ways: names of columns → backends of `multiply`; None lets it choose.
        images: in a batch.
        device: cpu or cuda.
        dtype: of weights and inputs in inference. Training is in float32, or for another dtype under autocast to it.
        seconds: for each row, about.
        depth: blocks of the network, for a shorter run; 12 by default.
    """
    inputs = _draw_inputs(images, device, dtype)
    networks = {name: network.to(dtype).eval() for name, network in _make_networks(ways, depth, device).items()}
    for part in PARTS:
        tasks = {name: partial(find_parts(network)[part], inputs[part]) for name, network in networks.items()}
        with torch.inference_mode():
            times = time_in_turns(tasks, device, seconds)
        yield {"part": part, "ms": _convert_to_milliseconds(times)}
    del networks, tasks
    x, labels = inputs[WHOLE].float(), torch.zeros(images, dtype=torch.long, device=device)
    steps = {name: _step(network, x, labels, dtype) for name, network in _make_networks(ways, depth, device).items()}
    yield {"part": TRAINING, "ms": _convert_to_milliseconds(time_in_turns(steps, device, seconds))}


def _make_networks(ways: dict[str, str | None], depth: int | None, device: str) -> dict[str, VisionTransformer]:
    """Return the dense network, and one with products for each way to multiply."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dense = vit_s16()
    if depth is not None:
        dense.blocks = nn.Sequential(*list(dense.blocks)[:depth])
    networks = {DENSE: dense, **{name: set_backend(make_sparse_vit(dense), way) for name, way in ways.items()}}
    return {name: network.to(device) for name, network in networks.items()}


def _draw_inputs(images: int, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(images, TOKENS + 1, WIDTH, generator=generator).to(device, dtype)
    pixels = torch.randn(images, 3, IMAGE, IMAGE, generator=generator).to(device, dtype)
    vectors = tokens[:, :TOKENS].reshape(-1, WIDTH)
    return {**dict.fromkeys(PARTS, tokens), LINEAR: vectors, WHOLE: pixels}


def _step(model: nn.Module, x: Tensor, labels: Tensor, dtype: torch.dtype) -> Callable[[], None]:
    """Run forward, backward, and a step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def run() -> None:
        with torch.autocast(x.device.type, dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return run


def _convert_to_milliseconds(seconds: dict[str, float]) -> dict[str, float]:
    return {name: 1e3 * value for name, value in seconds.items()}


def find_weights(model: nn.Module) -> int:
    """Return parameters of all linear layers and products."""
    layers = [module for module in model.modules() if isinstance(module, (nn.Linear, KroneckerLinear))]
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())
