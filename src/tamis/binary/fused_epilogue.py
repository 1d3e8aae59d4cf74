"""A batch normalization, a sum with a shortcut and a ReLU can run in the pass of the binary layer before them.

A sum stands in the code of a module, which is rewritten for it: of

    return relu(norm(layer(x)) + shortcut)

the graph is taken, and norm, sum and ReLU become a second argument of the layer's call. Everything is computed in the
same order and rounded in the same way, so that the same bits come out.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.nn import functional as F

from tamis.binary.batchnorm_affine import BatchNormAffine
from tamis.binary.layers import BinaryLayer
from tamis.binary.tracing import (
    OWNER,
    count_uses,
    find_affine_after,
    find_called_module,
    find_only_reader,
    is_hooked,
    trace_calls,
)
from tamis.graph import substitute_modules

SUMS = (operator.add, torch.add, "add")
SUMS_IN_PLACE = (operator.iadd, "add_")  # of their first argument
RELUS = (torch.relu, F.relu, "relu", "relu_", torch.relu_)
REACHING = ("call_module", "get_attr")
PRESERVED = "_user_preserved_attributes"  # where copy.deepcopy of a GraphModule looks for them
ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.Hardtanh, nn.Identity)  # hold nothing, so that each call may have its own


@dataclass(frozen=True)
class FusedEpilogue:
    """A fused epilogue is a batch normalization, a ReLU, or both, in the pass of the layer before."""

    norm: nn.Module | None
    affine: BatchNormAffine | None
    relu: bool


@dataclass(frozen=True)
class _Sum:
    """A `_Sum` adds something to a layer's output, with the nodes of the graph that one call replaces."""

    layer: fx.Node
    norm: fx.Node | None
    sum: fx.Node
    other: fx.Node
    relu: fx.Node | None
    epilogue: FusedEpilogue


def fuse_sums(model: nn.Module) -> tuple[nn.Module, dict[BinaryLayer, FusedEpilogue]]:
    """Rewrite modules that add something to a binary layer's output; return the model and the layers' epilogues.

    Such a layer's call has a second argument, to be added. The model itself is changed, but what its own code adds
    stays as it is.

    Args:
        model: in evaluation mode.
    """
    graph = trace_calls(model)
    if graph is None:
        return model, {}
    # Over the whole model: a layer that is called elsewhere, too, cannot take over what follows one of its calls.
    uses = count_uses(model, graph)
    owners = {node.meta[OWNER]: None for node in graph.nodes if _find_sum(model, node, uses) is not None}
    owners.pop("", None)  # the model itself stays of its class, which users may test for
    replacements: dict[nn.Module, nn.Module] = {}
    epilogues: dict[BinaryLayer, FusedEpilogue] = {}
    for path in owners:
        if any(path.startswith(f"{outer}.") for outer in owners):
            continue  # rewritten with the module that it is part of
        owner = model.get_submodule(path)
        # The same module may stand at several paths, and is rewritten once.
        if owner in replacements or not _is_rewritable(owner) or (inside := trace_calls(owner)) is None:
            continue
        # The rewritten module drops parts that it no longer calls, which other code must not need.
        if not _is_reached_into(path, graph, inside):
            replacements[owner] = _rewrite(owner, inside, uses, epilogues)
    return substitute_modules(model, replacements), epilogues


def find_epilogues(
    model: nn.Module, without: Collection[nn.Module]
) -> dict[BinaryLayer, tuple[FusedEpilogue, list[nn.Module]]]:
    """Find the steps that follow binary layers, and the modules that need no call once these are fused.

    Args:
        model: in evaluation mode.
        without: layers that are not looked at.
    """
    graph = trace_calls(model)
    if graph is None:
        return {}
    uses = count_uses(model, graph)
    epilogues: dict[BinaryLayer, tuple[FusedEpilogue, list[nn.Module]]] = {}
    for node in graph.nodes:
        layer = find_called_module(model, node, uses)
        if not isinstance(layer, BinaryLayer) or layer in without:
            continue
        reader = find_only_reader(node)
        # `find_called_module` is None for whatever has other callers or hooks: its result must stay visible.
        norm = find_called_module(model, reader, uses)
        if (affine := find_affine_after(layer, norm)) is not None and reader is not None:
            reader = find_only_reader(reader)
        relu = find_called_module(model, reader, uses)
        # Exactly nn.ReLU: a subclass may compute something else.
        fused_modules = [
            module for module in (norm if affine else None, relu if type(relu) is nn.ReLU else None) if module
        ]
        if fused_modules:
            epilogues[layer] = FusedEpilogue(norm if affine else None, affine, type(relu) is nn.ReLU), fused_modules
    return epilogues


