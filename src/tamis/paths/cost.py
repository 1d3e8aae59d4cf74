"""Φ-costs say what each coordinate contributes to the path-norm (thesis, (3.16) and section 3.5.2)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tamis.errors import AssumptionViolated, InvalidInput
from tamis.graph import FixedValues, Network, Node, fold_batch_norm, references_in, resolve
from tamis.graph.ops import Capability, Entrywise, describe, require
from tamis.paths.norm import PathNorms
from tamis.paths.passes import Lookup, Operation, find_adding_nodes, gather, ones_input, walk
from tamis.paths.scaled import Scaled, is_weight, times_power_of_two
from tamis.paths.weights import Magnitudes, Weights, stored_sources

# What makes each entry of a weight a multiple of one entry of a parameter.
MULTIPLES = (Entrywise.PRODUCT, Entrywise.NEGATION, Entrywise.RESHAPE, Entrywise.MOVE)


@dataclass(frozen=True)
class PathCosts:
    """The Φ-costs of a parameter's coordinates are `values[name]` · exp(`log_scale`), shaped like the parameter."""

    values: Mapping[str, Tensor]
    log_scale: float


def path_costs(net: Network) -> PathCosts:
    """Compute by how much the ℓ¹ path-norm drops when a coordinate is set to zero, for all coordinates at once.

    Φ-Cost(θ, i) = ‖Φ(θ)‖₁ − ‖Φ(θ with θ_i = 0)‖₁, for every i from one forward and one backward pass. For weights and
    biases this is θ ⊙ ∇‖Φ(θ)‖₁ and equals ‖Φ(θ) − Φ(θ with θ_i = 0)‖₁. A batch-norm's own γ and β, and a bias that it
    absorbs, move the folded bias s b + β − s μ rather than remove it: their costs are the same difference of norms,
    which can then be negative.

    Needs every path to meet a coordinate at most once (ERRATA 16): a module that is called twice, one call
    downstream of the other, is refused by name.

    Example:
        >>> net = tamis.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2))
        >>> net = net.with_params({"weight": torch.tensor([[3.0, -1.0]]), "bias": torch.tensor([2.0])})
        >>> tamis.path_costs(net).values["weight"]   # the second one's removal changes the path-norm least
        tensor([[3., 1.]], dtype=torch.float64)

    Reference: gonon2024thesis.
    """
    values: dict[str, Tensor] = {}
    log_scale = each_path_cost(net, values.__setitem__)
    return PathCosts({name: values[name] for name in net.params if name in net.trainable}, log_scale)


def each_path_cost(net: Network, visit: Callable[[str, Tensor], None]) -> float:
    """Call `visit` with each parameter's name and costs, in no particular order, as soon as they are known.

    Whoever does not keep them all needs much less memory than `path_costs`: costs are float64, one for every weight.

    Returns:
        The logarithm of the scale that all of them are in.
    """
    if not isinstance(net, Network):
        raise InvalidInput(f"path_costs needs a Network, got {type(net).__name__}: trace the model first")
    require(net, Capability.HOMOGENEOUS, "path_costs")
    net.check_finite()
    folded = fold_batch_norm(net)
    _refuse_repeated(folded)
    # ‖Φ‖₁ is a polynomial in |θ| with positive coefficients, and linear in each coordinate that a path meets once: its
    # derivative times the coordinate is what removing that coordinate takes away, exactly.
    backward = _Backward(folded)
    routes = _Routes(folded, backward)
    log_scale = backward.run(lambda finished: routes.visit_known(finished, backward.unfinished, visit))
    for name in net.params:
        if name in net.trainable and name not in routes.visited:
            visit(name, routes.cost(name))
    return log_scale


