"""Batch normalization becomes plain affine maps, folded into the layer before it or written out as product and sum.

In evaluation mode BatchNorm(x) = s x + t with s = γ/√(σ²+ε) and t = β − s μ. Folded into the layer before it, the
weights become s w and the bias s b + t. Since |s b + t| ≤ |s||b| + |t|, folding never raises a path-norm, and the sign
of the running mean is not lost (ERRATA 17). Parameters keep their names: the new weights are nodes computed from them.
"""

from __future__ import annotations

from typing import Any

import torch

from tamis.errors import InvalidParameters
from tamis.graph.network import Network, Node, Ref, resolve
from tamis.graph.ops import Capability, capability, describe

aten = torch.ops.aten  # of the nodes that are written here


def find_foldable(net: Network) -> dict[str, str]:
    """Map each batch-norm node to the layer before it, where nobody else reads that layer."""
    pairs: dict[str, str] = {}
    for node in net.data_nodes:
        if not is_affine_batch_norm(net, node):
            continue
        before = node.args[0].name
        source = pairs.get(before, before)  # through a batch-norm that is folded already
        layer = net.node.get(source)
        if layer is None or not describe(layer).folds_batch_norm:
            continue
        if len(net.users[before]) != 1 or before in net.output_names:
            continue  # someone reads the layer's own outputs
        rank = len(net.shape_of(layer.arguments["weight"].name))
        if len(layer.shape or ()) != rank:
            continue  # no batch, or an axis too many: the batch-norm's channels are not the layer's
        if capability(net, layer) is Capability.HOMOGENEOUS:
            pairs[node.name] = source
    return pairs


def is_affine_batch_norm(net: Network, node: Node) -> bool:
    """Return whether a node is a batch normalization with fixed statistics."""
    return describe(node).is_batch_norm and capability(net, node) is Capability.HOMOGENEOUS


def fold_batch_norm(net: Network, fold: bool = True) -> Network:
    """Return a network of the same function without batch-norm nodes.

    Args:
        net: a network.
        fold: fold each batch-norm into the layer before it where there is one; otherwise (and where there is none)
            write it as a product with s and a sum with t, neurons of their own.
    """
    norms = [node for node in net.data_nodes if is_affine_batch_norm(net, node)]
    if not norms:
        return net
    _check_variances(net, norms)
    return _Folder(net, find_foldable(net) if fold else {}).run()


def _check_variances(net: Network, norms: list[Node]) -> None:
    for node in norms:
        name, eps = node.arguments["running_var"].name, node.arguments["eps"]
        smallest = float(net.params[name].min()) if name in net.params else 0.0
        if smallest + eps <= 0:
            raise InvalidParameters(f"running variance '{name}' has the entry {smallest:g}, which is negative")