def _find_sum(model: nn.Module, node: fx.Node, uses: Counter[nn.Module]) -> _Sum | None:
    """Return the sum that a node computes, if a binary layer's output is one term and is read by nothing else."""
    if node.target not in SUMS + SUMS_IN_PLACE or len(node.args) != 2 or node.kwargs:
        return None
    # An in-place sum writes into its first term, which others may read: a layer's output can only be that one.
    for place in (0,) if node.target in SUMS_IN_PLACE else (0, 1):
        term, other = node.args[place], node.args[1 - place]
        if not isinstance(term, fx.Node) or not isinstance(other, fx.Node) or find_only_reader(term) is not node:
            continue
        norm, module = None, find_called_module(model, term, uses)
        # Between the layer and the sum there may be one module, and it has to be a batch normalization.
        if module is not None and not isinstance(module, BinaryLayer):
            norm, term = term, term.args[0]
            if not isinstance(term, fx.Node) or find_only_reader(term) is not norm:
                continue
        layer = find_called_module(model, term, uses)
        affine = find_affine_after(layer, module) if norm is not None and isinstance(layer, BinaryLayer) else None
        if not isinstance(layer, BinaryLayer) or (norm is not None and affine is None):
            continue
        # The fused call comes where the sum was, later than the layer: what is added must exist, and nothing in between
        # may change the layer's input.
        # `y + y` has a single reader, too, and would need the layer's output as its own summand.
        if other in (term, norm) or any(
            _changes_in_place(model, between) for between in _list_nodes_between(term, node)
        ):
            continue
        relu = find_only_reader(node)
        relu = relu if relu is not None and _is_relu(model, relu) else None
        epilogue = FusedEpilogue(module if norm is not None else None, affine, relu is not None)
        return _Sum(term, norm, node, other, relu, epilogue)
    return None


def _rewrite(
    owner: nn.Module, graph: fx.Graph, uses: Counter[nn.Module], epilogues: dict[BinaryLayer, FusedEpilogue]
) -> fx.GraphModule:
    """Return a module like its owner, with sums as second arguments of layers, and record the layers' epilogues."""
    for node in list(graph.nodes):
        node.type = None  # an annotation that is text, as modules of today have them, cannot be pickled
        total = _find_sum(owner, node, uses)
        if total is None:
            continue
        layer = owner.get_submodule(str(total.layer.target))
        assert isinstance(layer, BinaryLayer)
        epilogues[layer] = total.epilogue
        # Where the sum stands, both of its terms are known; at the layer's own place the other one may not be yet.
        with graph.inserting_before(total.sum):
            call = graph.call_module(str(total.layer.target), (total.layer.args[0], total.other))
        (total.relu or total.sum).replace_all_uses_with(call)
        # Readers first: fx refuses to erase a node that something still reads.
        for stale in (total.relu, total.sum, total.norm, total.layer):
            if stale is not None:
                graph.erase_node(stale)
    # The class keeps its name, for messages and for what prints a model.
    rewritten = fx.GraphModule(owner, graph, type(owner).__name__)
    _give_each_call_its_activation(rewritten)
    rewritten.delete_all_unused_submodules()
    rewritten.recompile()
    _keep_attributes(owner, rewritten)
    return rewritten


def _keep_attributes(owner: nn.Module, rewritten: fx.GraphModule) -> None:
    """Copy numbers and other plain values of a module, since code elsewhere may read them."""
    # Parameters and submodules that the graph uses are there already; what is left are numbers, texts and the like.
    plain = {name: value for name, value in vars(owner).items() if not hasattr(rewritten, name)}
    for name, value in plain.items():
        setattr(rewritten, name, value)
    # A copy of a GraphModule is made anew from its graph and takes along only what is named here.
    rewritten.meta[PRESERVED] = plain


def _give_each_call_its_activation(rewritten: fx.GraphModule) -> None:
    """Copy an activation for each place that calls it, so that one of the calls can be fused while others stay."""
    seen: set[str] = set()
    for node in rewritten.graph.nodes:
        if node.op != "call_module" or type(module := rewritten.get_submodule(str(node.target))) not in ACTIVATIONS:
            continue
        if node.target in seen:
            name = next(
                f"{node.target}_{n}"
                for n in range(1, len(rewritten.graph.nodes))
                if not _has_attribute(rewritten, f"{node.target}_{n}")
            )
            rewritten.add_submodule(name, copy.deepcopy(module))
            node.target = name
        seen.add(str(node.target))


def _has_attribute(model: nn.Module, name: str) -> bool:
    parent, _, last = name.rpartition(".")
    return hasattr(model.get_submodule(parent), last)


def _is_rewritable(owner: nn.Module) -> bool:
    """Return whether a module takes one input, and no hook sees its calls."""
    # A graph holds one path through the code, which an argument with a default might change.
    parameters = inspect.signature(owner.forward).parameters.values()
    one = [each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty for each in parameters] == [True]
    return one and not any(map(is_hooked, owner.modules()))


def _is_reached_into(path: str, graph: fx.Graph, inside: fx.Graph) -> bool:
    """Return whether code elsewhere in a model uses a part of a module that the module itself does not use.

    Args:
        path: of the module.
        graph: of the model.
        inside: of the module.
    """
    # Compared by full names, since the graph of the module knows its parts without the path to it.
    own = {f"{path}.{node.target}" for node in inside.nodes if node.op in REACHING}
    targets = {str(node.target) for node in graph.nodes if node.op in REACHING}
    return any(target.startswith(f"{path}.") for target in targets - own)


def _list_nodes_between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    nodes = list(first.graph.nodes)
    return nodes[nodes.index(first) + 1 : nodes.index(last)]


def _changes_in_place(model: nn.Module, node: fx.Node) -> bool:
    """Return whether a node may change its input in place, which a layer called later would see."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    # What has no name might change its input, and counts as if it did.
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    # Of the module `operator`: iadd, isub and so on. That `inv` and `index` begin alike costs a fusion, and nothing
    # else.
    in_place = name.endswith("_") or (node.target in vars(operator).values() and name.startswith("i"))
    return node.op in ("call_function", "call_method") and (
        in_place or "inplace" in node.kwargs or "out" in node.kwargs
    )


def _is_relu(model: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        relu = model.get_submodule(str(node.target))
        return type(relu) is nn.ReLU and not is_hooked(relu)
    return node.target in RELUS and len(node.args) == 1 and not set(node.kwargs) - {"inplace"}