def log_cost_above(net: Network, entries: Mapping[str, Tensor]) -> float:
    """Return at least the logarithm of the sum of Φ-costs over some coordinates, all rounding paid for.

    Where parameters are factors of the weights that data meets, Σ_{i∈I} |θ_i| ∂‖Φ‖₁/∂|θ_i| is the derivative of the
    norm in the direction of these coordinates: one pass of two streams, of the path-norms M and of their derivatives T,

        T_v = Σ_u |w_uv| T_u + |w_uv with only the coordinates of I left| M_u, and the same of a bias.

    Args:
        net: a network that `path_costs` takes.
        entries: for each parameter, which is a factor (see `path_coordinates`), a boolean tensor, True at coordinates.
    """
    folded = fold_batch_norm(net)
    _refuse_repeated(folded)
    entries = {name: where for name, where in entries.items() if bool(where.any())}
    # |w| is linear in the magnitudes of its factors: along |θ_I| its derivative is |w| with all other entries at zero.
    alone = {name: folded.params[name].masked_fill(~where, 0.0) for name, where in entries.items()}
    weights, parts = Weights(folded), Weights(folded.with_params(alone))
    adding = find_adding_nodes(folded, weights)

    def select_part(name: str) -> Any:
        value = parts.above(name)
        return (
            value if not is_weight(value) or stored_sources(folded, name) & entries.keys() else torch.zeros_like(value)
        )

    def step(node: Node, lookups: Sequence[Lookup]) -> list[Scaled]:
        derivative, norm = lookups
        fixed = [name for name in node.references if name not in folded.carries_data]
        whole = Operation(folded, node, {name: weights.above(name) for name in fixed})
        part = Operation(folded, node, {name: select_part(name) for name in fixed})
        adds = node.name in adding
        # A bias does not multiply a derivative, so nothing is added in this term.
        through = whole.magnitude(derivative, False)
        met = any(stored_sources(folded, name) & entries.keys() for name in fixed)
        return [through + part.change(norm, adds) if met else through, whole.magnitude(norm, adds)]

    ones = ones_input(folded)
    nothing = {name: torch.zeros_like(value) for name, value in ones.items()}
    mantissas, exponents, roundings = gather(folded, walk(folded, [nothing, ones], step)[0])
    return PathNorms(mantissas[0], exponents[0], roundings).log_above(1)


