"""A network's symmetries say which neurons may be rescaled, and which only together (thesis, Definition 2.4.1).

Every neuron gets a scale *variable*: multiplying what flows into it by λ and dividing what flows out by λ leaves the
function unchanged. Operations tie variables together (a pooling window, the two sides of an addition, all pixels of a
channel) or fix them to 1 (inputs, outputs, anything that is not homogeneous). `Scales` collects the ties while a
tensor of variables, shaped like the data, is passed through the graph; `groups` then says which variables are the same.

Variables are numbers in float64 tensors, so that any operation that moves neurons can move variables as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tamis.graph.network import Network, Node, Ref, references_in

ZERO = 0.0  # the variable of a neuron that is always zero (padding): any scale will do
ONE = 1.0  # the variable of a neuron whose scale is fixed to 1


@dataclass(frozen=True)
class Rescaling:
    """A rescaling multiplies a parameter by the scales of `times` and divides it by those of `over` (broadcast)."""

    param: str
    times: Tensor
    over: Tensor | None = None


@dataclass(frozen=True)
class Layer:
    """A layer has neurons with weights of their own, and knows the variables of the channels it reads and writes.

    `output_axis` and `input_axis` are those of the weight; grouped weights hold one group's channels on one of them.
    """

    node: str
    weight: str  # argument names of the node
    bias: str | None
    output_axis: int
    input_axis: int
    groups: int
    incoming: Tensor
    outgoing: Tensor

    def spread_over_outputs(self, values: Tensor, weight_dim: int) -> Tensor:
        """Arrange one value per output channel to broadcast with the weight."""
        return self._arrange(values, self.output_axis, len(self.incoming), weight_dim)

    def spread_over_inputs(self, values: Tensor, weight_dim: int) -> Tensor:
        """Arrange one value per input channel to broadcast with the weight."""
        return self._arrange(values, self.input_axis, len(self.outgoing), weight_dim)

    def _arrange(self, values: Tensor, axis: int, across: int, weight_dim: int) -> Tensor:
        if axis == 0 or self.groups == 1:
            shape = [1] * weight_dim
            shape[axis] = -1
            return values.reshape(shape)
        # On axis 1 of a grouped weight lies one group's share; which group it is follows from axis 0.
        rows = across // self.groups
        table = values.reshape(self.groups, 1, -1).expand(-1, rows, -1).flatten(0, 1)
        return table.reshape(*table.shape, *[1] * (weight_dim - 2))

    def sum_into_outputs(self, weight: Tensor) -> Tensor:
        """Sum the weight over everything that feeds each output channel."""
        if weight.dim() == 1:  # one weight a channel, as in batch normalization
            return weight
        if self.output_axis == 0:
            return weight.flatten(1).sum(1)
        # A transposed kernel is (inputs, outputs / groups, *window): the outputs of a group lie on axis 1, and only the
        # inputs of the same group feed them, so the sum over axis 0 must stop at the borders of groups.
        return (
            weight.unflatten(0, (self.groups, -1)).flatten(3).sum((1, 3)).flatten()
            if weight.dim() > 2
            else weight.sum(0)
        )


@dataclass
class Scales:
    """`Scales` gathers the scale variables of a network's neurons by passing them through its operations."""

    net: Network
    folded: frozenset[str] = frozenset()  # batch-norms that are one neuron with the layer before them
    products: frozenset[str] = frozenset()  # nodes that multiply two tensors entry by entry
    layers: list[Layer] = field(default_factory=list)
    rescalings: list[Rescaling] = field(default_factory=list)
    fed: list[Tensor] = field(default_factory=list)  # variables of neurons that something is added to after their layer
    kept: list[Tensor] = field(default_factory=list)  # variables whose outgoing weights must not be set to zero
    count: int = 2  # ZERO and ONE
    _ties: list[Tensor] = field(default_factory=list)

    # -- what operations call --------------------------------------------------------------------------------------

    def fixed(self, node: Node) -> Tensor | None:
        """Return the variables of a result that cannot be rescaled."""
        return None if node.shape is None else torch.tensor(ONE, dtype=torch.float64).expand(node.shape)

    def fix(self, variables: Any) -> None:
        """Fix the scale of these neurons to 1, those inside tuples and lists too."""
        if isinstance(variables, Tensor):
            self._tie(_drop_repeats(variables), torch.tensor(ONE, dtype=torch.float64))
        elif isinstance(variables, (tuple, list)):
            for item in variables:
                self.fix(item)

    def same(self, a: Tensor, b: Tensor) -> Tensor:
        """Tie two tensors of variables entry by entry, and return the tied variables."""
        a, b = torch.broadcast_tensors(a, b)
        shape = a.shape
        # A dimension that both only repeat would add the same ties again for every pixel.
        for dim in range(a.dim()):
            if a.stride(dim) == 0 and b.stride(dim) == 0:
                a, b = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
        self._tie(a, b)
        # ZERO is tied to nothing, so where one side is always zero the result has the other side's scale.
        return torch.where(a == ZERO, b, a).expand(shape)

    def reduced(self, variables: Tensor, dims: Any, keepdim: bool) -> Tensor:
        """Tie all variables along some dimensions (all if none is named), and drop those dimensions."""
        every = tuple(range(variables.dim()))
        dims = tuple(dims) if isinstance(dims, (list, tuple)) else (() if dims is None else (dims,))
        dims = tuple(dim % variables.dim() for dim in dims) or every
        kept = [variables.shape[dim] for dim in every if dim not in dims]
        # Pixels of a channel are expanded, not copied: without this, a tie would be recorded for each pixel of an
        # image.
        compact = _drop_repeats(variables)
        # Any variable could represent the rest, except ZERO, which `_tie` skips; the largest is ZERO only if all are.
        largest = compact.amax(dims, keepdim=True)
        self._tie(compact, largest)
        shape = [1 if dim in dims else variables.shape[dim] for dim in every]
        return largest.expand(shape) if keepdim else largest.expand(shape).reshape(kept)

    def spread(self, channels: Tensor, axis: int, shape: tuple[int, ...]) -> Tensor:
        """Return the variables of channels along one axis, for a tensor of that shape."""
        return channels.view([-1 if dim == axis else 1 for dim in range(len(shape))]).expand(shape)

    def along(self, variables: Tensor, axis: int) -> Tensor:
        """Tie everything but one axis, and return the variables along that axis."""
        axis %= variables.dim()
        others = [dim for dim in range(variables.dim()) if dim != axis]
        return self.reduced(variables, others, False) if others else variables

    def layer(
        self, node: Node, weight: str, axes: tuple[int, int], incoming: Tensor, bias: str | None = None, groups: int = 1
    ) -> Tensor:
        """Record a layer that can absorb scales in its weight and bias, and return its outgoing variables."""
        output_axis, input_axis = axes
        # None where the weight is computed, shared or read twice: then a scale could not be absorbed here alone.
        owner = self._find_owner(node, weight)
        shape = self._find_shape(node, weight)
        # A transposed kernel has one group's outputs on axis 1, the others are on axis 0.
        size = shape[output_axis] * (groups if output_axis == 1 else 1)
        has_bias = bias is not None and node.arguments.get(bias) is not None
        bias_owner = self._find_owner(node, bias) if has_bias and bias else None
        if bias_owner is not None and bias and self._find_shape(node, bias) != (size,):
            bias_owner = None  # one bias for several channels
        # A weight that only this layer reads can absorb 1/λ of its inputs. Its outputs have scales of their own only if
        # the bias can follow as well.
        if owner is None:
            self.fix(incoming)
        free = owner is not None and (not has_bias or bias_owner is not None)
        outgoing = self._make_variables(size) if free else torch.full((size,), ONE, dtype=torch.float64)
        layer = Layer(
            node.name, weight, bias if has_bias else None, output_axis, input_axis, groups, incoming, outgoing
        )
        self.layers.append(layer)
        if owner is not None:
            # w ← λ_out w / λ_in: inputs arrive multiplied by λ_in, and outputs must leave multiplied by λ_out
            # (Definition 2.4.1).
            times, over = (
                layer.spread_over_outputs(outgoing, len(shape)),
                layer.spread_over_inputs(incoming, len(shape)),
            )
            self.rescalings.append(Rescaling(owner, times, over))
        if free and bias_owner is not None:
            # A bias reads a constant 1, which has no scale to be divided by.
            self.rescalings.append(Rescaling(bias_owner, outgoing))
        return outgoing

    def batch_norm(self, node: Node, incoming: Tensor) -> Tensor:
        """Record a batch-norm, and return its outgoing variables.

        Running mean and shift follow the scale. A batch-norm that is a neuron of its own has a scale of its own.
        """
        # The running variance never changes: γ alone carries λ_out/λ_in, and s x + t = s (x − μ) + β scales with it if
        # μ follows λ_in and β follows λ_out.
        owners = {name: self._find_owner(node, name) for name in ("weight", "bias", "running_mean")}
        given = {name for name in owners if node.arguments[name] is not None}
        if any(owners[name] is None for name in given - {"weight"}):
            self.fix(incoming)
            return incoming
        outgoing = incoming
        if node.name not in self.folded and owners["weight"] is not None:
            outgoing = self._make_variables(len(incoming))
            self.kept.append(incoming)  # its shift β − s μ must not lose s, even where nothing flows in
            self.layers.append(Layer(node.name, "weight", "bias", 0, 0, 1, incoming, outgoing))
            self.rescalings.append(Rescaling(owners["weight"], outgoing, incoming))
        if owners["bias"] is not None:
            self.rescalings.append(Rescaling(owners["bias"], outgoing))
        if owners["running_mean"] is not None:
            self.rescalings.append(Rescaling(owners["running_mean"], incoming))
        return outgoing

    def added(self, node: Node, fixed: str, variables: Tensor) -> Tensor:
        """Record a parameter that is added to data, and so follows the scale of this data."""
        owner = self._find_owner(node, fixed)
        assert node.shape is not None
        variables = variables.expand(node.shape)
        # These neurons are alive even if every weight into them is zero, so that they must not be set to zero as dead.
        self.fed.append(_drop_repeats(variables).flatten())
        if owner is None:
            self.fix(variables)
            return variables
        shape = self._find_shape(node, fixed)
        # The parameter broadcasts as torch does it: missing dimensions are in front.
        padded = (1,) * (variables.dim() - len(shape)) + shape
        tied = [dim for dim, size in enumerate(padded) if size == 1]
        # Neurons that share one entry of the parameter can only be rescaled together.
        per_entry = self.reduced(variables, tied, True) if tied else variables
        self.rescalings.append(Rescaling(owner, per_entry.reshape(shape)))
        return variables

    # -- what comes of it ------------------------------------------------------------------------------------------

    def groups(self) -> Tensor:
        """Return for each variable the representative of those tied to it; whatever is tied to ONE has ONE."""
        # Union-find, with halved paths instead of ranks: ties come in long chains, which halving keeps short.
        parent = list(range(self.count))

        def root(i: int) -> int:
            while parent[i] != i:
                parent[i] = parent[parent[i]]
                i = parent[i]
            return i

        for pairs in self._ties:
            for a, b in pairs.tolist():
                # The smaller number becomes the root, so that ONE, smaller than all but ZERO, represents its group.
                low, high = sorted((root(int(a)), root(int(b))))
                parent[high] = low
        return torch.tensor([root(i) for i in range(self.count)])

    def mark_representatives(self, variables: list[Tensor], groups: Tensor) -> Tensor:
        """Mark the representatives of these variables."""
        mask = torch.zeros(self.count, dtype=torch.bool)
        for each in variables:
            mask[groups[each.long()]] = True
        return mask

    def apply(self, scales: Tensor, dead: Tensor | None = None) -> Network:
        """Return the network with each parameter rescaled; `scales` holds λ for each variable.

        What flows out of a variable marked `dead` is set to zero instead.
        """
        inverse = 1 / scales
        if dead is not None:
            # What reads a dead variable reads zeros, and its weights do not matter: Algorithm 3.2.1 sets them to zero.
            inverse[dead] = 0
        changed: dict[str, Tensor] = {}
        for rescaling in self.rescalings:
            value = changed.get(rescaling.param, self.net.params[rescaling.param])
            factor = scales[rescaling.times.long()]
            if rescaling.over is not None:
                factor = factor * inverse[rescaling.over.long()]
            # In float64, so that a product of scales that float32 does not hold is rounded once, and powers of two not
            # at all.
            changed[rescaling.param] = (value.double() * factor.to(value.device)).to(value.dtype)
        return self.net.replace(params={**self.net.params, **changed})

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _make_variables(self, size: int) -> Tensor:
        self.count += size
        return torch.arange(self.count - size, self.count, dtype=torch.float64)

    def _tie(self, a: Tensor, b: Tensor) -> None:
        a, b = torch.broadcast_tensors(a, b)
        # Zero times any scale is zero: a padded border must not fix the scale of what it is added to.
        differ = (a != b) & (a != ZERO) & (b != ZERO)
        if differ.any():
            self._ties.append(torch.unique(torch.stack([a[differ], b[differ]], 1), dim=0).long())

    def _find_shape(self, node: Node, argument: str) -> tuple[int, ...]:
        return self.net.shape_of(node.arguments[argument].name)

    def _find_owner(self, node: Node, argument: str) -> str | None:
        """Return the parameter that an argument is, or is an entrywise multiple of, if nothing else uses it."""
        reference = node.arguments.get(argument)
        if not isinstance(reference, Ref):
            return None
        name = reference.name
        if name in self.net.params:
            return name if self._is_used_once(name) and self.net.params[name].is_floating_point() else None
        source = self.net.node.get(name)
        if source is None or name not in self.products or not self._is_used_once(name):
            return None
        masks = self.net.params.keys() - self.net.trainable
        for factor, other in (("self", "other"), ("other", "self")):  # a pruning mask times a weight
            weight, mask = source.arguments[factor], source.arguments[other]
            if isinstance(weight, Ref) and isinstance(mask, Ref) and mask.name in masks:
                alone = weight.name in self.net.trainable and self._is_used_once(weight.name)
                if alone and self._find_shape(source, factor) == source.shape:
                    return weight.name
        return None

    def _is_used_once(self, name: str) -> bool:
        # Counted by reference and not by node: W * W reads W twice in one node, and could not absorb a scale.
        uses = [ref for node in self.net.users.get(name, ()) for ref in references_in((node.args, node.kwargs))]
        return uses.count(name) == 1 and name not in self.net.output_names


def _drop_repeats(variables: Tensor) -> Tensor:
    """Drop the repetition of expanded dimensions."""
    for dim in range(variables.dim()):
        if variables.stride(dim) == 0 and variables.shape[dim] > 1:
            variables = variables.narrow(dim, 0, 1)
    return variables
