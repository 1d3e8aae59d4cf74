"""A model is traced as a graph of the calls that it makes, as far as `torch.fx` can follow it."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

from torch import fx, nn

from tamis.binary.batchnorm_affine import BatchNormAffine, find_affine
from tamis.binary.layers import BinaryLayer

OWNER = "owner"  # of what a node's meta says: the module in whose forward it is


def trace_calls(model: nn.Module) -> fx.Graph | None:
    """Return the graph of a model's calls, or None where these depend on values of its input.

    Binary layers are whole in it, and so are modules with hooks, which see what goes in and comes out as it is.
    """
    try:
        return _Tracer().trace(model)
    except Exception:  # whatever a module does that a graph cannot say
        return None


def count_uses(model: nn.Module, graph: fx.Graph) -> Counter[nn.Module]:
    """Count how often each module is called or a tensor of it is read; a leaf module calls all modules in it."""
    # A leaf, such as a module with hooks, may call any of its parts: each counts as used by it.
    leaves = [model.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"]
    # A parameter that code reads directly uses its module just as a call does.
    owners = [str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"]
    return Counter([*(part for whole in leaves for part in whole.modules()), *map(model.get_submodule, owners)])


def find_called_module(model: nn.Module, node: Any, uses: Counter[nn.Module]) -> nn.Module | None:
    """Return the module that a node calls with one argument, if nothing else calls it and it has no hook."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return None
    module = model.get_submodule(str(node.target))
    return None if uses[module] > 1 or is_hooked(module) else module


def is_hooked(module: nn.Module) -> bool:
    """Return whether a hook sees the calls of a module."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def find_only_reader(node: fx.Node) -> fx.Node | None:
    """Return the node that reads the result of a node, if it is the only one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def find_affine_after(layer: BinaryLayer, norm: nn.Module | None) -> BatchNormAffine | None:
    """Return the slope and shift of a batch normalization, if it normalizes this layer's output."""
    affine = None if norm is None else find_affine(norm)
    # What does not fit stays: calling the model is an error then, and PyTorch says which.
    if affine is None or isinstance(norm, nn.BatchNorm2d) != (layer.dimensions == 2):
        return None
    return affine if len(affine.slope) == layer.weight.shape[0] else None


# An in-place change reaches all readers of a tensor; whoever moves a call past it must see that it is one.
class _Proxy(fx.Proxy):
    """This proxy records in-place changes as such, where `torch.fx` would record a new value."""

    def __iadd__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})

    def __isub__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.isub, (self, other), {})

    def __imul__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.imul, (self, other), {})

    def __itruediv__(self, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operator.itruediv, (self, other), {})


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, BinaryLayer) or is_hooked(m) or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *arguments: Any, **named: Any) -> fx.Node:
        node = super().create_node(*arguments, **named)
        # A sum is rewritten in the module whose code has it, which the graph of calls does not say by itself.
        node.meta[OWNER] = self.scope.module_path
        return node
