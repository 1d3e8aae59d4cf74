"""`lifting` enumerates the path-lifting Φ(θ) and path-activations A(θ,x) of tiny networks (thesis, Definition 2.3.3).

It is the oracle for all other path computations: apart from folding batch-norm (tested by outputs) and reading
parameters, it shares no code with the fast passes. Every node is taken apart into neurons by probing the operation
itself: an affine operation is applied to each unit vector, which gives its edges, and to zero, which gives its biases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from tamis.errors import InvalidInput
from tamis.graph import FixedValues, Network, Node, fold_batch_norm, references_in
from tamis.graph.ops import Call, Capability, PiecewiseLinear, describe, require


@dataclass(frozen=True)
class Lifting:
    """A lifting is Φ(θ) with one entry for each path; paths through an edge of weight zero are left out.

    Attributes:
        phi: Φ_p(θ).
        ends: the output neuron of each path, numbered over the flattened outputs.
        starts: the input neuron of each path, numbered over the flattened inputs, or −1 where it starts at a bias.
        activations: a_p(θ,x), if an input was given: 0 or 1, or a LeakyReLU's slopes.
        products: Π(θ,p,q)^q for the q that was given (thesis, Definition 3.3.1); give Π_{q,r} if no weight is 0.
    """

    phi: Tensor
    ends: Tensor
    starts: Tensor
    activations: Tensor | None
    products: Tensor
    inputs: int
    outputs: int
    q: float

    def norm(self, q: float, r: float) -> float:
        """Compute ‖Φ(θ)‖_{q,r}, straight from the definition."""
        sums = torch.zeros(self.outputs, dtype=torch.float64).index_add_(0, self.ends, self.phi.abs() ** q)
        return float(torch.linalg.vector_norm(sums ** (1 / q), r))

    def product_norm(self, r: float) -> float:
        """Compute Π_{q,r}(θ), straight from the definition."""
        largest = torch.zeros(self.outputs, dtype=torch.float64).scatter_reduce_(0, self.ends, self.products, "amax")
        return float(torch.linalg.vector_norm(largest ** (1 / self.q), r))

    def matrix(self) -> Tensor:
        """Return A(θ,x), of shape paths × (input neurons and, last, the bias), for the x that was given."""
        if self.activations is None:
            raise InvalidInput("path-activations need an input: lifting(net, x)")
        # A path has its activation in one column, that of its start; −1 is the last, the bias. Printed, the bias column
        # would count paths from inputs, too (ERRATA 31).
        matrix = torch.zeros(len(self.phi), self.inputs + 1, dtype=torch.float64)
        matrix[torch.arange(len(self.phi)), self.starts % (self.inputs + 1)] = self.activations
        return matrix

    def realization(self, x: Tensor) -> Tensor:
        """Compute ⟨Φ^{→v}, A^{→v}(x, 1)⟩ for every output neuron v (thesis, Theorem 2.4.2)."""
        flat = torch.cat([x.flatten().double(), torch.ones(1, dtype=torch.float64)])
        terms = self.phi * (self.matrix() @ flat)
        return torch.zeros(self.outputs, dtype=torch.float64).index_add_(0, self.ends, terms)


def lifting(net: Network, x: Tensor | None = None, fold: bool = True, q: float = 1, limit: int = 10**6) -> Lifting:
    """Enumerate every path of a small network.

    Args:
        net: a network of homogeneous operations.
        x: one input (batch of one) at which to compute path-activations.
        fold: as in `path_norm`.
        q: the exponent of Π_{q,r}; Φ itself does not depend on it.
        limit: the most paths that are enumerated.

    Example:
        >>> x = torch.tensor([[1.0, 1.0]])
        >>> net = tamis.trace(torch.nn.Linear(2, 1), x)
        >>> net = net.with_params({"weight": torch.tensor([[3.0, -1.0]]), "bias": torch.tensor([2.0])})
        >>> lifted = tamis.lifting(net, x)
        >>> lifted.phi   # one path from the bias, and one from each input
        tensor([ 2.,  3., -1.], dtype=torch.float64)
        >>> lifted.realization(x)   # equals net(x), flattened
        tensor([4.], dtype=torch.float64)
    """
    require(net, Capability.HOMOGENEOUS, "lifting")
    net.check_finite()
    if len(net.inputs) != 1:
        raise InvalidInput(f"lifting needs a network with one input, this one has {list(net.inputs)}")
    return _Enumerator(fold_batch_norm(net.to(torch.float64), fold), x, q, limit).run()


@dataclass(frozen=True)
class _Paths:
    """A table of the paths to one tensor's neurons has their ends, starts, Φ, activations and Π^q."""

    end: Tensor
    start: Tensor
    phi: Tensor
    active: Tensor
    product: Tensor


@dataclass(frozen=True)
class _Edges:
    """Edges u → v lead from one tensor to a node's neurons, with weights and activations at the given input."""

    source: str
    v: Tensor
    u: Tensor
    weight: Tensor
    active: Tensor