class _Backward:
    """A forward and a backward pass on |θ| give the derivative of the path-norm by every weight that meets data.

    Weights are computed when a pass asks for them, and again in the backward pass, instead of being kept: that is
    cheap, while fresh memory for all of them would cost as much as the arithmetic. A weight that met data in parts
    (see `Scaled`) has, beside its derivative, its share |E| ⊙ ∂‖Φ‖₁/∂|E|, whose two factors may lie outside float64.
    """

    def __init__(self, net: Network) -> None:
        self.net = net
        self.weights = Magnitudes(net)
        self.derivatives: dict[str, Tensor] = {}
        self.shares_of_parts: dict[str, Tensor] = {}
        self.derivatives_of_parts: dict[str, Tensor] = {}
        self.unfinished: Counter[str] = Counter()  # how many nodes' contributions to a derivative are missing

    def run(self, finished: Callable[[str], None]) -> float:
        """Fill `derivatives`, calling `finished` with a name once its own is complete; the logarithm of their scale."""
        self.finished = finished
        # The path-norm is multilinear in |θ| as long as no path meets a weight twice, so that its derivative by |θ_i|
        # times |θ_i| is exactly what the paths through i contribute: one backward pass gives every cost.
        # No weight requires a gradient itself: autograd would keep all of them, and their gradients until the very end.
        token = torch.zeros((), dtype=torch.float64, requires_grad=True)  # what makes autograd follow the weights
        adding = find_adding_nodes(self.net, self.weights)

        def step(node: Node, lookups: Sequence[Lookup]) -> list[Scaled]:
            added = {*references_in([node.arguments.get(name) for name in describe(node).addends])}
            # A bias that is zero costs nothing and is left out of the sum: no derivative by it will ever come. Where it
            # is computed, terms may cancel (β = sμ in a batch-norm), and the cost of each needs the derivative.
            adds = node.name in adding or any(name in self.net.node for name in added)
            left_out, places, begun = set() if adds else added, {}, set()

            def watch(name: str, value: Tensor, exponent: int | None) -> Tensor:
                if name in left_out:
                    return value
                self.unfinished[name] += 1  # one gradient will come back for each time a weight is handed out
                # Whole weights are recognised by their address when autograd saves them, and are then computed again.
                # Parts are tensors of their own, and are kept.
                if exponent is None:
                    places[value.data_ptr()] = name
                place = None if exponent is None else (exponent, name not in begun)
                if place:
                    begun.add(name)
                watched: Tensor = _RecordGradient.apply(value, token, self, name, place)
                return watched

            with self._recompute_weights(places):
                operation = Operation(self.net, node, self.weights, watch=watch)
                return [operation.magnitude(lookups[0], adds)]

        with torch.enable_grad():
            (outputs,) = walk(self.net, [ones_input(self.net)], step)
            # Everything until here was ≥ 0, so that the sum of the outputs on ones is ‖Φ‖₁ itself (Theorem 3.1.1 with q
            # = r = 1).
            total, exponent = _sum_outputs([outputs[name] for name in self.net.output_names])
            if total.requires_grad:
                torch.autograd.grad(total, token)
        del self.finished  # whatever it refers to may refer to us: memory would wait for the garbage collector
        return exponent * math.log(2)

    def record(self, name: str, derivative: Tensor) -> None:
        """Add what one node contributes to a derivative."""
        before = self.derivatives.get(name)
        self.derivatives[name] = derivative if before is None else before + derivative
        self._count(name)

    def record_part(self, name: str, part: Tensor, place: tuple[int, bool], derivative: Tensor) -> None:
        """Add what 2^exponent · part contributes; `place` holds the exponent, and whether the part is the first."""
        exponent, first = place
        zeros = torch.zeros_like(part)
        self.derivatives.setdefault(name, zeros)
        self.shares_of_parts[name] = self.shares_of_parts.get(name, zeros) + part * derivative
        # An entry's derivative comes from the part it lies in; where it is zero, it lies in the first.
        # Parts have disjoint supports, so that exactly one of them knows an entry's derivative at its true scale.
        inside = (part > 0) | (self.weights[name] == 0) if first else part > 0
        own = times_power_of_two(derivative.where(inside, 0.0), -exponent).clamp(max=torch.finfo(torch.float64).max)
        self.derivatives_of_parts[name] = self.derivatives_of_parts.get(name, zeros) + own
        self._count(name)

    def _count(self, name: str) -> None:
        self.unfinished[name] -= 1
        if self.unfinished[name] == 0:
            self.finished(name)

    def _recompute_weights(self, places: Mapping[int, str]) -> AbstractContextManager[None]:
        """Let autograd keep the names of the weights at these places, and compute them again when it needs them."""

        def pack(value: Tensor) -> Any:
            name = places.get(value.data_ptr())
            return value if name is None else (name, value.shape, value.stride(), value.storage_offset())

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            name, *layout = packed
            again: Tensor = self.weights[name]
            return again.as_strided(*layout)

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _sum_outputs(outputs: Sequence[Scaled]) -> tuple[Tensor, int]:
    """Return the sum of all outputs and its exponent."""
    parts = [part for each in outputs for part in each.parts]
    # In units of the largest exponent nothing overflows; outputs 2^-1022 below it do not count beside it.
    largest = max((e for value, e in parts if bool((value > 0).any())), default=0)
    return torch.stack(
        [times_power_of_two(value, exponent - largest).sum() for value, exponent in parts]
    ).sum(), largest