class _Folder:
    """A folder rewrites the nodes of a network one by one; `pairs` says which batch-norm goes into which layer."""

    def __init__(self, net: Network, pairs: dict[str, str]) -> None:
        self.net, self.pairs = net, pairs
        self.nodes: list[Node] = []
        self.shapes: dict[str, tuple[int, ...]] = {}  # of the nodes that are new
        self.renamed: dict[str, str] = {}
        self.folded: dict[str, Node] = {}  # layer name → its node, rewritten so far

    def run(self) -> Network:
        # A folded layer stands where its last batch-norm stood, so that all it needs has been computed.
        layers = set(self.pairs.values())
        # Several batch-norms in a row may go into one layer; the last entry for it wins here.
        last = {layer: bn for bn, layer in self.pairs.items()}
        for node in self.net.nodes:
            if node.name in layers:
                self.folded[node.name] = self._rename_references(node)
            elif node.name in self.pairs:
                layer = self.pairs[node.name]
                self.folded[layer] = self._fold(self._rename_references(node), self.folded[layer])
                self.renamed[node.name] = layer  # whoever read the batch-norm reads the layer from here on
                if last[layer] == node.name:
                    self.nodes.append(self.folded[layer])
            elif is_affine_batch_norm(self.net, node):
                self._write_out(self._rename_references(node))
            else:
                self.nodes.append(self._rename_references(node))
        outputs = resolve(self.net.outputs, lambda name: Ref(self.renamed.get(name, name)))
        return self.net.replace(nodes=tuple(self.nodes), outputs=outputs)

    def _rename_references(self, node: Node) -> Node:
        def lookup(name: str) -> Ref:
            return Ref(self.renamed.get(name, name))

        args, kwargs = resolve(node.args, lookup), resolve(node.kwargs, lookup)
        return Node(node.name, node.target, args, kwargs, node.module, node.shape)

    def _emit(self, name: str, target: Any, args: tuple[Any, ...], like: Node, shape: tuple[int, ...]) -> Ref:
        self.nodes.append(Node(name, target, args, {}, like.module, shape))
        self.shapes[name] = shape
        return Ref(name)

    def _scale_and_shift(self, bn: Node) -> tuple[Ref, Ref]:
        """Emit s = γ (σ²+ε)^(−1/2) and t = β − μ s as nodes."""
        named, channels = bn.arguments, (bn.shape or ())[1:2]
        shifted = self._emit(f"{bn.name}.variance", aten.add.Tensor, (named["running_var"], named["eps"]), bn, channels)
        scale = self._emit(f"{bn.name}.scale", aten.rsqrt.default, (shifted,), bn, channels)
        if named["weight"] is not None:
            scale = self._emit(f"{bn.name}.gamma", aten.mul.Tensor, (named["weight"], scale), bn, channels)
        # t = β − s μ is computed signed, before any magnitude is taken: |β| + |s μ| would be too large (ERRATA 17).
        shift = self._emit(f"{bn.name}.mean", aten.mul.Tensor, (named["running_mean"], scale), bn, channels)
        if named["bias"] is None:
            shift = self._emit(f"{bn.name}.shift", aten.neg.default, (shift,), bn, channels)
        else:
            shift = self._emit(f"{bn.name}.shift", aten.sub.Tensor, (named["bias"], shift), bn, channels)
        return scale, shift

    def _write_out(self, bn: Node) -> None:
        scale, shift = self._scale_and_shift(bn)
        shape = bn.shape or ()
        column = (shape[1], *[1] * (len(shape) - 2))
        scale = self._emit(f"{bn.name}.s", aten.reshape.default, (scale, list(column)), bn, column)
        shift = self._emit(f"{bn.name}.t", aten.reshape.default, (shift, list(column)), bn, column)
        # The last node keeps the batch-norm's name, so that whoever reads it need not be changed.
        product = self._emit(f"{bn.name}.product", aten.mul.Tensor, (bn.args[0], scale), bn, shape)
        self._emit(bn.name, aten.add.Tensor, (product, shift), bn, shape)

    def _fold(self, bn: Node, layer: Node) -> Node:
        scale, shift = self._scale_and_shift(bn)
        named = dict(layer.arguments)
        channels = (bn.shape or ())[1:2]
        named["weight"] = self._scale_weight(bn, layer, named["weight"], scale)
        if named["bias"] is not None:
            scaled = self._emit(f"{bn.name}.old_bias", aten.mul.Tensor, (named["bias"], scale), bn, channels)
            shift = self._emit(f"{bn.name}.bias", aten.add.Tensor, (scaled, shift), bn, channels)
        named["bias"] = shift
        return Node(layer.name, layer.target, (), named, layer.module, layer.shape)

    def _scale_weight(self, bn: Node, layer: Node, weight: Ref, scale: Ref) -> Ref:
        """Multiply each output channel's weights by its s; a grouped transposed kernel needs s laid out by groups."""
        channels, shape = (bn.shape or ())[1], self._find_shape(weight.name)
        if describe(layer).channel_axes == (1, 0):
            groups = layer.arguments["groups"]
            # Row i of a transposed kernel (inputs, outputs / groups, *window) holds the outputs of i's group alone.
            rows, columns = shape[0] // groups, channels // groups
            table = self._emit(
                f"{bn.name}.s1", aten.reshape.default, (scale, [groups, 1, columns]), bn, (groups, 1, columns)
            )
            table = self._emit(f"{bn.name}.s2", aten.repeat.default, (table, [1, rows, 1]), bn, (groups, rows, columns))
            column = (shape[0], columns, *[1] * (len(shape) - 2))
            factor = self._emit(f"{bn.name}.s", aten.reshape.default, (table, list(column)), bn, column)
        else:
            column = (channels, *[1] * (len(shape) - 1))
            factor = self._emit(f"{bn.name}.s", aten.reshape.default, (scale, list(column)), bn, column)
        return self._emit(f"{bn.name}.weight", aten.mul.Tensor, (weight, factor), bn, shape)

    def _find_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes[name] if name in self.shapes else self.net.shape_of(name)