class _Enumerator:
    def __init__(self, net: Network, x: Tensor | None, q: float, limit: int) -> None:
        self.net, self.q, self.limit = net, q, limit
        self.shape = net.input_shapes[0]
        if x is not None:
            net.check_inputs((x,))
            if net.batched and len(x) != 1:
                raise InvalidInput(f"lifting takes one input at a time, got a batch of {len(x)}")
        self.x = torch.zeros(self.shape, dtype=torch.float64) if x is None else x.double()
        self.given = x is not None
        self.fixed = dict(FixedValues(net))
        self.values: dict[str, Any] = {net.inputs[0]: self.x}
        size = self.x.numel()
        one = torch.ones(size, dtype=torch.float64)
        self.paths: dict[tuple[str, int], _Paths] = {
            (net.inputs[0], 0): _Paths(torch.arange(size), torch.arange(size), one, one, one)
        }

    def run(self) -> Lifting:
        for node in self.net.data_nodes:
            call = Call(node, self._look_up, self.net.carries_data)
            self.values[node.name] = call.run()
            if describe(node).picks_result:
                source, index = node.args[0].name, node.args[1]
                if (source, index) in self.paths:
                    self.paths[node.name, 0] = self.paths[source, index]
                continue
            for index, result in enumerate(_as_list(self.values[node.name])):
                if result.is_floating_point():
                    self.paths[node.name, index] = self._find_paths_to(node, call, index, result)
        return self._collect_outputs()

    def _look_up(self, name: str) -> Any:
        return self.values[name] if name in self.values else self.fixed[name]

    def _collect_outputs(self) -> Lifting:
        tables, offset = [], 0
        for name in self.net.output_names:
            table = self.paths[name, 0]
            tables.append(replace(table, end=table.end + offset))
            offset += self.values[name].numel()
        joined = _join_tables(tables)
        active = joined.active if self.given else None
        return Lifting(joined.phi, joined.end, joined.start, active, joined.product, self.x.numel(), offset, self.q)

    def _find_paths_to(self, node: Node, call: Call, index: int, result: Tensor) -> _Paths:
        """Return the paths to a node's neurons: those of its antecedents, continued, and those from its biases."""
        op = describe(node)
        bias = torch.zeros(result.numel(), dtype=torch.float64)
        function = op.function(call)
        if op.selects:
            edges = self._find_selection_edges(node, index, result)
        elif isinstance(function, PiecewiseLinear):
            edges = [self._find_activation_edges(node, function)]
        else:
            edges, bias = self._find_affine_edges(node, index)
        # Π needs the norm of all incoming weights at once, so it is summed before any path is continued.
        incoming = torch.zeros_like(bias)  # ‖θ^{→v}‖_q^q
        for each in edges:
            incoming.index_add_(0, each.v, each.weight.abs() ** self.q)
        joined = _join_tables(
            [self._start_at_biases(bias), *(self._continue_paths(each, bias, incoming) for each in edges)]
        )
        if len(joined.phi) > self.limit:
            raise InvalidInput(f"more than {self.limit:,} paths: {len(joined.phi):,} end at '{node.name}' alone")
        return joined

    # -- the three kinds of neurons --------------------------------------------------------------------------------

    def _find_affine_edges(self, node: Node, index: int) -> tuple[list[_Edges], Tensor]:
        """Find edges by unit vectors, biases by zero; a tensor that is read twice has two edges (x + x is not 2x)."""
        carried = self._list_data_reads(node)
        zeros = [torch.zeros(self.values[name].shape, dtype=torch.float64) for name in carried]

        bias = self._run(node, index, zeros)
        edges = []
        for place, name in enumerate(carried):
            columns = []
            for j in range(zeros[place].numel()):
                unit = torch.zeros_like(zeros[place])
                unit.view(-1)[j] = 1.0
                # Column j of the matrix is f(e_j) − f(0), up to what the sum of a weight and a bias rounds.
                columns.append(self._run(node, index, [*zeros[:place], unit, *zeros[place + 1 :]]) - bias)
            weights = torch.stack(columns, 1)
            v, u = weights.nonzero(as_tuple=True)
            edges.append(_Edges(name, v, u, weights[v, u], torch.ones(len(v), dtype=torch.float64)))
        return edges, bias

    def _list_data_reads(self, node: Node) -> list[str]:
        """Return the data that a node reads, once for every time it reads it."""
        return [name for name in references_in(node.arguments) if name in self.net.carries_data]

    def _find_activation_edges(self, node: Node, function: PiecewiseLinear) -> _Edges:
        """Return one edge for each neuron, of the steepest slope; its activation says on which side of zero it is."""
        (name,) = self._list_data_reads(node)
        x = self.values[name].flatten()
        below, above = function.slopes[0], function.slopes[-1]  # a homogeneous one has no kink but at zero
        weight = max(abs(below), abs(above))
        active = torch.where(x > 0, torch.full_like(x, above), below) / weight
        every = torch.arange(len(x))
        return _Edges(name, every, every, torch.full((len(x),), weight, dtype=torch.float64), active.double())

    def _find_selection_edges(self, node: Node, index: int, result: Tensor) -> list[_Edges]:
        """Return an edge of weight one from every candidate; active from the first whose value was selected."""
        # Ties need a rule: two active edges would count the selected value twice.
        members = self._find_candidates(node, index, result)
        taken = torch.zeros(result.numel(), dtype=torch.bool)
        edges = []
        for name, v, u in members:
            hit = (self.values[name].flatten()[u] == result.flatten()[v]) & ~taken[v]
            # Pairs are in lexicographic order, v before u, so the first hit of each v is the one that differs in v from
            # the hit before it.
            hits = hit.nonzero().flatten()
            winners = hits[torch.cat([v.new_ones(1), v[hits].diff()])[: len(hits)] != 0]
            active = torch.zeros(len(v), dtype=torch.float64)
            active[winners] = 1.0
            taken[v[winners]] = True
            edges.append(_Edges(name, v, u, torch.ones(len(v), dtype=torch.float64), active))
        return edges

    def _find_candidates(self, node: Node, index: int, result: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """Return pairs (v, u) for each tensor that is read: neuron v selects among neurons u of that tensor.

        All n neurons get values of their own, 1 to n, and what v gives tells which of them it has selected. Handing the
        values on in a circle, n times, changes the order of any set of neurons by a rotation at a time, so that each
        of them is once the largest, once the second largest, and so on: whatever v selects by, each is selected once.
        """
        carried = self._list_data_reads(node)
        shapes = [self.values[name].shape for name in carried]
        sizes = [math.prod(shape) for shape in shapes]
        total = sum(sizes)
        owners: list[Tensor] = []
        for shift in range(total):
            values = (torch.arange(total) + shift) % total + 1
            probes = [part.double().view(shape) for part, shape in zip(values.split(sizes), shapes, strict=True)]
            owners.append((self._run(node, index, probes).long() - 1 - shift) % total)
        places = torch.arange(result.numel()).repeat(total)
        pairs = torch.unique(torch.stack([places, torch.cat(owners)], 1), dim=0)  # in order: by v, then by u
        members, offset = [], 0
        for name, size in zip(carried, sizes, strict=True):
            mine = pairs[(pairs[:, 1] >= offset) & (pairs[:, 1] < offset + size)]
            members.append((name, mine[:, 0], mine[:, 1] - offset))
            offset += size
        return members

    def _run(self, node: Node, index: int, inputs: list[Tensor]) -> Tensor:
        """Compute one result of a node, flattened, from one tensor for every time that it reads data."""
        # References are resolved in the order of `_list_data_reads`: each time data is read, the next tensor is taken.
        upcoming = iter(inputs)

        def lookup(name: str) -> Any:
            return next(upcoming) if name in self.net.carries_data else self.fixed[name]

        return _as_list(Call(node, lookup, self.net.carries_data).run())[index].flatten()

    # -- joining paths ---------------------------------------------------------------------------------------------

    def _start_at_biases(self, bias: Tensor) -> _Paths:
        v = bias.nonzero().flatten()
        one = torch.ones(len(v), dtype=torch.float64)
        return _Paths(v, torch.full_like(v, -1), bias[v], one, bias[v].abs() ** self.q)

    def _continue_paths(self, edges: _Edges, bias: Tensor, incoming: Tensor) -> _Paths:
        """Continue every path that ends at u by the edge u → v."""
        # Paths are sorted by their ends, so those that end at u lie side by side, from first[u] on. Every edge is
        # repeated once for each of them.
        table, v, u = self.paths[edges.source, 0], edges.v, edges.u
        order = torch.argsort(table.end, stable=True)
        count = torch.bincount(table.end, minlength=self.values[edges.source].numel())
        first = torch.cumsum(count, 0) - count
        repeats = count[u]
        # Checked before anything of that size is allocated.
        if int(repeats.sum()) > self.limit:
            raise InvalidInput(f"the network has more than {self.limit:,} paths")
        edge = torch.repeat_interleave(torch.arange(len(v)), repeats)
        within = torch.arange(len(edge)) - torch.repeat_interleave(torch.cumsum(repeats, 0) - repeats, repeats)
        path, end = order[first[u[edge]] + within], v[edge]
        # Π(θ,p,q)^q by recursion: |b_v|^q + ‖θ^{→v}‖_q^q times that of the path to u (thesis, Definition 3.3.1).
        product = bias[end].abs() ** self.q + incoming[end] * table.product[path]
        phi, active = table.phi[path] * edges.weight[edge], table.active[path] * edges.active[edge]
        return _Paths(end, table.start[path], phi, active, product)


def _as_list(value: Any) -> list[Tensor]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _join_tables(tables: list[_Paths]) -> _Paths:
    return _Paths(*(torch.cat([getattr(table, field.name) for table in tables]) for field in fields(_Paths)))
