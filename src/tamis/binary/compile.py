"""Compilation prepares a trained binary network for inference, with one bit for each weight."""

from __future__ import annotations

import copy
from collections import Counter

from torch import nn

from tamis.binary.bit_handoff import find_handoffs
from tamis.binary.fused_epilogue import find_epilogues, fuse_sums
from tamis.binary.layers import binary_layers
from tamis.binary.packed_layers import pack_layer
from tamis.binary.pooling import find_pools
from tamis.binary.tracing import trace_calls
from tamis.errors import InvalidInput
from tamis.graph import substitute_modules


def compile(model: nn.Module) -> nn.Module:
    """Return a copy of a binary network for inference, whose binary layers hold packed signs and run in fused kernels.

    It computes what the model does in evaluation, to the bit: each binary layer is one call that compares its input
    with τ, convolves bits by XNOR and popcount, corrects for zeros around the input, and scales. Where a binary layer
    is all that reads another one's output, bits go from one to the other, also through what does nothing in evaluation
    (`nn.Identity`, dropout) and through `nn.ReLU`, `nn.ReLU6`, `nn.Hardtanh` and batch normalizations, which are part
    of the comparison then. Batch normalizations, sums with a shortcut and ReLU after other layers are part of their
    call; blocks whose code adds a shortcut become `torch.fx.GraphModule`s for it. Max-pooling has a kernel of its own,
    with what comes before it. Everything else stays as it is, in floats.

    `tamis.kernels.dispatch.binary_kernel()` says which kernel runs. The result can be moved, copied, pickled, given to
    `torch.compile` and to `torch.export.export`; there are no gradients through its binary layers.

    Args:
        model: one with binary layers, in any mode; it is left as it is.

    Example:
        >>> layers = tamis.binary.BinaryLinear(8, 4), nn.ReLU(), tamis.binary.BinaryLinear(4, 2)
        >>> model, x = nn.Sequential(*layers).eval(), torch.randn(3, 8)
        >>> torch.equal(compile(model)(x), model(x))
        True

    Reference: chee2021xnor.
    """
    binary_layers(model)  # or there is nothing to compile
    # In evaluation from here on: what is fused is what normalizations and dropouts compute there.
    copied = copy.deepcopy(model).eval()
    _check_reads(copied)
    # Sums first: rewriting a module changes the graph that everything after looks at.
    compiled, sums = fuse_sums(copied)
    packed = {layer: pack_layer(layer, name) for name, layer in binary_layers(compiled).items()}
    replacements: dict[nn.Module, nn.Module] = {}
    # A layer with a summand takes two arguments from now on. No hand-off begins there: what is added to must be
    # numbers.
    for layer, epilogue in sums.items():
        packed[layer].fuse_epilogue(epilogue.norm, epilogue.affine, epilogue.relu)
    for handoff in find_handoffs(compiled):
        producer, reader = packed[handoff.producer], packed[handoff.reader]
        producer.give_bits(*handoff.thresholds(), reader.groups)
        reader.reads_bits = True
        # Identities, since the model's own code still calls them by their names.
        replacements |= {module: nn.Identity() for module in handoff.between}
    # What gives bits has its epilogue in their thresholds.
    producers = {layer for layer, one in packed.items() if one.gives_bits}
    for layer, (epilogue, fused_modules) in find_epilogues(compiled, without=producers).items():
        packed[layer].fuse_epilogue(epilogue.norm, epilogue.affine, epilogue.relu)
        replacements |= {module: nn.Identity() for module in fused_modules}
    # Last, so that a pooling absorbs only what no layer has.
    replacements |= find_pools(compiled, replaced={*replacements})
    return substitute_modules(compiled, replacements | packed).eval()


def _check_reads(model: nn.Module) -> None:
    """Refuse a model whose own code reads numbers of a binary layer other than its bias, as far as a graph shows."""
    graph = trace_calls(model)
    names_read = set() if graph is None else {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    names = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    for layer_name, layer in binary_layers(model).items():
        for name, parameter in layer.named_parameters(layer_name):
            tied = names[parameter] > 1  # it may have been read under its other name, where it stays
            if name in names_read and parameter is not layer.bias and not tied:
                raise InvalidInput(
                    f"the code of {type(model).__name__} reads '{name}', which '{layer_name}' does not have once it is "
                    "compiled: read a parameter of the model's own instead"
                )