class _RecordGradient(torch.autograd.Function):
    """This is the identity on a weight, or on a part of it that has a place, and its gradient goes into a record."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, token: Tensor, record: _Backward, name: str, place: tuple[int, bool] | None
    ) -> Tensor:
        ctx.record, ctx.name, ctx.place = record, name, place
        if place is not None:
            ctx.save_for_backward(weight)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.place is None:
            ctx.record.record(ctx.name, gradient)
        else:
            ctx.record.record_part(ctx.name, *ctx.saved_tensors, ctx.place, gradient)
        # The weight gets no gradient: what autograd would store for it has just been recorded. The token gets a zero,
        # since the engine only visits nodes that lead to what the caller asked for.
        return None, torch.zeros((), dtype=torch.float64), None, None, None


def _refuse_repeated(net: Network) -> None:
    """Refuse a parameter that multiplies what has already met it upstream.

    A parameter that is added downstream of its other uses is harmless: it starts paths of its own.
    """
    sources = _find_sources(net)

    def collect_met(names: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(sources.get(name, frozenset()) for name in names))

    upstream: dict[str, frozenset[str]] = dict.fromkeys(net.inputs, frozenset())
    for node in net.data_nodes:
        # Only multipliers are compared: a bias that is used twice starts two paths, and no path has it twice.
        before = frozenset().union(*(upstream[name] for name in node.references if name in upstream))
        multiplying = [node.arguments.get(name) for name in describe(node).multipliers]
        # With θ_i twice on a path the norm has the term θ_i², whose derivative times θ_i counts the path twice (ERRATA
        # 16).
        again = collect_met(references_in(multiplying)) & before
        if again:
            raise AssumptionViolated(
                f"path_costs needs every path to meet a parameter at most once, but '{sorted(again)[0]}' is used again "
                f"by '{node.op.removesuffix('.default')}' at {node.module or 'the top level'}, downstream of another "
                "use of it (a module called twice, or tied weights)"
            )
        upstream[node.name] = before | collect_met(node.references)


def _find_sources(net: Network) -> dict[str, frozenset[str]]:
    """Return, for parameters and what is computed from them alone, which trainable parameters they depend on."""
    sources = {name: frozenset([name]) if name in net.trainable else frozenset() for name in net.params}
    for node in net.nodes:
        if node.name not in net.carries_data:
            sources[node.name] = frozenset().union(*(sources.get(ref, frozenset()) for ref in node.references))
    return sources


class _Routes:
    """Routes bring costs from the tensors that meet data back to the parameters they are computed from.

    A tensor E that meets data may be a parameter, a mask times it, or a weight with a batch-norm folded in. As long as
    each entry of E depends on one entry of a parameter, and affinely, setting that entry to zero lowers the norm by
    Σ (|E_k| − |E_k with the parameter at zero|) · ∂‖Φ‖₁/∂|E_k| over the entries E_k that depend on it.
    """

    def __init__(self, net: Network, backward: _Backward) -> None:
        self.net, self.derivatives = net, backward.derivatives
        self.shares_of_parts, self.derivatives_of_parts = backward.shares_of_parts, backward.derivatives_of_parts
        self.sources = _find_sources(net)
        self.fixed = FixedValues(net, dtype=torch.float64)
        self.shares: dict[str, Tensor] = {}
        self.missing: Counter[str] = Counter()  # how many derivatives that a parameter's costs need are not known yet
        self.visited: set[str] = set()

    def visit_known(self, name: str, recorded: Iterable[str], visit: Callable[[str, Tensor], None]) -> None:
        """Visit the parameters whose costs are known now that one of the derivatives is; forget what nobody needs."""
        # A parameter may reach data through several tensors (a folded weight and a folded bias, say): its costs wait
        # for the derivatives by all of them. Once visited, nothing of them is kept, so memory stays that of a few
        # layers.
        if not self.missing:  # the first to be known
            self.missing.update(param for other in recorded for param in self._find_sources_of(other))
        for param in self._find_sources_of(name):
            self.missing[param] -= 1
            if self.missing[param] == 0:
                self.visited.add(param)
                visit(param, self.cost(param))
        for other in [other for other in self.derivatives if self._find_sources_of(other) <= self.visited]:
            for known in (self.derivatives, self.shares, self.shares_of_parts, self.derivatives_of_parts):
                known.pop(other, None)

    def _find_sources_of(self, name: str) -> frozenset[str]:
        return self.sources.get(name, frozenset())

    def cost(self, param: str) -> Tensor:
        """Return the costs of one parameter's entries."""
        met = [name for name in self.derivatives if param in self._find_sources_of(name)]
        flows = [self._bring_back(param, name, self._compute_flow(param, name)) for name in met]
        if not flows:
            return torch.zeros_like(self.net.params[param], dtype=torch.float64)
        return (flows[0] if len(flows) == 1 else torch.stack(flows).sum(0)).contiguous()

    def _compute_flow(self, param: str, name: str) -> Tensor:
        """Return what the path-norm loses at each entry of a tensor when the parameter is set to zero."""
        # E is affine in the parameter. Where E = c · θ it vanishes with θ, and the loss is all of |E|; where something
        # is added, as β − s μ is, setting θ to zero leaves that behind, and the two magnitudes are compared.
        if not self._is_product(param, name):
            lost = self.fixed[name].abs_() - self.fixed.evaluate(name, zeroed=param).abs_()
            return lost * (self.derivatives[name] + self.derivatives_of_parts.get(name, 0.0))
        if name not in self.shares:
            self.shares[name] = self._share(name)
        return self.shares[name]

    def _share(self, name: str) -> Tensor:
        """Compute |E| ⊙ ∂‖Φ‖₁/∂|E|, in a place of its own, because autograd may still need the derivative."""
        share: Tensor = self.fixed[name].abs_()
        share.mul_(self.derivatives[name])
        return share.add_(self.shares_of_parts[name]) if name in self.shares_of_parts else share

    def _find_argument(self, param: str, node: Node) -> str:
        """Return the argument through which a node depends on the parameter, entry by entry and affinely."""
        names = [n for n in references_in(node.args) if param in self.sources.get(n, frozenset())]
        entrywise = describe(node).entrywise(node)
        if entrywise is Entrywise.SUM:
            places = [self._find_places(param, name) for name in names]
            # s b + β − s μ may read a parameter through several summands, if each of them reads the same entry of it.
            clear = all(torch.equal(*torch.broadcast_tensors(places[0], other)) for other in places[1:])
        else:
            clear = len(names) == 1 and entrywise in MULTIPLES
        if not clear:
            raise AssumptionViolated(
                f"path_costs cannot attribute costs to '{param}': the weight '{node.name}' at "
                f"{node.module or 'the top level'} is computed from it by '{node.op}', so that its entries do not each "
                "depend on one entry, and affinely; bake the parametrization into the weight first"
            )
        return names[0]

    def _find_places(self, param: str, name: str) -> Tensor:
        """Return, for each entry of a tensor, which entry of the parameter it depends on."""
        if name == param:
            return torch.arange(self.net.params[param].numel()).view(self.net.params[param].shape)
        node = self.net.node[name]
        source = self._find_argument(param, node)
        places = self._find_places(param, source)
        if not _moves(node):
            return places.expand(node.shape or ())
        moved: Tensor = node.target(*resolve(node.args, lambda ref: places if ref == source else self.fixed[ref]))
        return moved

    def _is_product(self, param: str, name: str) -> bool:
        """Return whether a tensor vanishes with the parameter."""
        while name != param:
            node = self.net.node[name]
            name = self._find_argument(param, node)
            if describe(node).entrywise(node) is Entrywise.SUM:
                return False
        return True

    def _bring_back(self, param: str, name: str, flow: Tensor) -> Tensor:
        """Turn a cost per entry of a tensor into a cost per entry of the parameter it depends on."""
        while name != param:
            node = self.net.node[name]
            name = self._find_argument(param, node)
            source = self.net.params[name].shape if name in self.net.params else self.net.node[name].shape
            assert source is not None
            moved = _moves(node)
            flow = self._move_back(node, name, torch.Size(source), flow) if moved else flow.sum_to_size(source)
        return flow

    def _move_back(self, node: Node, name: str, shape: torch.Size, flow: Tensor) -> Tensor:
        # Moving entries is linear, and its transpose, which brings costs back, is what autograd computes: entries that
        # were copied several times add up, and those that were left out get nothing.
        with torch.enable_grad():
            origin = torch.zeros(shape, dtype=torch.float64, device=flow.device, requires_grad=True)
            moved = node.target(*resolve(node.args, lambda ref: origin if ref == name else self.fixed[ref]))
            return torch.autograd.grad(moved, origin, flow)[0]


def _moves(node: Node) -> bool:
    entrywise = describe(node).entrywise(node)
    return entrywise is not None and entrywise.moves
