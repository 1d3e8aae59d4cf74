"""`compile`: a trained binary network for inference, its weights one bit each."""

from __future__ import annotations

import copy

from torch import nn

from tamis.binary.exchange import exchanges
from tamis.binary.layers import binary_layers
from tamis.binary.packed_layers import packed_layer
from tamis.binary.pooling import fast_pools
from tamis.graph.substitute import substituted


def compile(model: nn.Module) -> nn.Module:
    """A copy of a binary network for inference, whose binary layers hold packed signs and run in fused kernels.

    It computes what the model does in evaluation, to the bit: each binary layer is one call that compares its input
    with τ, convolves bits by XNOR and popcount, corrects for zeros around the input, and scales. Where a binary layer
    is all that reads another one's output, bits go from one to the other, also through what does nothing in evaluation
    (`nn.Identity`, dropout) and through `nn.ReLU`, `nn.ReLU6` and `nn.Hardtanh`, which are part of the comparison then.
    Everything else stays as it is, in floats; max-pooling has a kernel of its own.

    `tamis.kernels.dispatch.binary_kernel()` says which kernel runs. The result can be moved, copied, pickled, given to
    `torch.compile` and to `torch.export.export`; there are no gradients through its binary layers.

    Args:
        model: one with binary layers, in any mode; it is left as it is.

    Example:
        >>> fast = compile(trained.model)
        >>> torch.equal(fast(x), trained.model.eval()(x))
        True

    Reference: chee2021xnor.
    """
    layers = binary_layers(model)
    compiled = copy.deepcopy(model).eval()
    made = fast_pools(compiled)
    packed = {compiled.get_submodule(name): packed_layer(layer, name) for name, layer in layers.items()}
    for exchange in exchanges(compiled):
        giver, reader = packed[exchange.giver], packed[exchange.reader]
        giver.out_thresholds, giver.out_flips = exchange.thresholds()
        giver.bias, giver.out_groups, reader.reads_bits = None, reader.groups, True
        made |= {module: nn.Identity() for module in exchange.between}
    return substituted(compiled, made | packed).eval()
