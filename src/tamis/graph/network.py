"""A `Network` is a traced model as an immutable DAG of operations, with parameters under the user's own names."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tamis.errors import InvalidInput, InvalidParameters, join_names
from tamis.graph.seen_samples import NOTHING_SEEN, SeenSamples, seen_by

SIZE = torch.ops.aten.sym_size.int  # reads one size of a tensor: the one operation that turns data into a number


@dataclass(frozen=True)
class Ref:
    """A `Ref`, inside a node's arguments, refers to a node, an input, a parameter or a constant of the same network."""

    name: str


@dataclass(frozen=True, eq=False)
class Node:
    """A node is one operation `target(*args, **kwargs)`, called by the module at path `module`.

    `shape` is the shape of the result for a batch of one (None where it is not a tensor).
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""
    shape: tuple[int, ...] | None = None

    def __reduce__(self) -> tuple[Callable[..., Node], tuple[Any, ...]]:
        """Pickle a torch operation by its name, since the object itself cannot be pickled."""
        ours = (torch._ops.OpOverload, torch._ops.HigherOrderOperator)
        target = _Operation(str(self.target)) if isinstance(self.target, ours) else self.target
        return _make_node, (self.name, target, self.args, dict(self.kwargs), self.module, self.shape)

    @property
    def op(self) -> str:
        """Return the operation's name, such as 'aten.conv2d.default'."""
        return op_name(self.target)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments by name, defaults filled in, references unresolved."""
        schema = getattr(self.target, "_schema", None)
        if schema is None:
            return {str(i): a for i, a in enumerate(self.args)} | dict(self.kwargs)
        # Positional arguments may be fewer than the schema's: the rest are keywords or defaults.
        given = {a.name: value for a, value in zip(schema.arguments, self.args, strict=False)} | dict(self.kwargs)
        return {a.name: given.get(a.name, a.default_value) for a in schema.arguments}

    @cached_property
    def references(self) -> tuple[str, ...]:
        """Return the names of everything this node reads, in order of appearance, without repeats."""
        return tuple(dict.fromkeys(references_in((self.args, self.kwargs))))


@dataclass(frozen=True)
class _Operation:
    """An `_Operation` is a torch operation by its name, as 'aten.conv2d.default', or 'cond' of a higher order."""

    name: str

    def look_up(self) -> Callable[..., Any]:
        path = self.name if "." in self.name else f"higher_order.{self.name}"
        try:
            operation: Callable[..., Any] = attrgetter(path)(torch.ops)
        except AttributeError as error:
            raise InvalidInput(
                f"this network has the operation '{self.name}', which is not registered here: import what defines it "
                "before the network is unpickled"
            ) from error
        return operation


def _make_node(name: str, target: Any, *rest: Any) -> Node:
    return Node(name, target.look_up() if isinstance(target, _Operation) else target, *rest)


def op_name(target: Callable[..., Any]) -> str:
    """Return `aten.relu.default` for an operator overload, `operator.getitem` for a Python function."""
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    name = getattr(target, "__name__", str(target))
    return f"operator.{name}" if getattr(target, "__module__", "") in ("_operator", "operator", "math") else name


def references_in(value: Any) -> Iterator[str]:
    """Return the names referred to anywhere inside nested arguments."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from references_in(item)
    elif isinstance(value, Mapping):
        yield from references_in(tuple(value.values()))


def resolve(value: Any, lookup: Callable[[str], Any]) -> Any:
    """Return nested arguments with every reference replaced by the result of `lookup`."""
    if isinstance(value, Ref):
        return lookup(value.name)
    if isinstance(value, (list, tuple)):
        return type(value)(resolve(item, lookup) for item in value)
    if isinstance(value, Mapping):
        return {key: resolve(item, lookup) for key, item in value.items()}
    return value


def is_shape_arithmetic(target: Callable[..., Any]) -> bool:
    """Return whether an operation computes integers from sizes, and so depends on shapes but not on values."""
    if target is SIZE:
        return True
    return target is not operator.getitem and op_name(target).startswith(("operator.", "sym_"))


class Network:
    """A network is a model as a DAG: `net(x)` equals `model(x)` in evaluation mode, and nothing in it ever changes.

    Attributes:
        nodes: operations in topological order.
        inputs: names of the inputs.
        input_shapes: their shapes, for a batch of one.
        input_dtypes: their dtypes, in the example that the model was traced with.
        batched: whether the first dimension of inputs and outputs is a batch of any size. If not, a whole
            input (all nodes of a graph, say) is one sample.
        params: parameters and buffers under their state_dict names; tied ones appear once, under the first name.
        trainable: which of `params` are `nn.Parameter`s.
        aliases: further state_dict names of tied tensors, to the name under which they appear.
        constants: tensors of the model that are not in its state_dict.
        seen: the samples that its weights were made with, as far as that is known.
    """

    def __init__(
        self,
        *,
        nodes: tuple[Node, ...],
        inputs: tuple[str, ...],
        input_shapes: tuple[tuple[int, ...], ...],
        input_dtypes: tuple[torch.dtype, ...],
        batched: bool,
        params: Mapping[str, Tensor],
        trainable: frozenset[str],
        outputs: tuple[Any, ...],
        output_structure: pytree.TreeSpec,
        aliases: Mapping[str, str] | None = None,
        constants: Mapping[str, Tensor] | None = None,
        seen: SeenSamples = NOTHING_SEEN,
    ) -> None:
        self.nodes = nodes
        self.inputs = inputs
        self.input_shapes = input_shapes
        self.input_dtypes = input_dtypes
        self.batched = batched
        self.params: Mapping[str, Tensor] = MappingProxyType(dict(params))
        self.trainable = trainable
        self.outputs = outputs
        self.output_structure = output_structure
        self.aliases: Mapping[str, str] = MappingProxyType(dict(aliases or {}))
        self.constants: Mapping[str, Tensor] = MappingProxyType(dict(constants or {}))
        self.seen = seen

    def __setattr__(self, name: str, value: Any) -> None:
        # `cached_property` writes to __dict__ directly, and so is not held up by this.
        if name in self.__dict__:
            raise AttributeError(f"a Network is immutable: '{name}' cannot be set; with_params returns a changed copy")
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: Any) -> Network:
        return self  # nothing in it changes

    def __reduce__(self) -> tuple[Callable[..., Network], tuple[dict[str, Any]]]:
        arguments = {name: getattr(self, name) for name in _list_arguments()}
        plain = {n: dict(v) if isinstance(v, MappingProxyType) else v for n, v in arguments.items()}
        # A structure as an example of it: torch's own description of one cannot be read back without a warning.
        plain["output_structure"] = pytree.tree_unflatten(range(len(self.outputs)), self.output_structure)
        return _make_network, (plain,)

    def __repr__(self) -> str:
        size = sum(self.params[name].numel() for name in self.trainable)
        return f"Network({len(self.nodes)} nodes, {size:,} parameters, inputs {list(self.input_shapes)})"

    # -- evaluation ------------------------------------------------------------------------------------------------

    def __call__(self, *inputs: Tensor) -> Any:
        """Evaluate the network, as the model it was traced from does in evaluation mode."""
        self.check_inputs(inputs)
        try:
            values = self.run(dict(zip(self.inputs, inputs, strict=True)))
        except RuntimeError as error:
            self._blame_dtypes(inputs, error)
            raise
        flat = [resolve(output, values.__getitem__) for output in self.outputs]
        return pytree.tree_unflatten(flat, self.output_structure)

    def flat_outputs(self, *inputs: Tensor) -> Tensor:
        """Compute all outputs of each sample side by side, in float64: a row for each sample.

        Without a batch dimension the whole input is one sample, and there is one row.
        """
        leaves = [value for value in pytree.tree_leaves(self(*inputs)) if isinstance(value, Tensor)]
        rows = [value.reshape(len(value) if self.batched else 1, -1) for value in leaves]
        return torch.cat([row.double() for row in rows], 1)

    def run(self, values: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the nodes that the outputs need from the inputs in `values`, and free results on the way."""
        # The values that are given come last, so that a caller can also put other tensors in the place of parameters.
        values = {**self.params, **self.constants, **values}
        for node, finished in zip(self.nodes, self.finished_after, strict=True):
            values[node.name] = node.target(
                *resolve(node.args, values.__getitem__), **resolve(node.kwargs, values.__getitem__)
            )
            for name in finished:
                del values[name]
        return values

    @cached_property
    def finished_after(self) -> tuple[tuple[str, ...], ...]:
        """Return, for each node, which node results nobody reads after it."""
        kept = set(references_in(self.outputs))
        # Parameters and constants are the caller's and stay; only results of nodes are freed.
        own = {node.name for node in self.nodes}
        last: dict[str, int] = {}
        for position, node in enumerate(self.nodes):
            last[node.name] = position
            # Later positions overwrite earlier ones, so that the last reader stays. A result that nobody reads ends at
            # itself.
            last.update((name, position) for name in node.references if name in own)
        finished: list[list[str]] = [[] for _ in self.nodes]
        for name, position in last.items():
            if name not in kept:
                finished[position].append(name)
        return tuple(map(tuple, finished))

    def check_inputs(self, inputs: tuple[Tensor, ...]) -> None:
        """Raise InvalidInput where inputs differ in number or shape from those that the network takes."""
        if len(inputs) != len(self.inputs):
            raise InvalidInput(f"the network takes {len(self.inputs)} input(s) {list(self.inputs)}, got {len(inputs)}")
        for name, value, shape in zip(self.inputs, inputs, self.input_shapes, strict=True):
            if not isinstance(value, Tensor):
                raise InvalidInput(f"input '{name}' must be a tensor of shape {self.shape_text(shape)}, got {value!r}")
            first = 1 if self.batched else 0
            if value.dim() != len(shape) or tuple(value.shape[first:]) != shape[first:]:
                raise InvalidInput(
                    f"input '{name}' must have shape {self.shape_text(shape)}, got {tuple(value.shape)}: "
                    "trace the model again with an example of that shape"
                )

    def _blame_dtypes(self, inputs: tuple[Tensor, ...], error: RuntimeError) -> None:
        """Raise InvalidInput where inputs that failed differ in dtype from those that the model was traced with."""
        for name, value, dtype in zip(self.inputs, inputs, self.input_dtypes, strict=True):
            if value.dtype is not dtype:
                raise InvalidInput(
                    f"input '{name}' is {value.dtype}, and the model was traced with {dtype}: convert it with "
                    f".to({dtype}) ({error})"
                ) from error

    def shape_text(self, shape: tuple[int, ...]) -> str:
        """Return a shape for people, with the batch dimension as 'batch'."""
        dims = [str(size) for size in shape]
        if self.batched and dims:
            dims[0] = "batch"
        return "(" + ", ".join(dims) + ")"

    # -- structure -------------------------------------------------------------------------------------------------

    @cached_property
    def node(self) -> Mapping[str, Node]:
        """Return nodes by name."""
        return MappingProxyType({node.name: node for node in self.nodes})

    @cached_property
    def carries_data(self) -> frozenset[str]:
        """Return the names whose value depends on the values of an input, not only on parameters and sizes."""
        carrying = set(self.inputs)
        for node in self.nodes:
            # A size of the data is the same for all inputs of that shape: what is computed from it alone is fixed.
            if not is_shape_arithmetic(node.target) and any(name in carrying for name in node.references):
                carrying.add(node.name)
        return frozenset(carrying)

    @cached_property
    def data_nodes(self) -> tuple[Node, ...]:
        """Return the nodes that an input reaches, in topological order."""
        return tuple(node for node in self.nodes if node.name in self.carries_data)

    @cached_property
    def users(self) -> Mapping[str, tuple[Node, ...]]:
        """Return the nodes that read each name."""
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.references:
                users.setdefault(name, []).append(node)
        return MappingProxyType({name: tuple(readers) for name, readers in users.items()})

    @cached_property
    def output_names(self) -> tuple[str, ...]:
        """Return the names of the output tensors."""
        return tuple(references_in(self.outputs))

    @cached_property
    def weights_of_data_nodes(self) -> tuple[str, ...]:
        """Return the names of tensors that meet data: parameters, constants, or what is computed from them alone."""
        fixed = self.params.keys() | self.constants.keys() | {n.name for n in self.nodes} - self.carries_data
        # A dictionary, since it keeps the order of the graph: the same network gives the same order each time.
        met = dict.fromkeys(name for node in self.data_nodes for name in node.references if name in fixed)
        return tuple(name for name in met if name not in self.node or not is_shape_arithmetic(self.node[name].target))

    def trainable_sources(self, name: str) -> Iterator[str]:
        """Return the trainable parameters that a fixed tensor is computed from, or its own name if it is one."""
        if name in self.trainable:
            yield name
        elif name in self.node:
            for source in self.node[name].references:
                yield from self.trainable_sources(source)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of anything by name, for a batch of one."""
        if name in self.inputs:
            return self.input_shapes[self.inputs.index(name)]
        for known in (self.params, self.constants):
            if name in known:
                return tuple(known[name].shape)
        shape = self.node[name].shape
        assert shape is not None, f"'{name}' is not one tensor"
        return shape

    def size_of(self, node: Node, batch: int) -> int:
        """Return the value of a `sym_size` node for a given batch size."""
        shape, dim = self.shape_of(node.args[0].name), node.args[1]
        # Shapes are stored for a batch of one. The first size is a multiple of the batch: views may fold axes into it.
        return batch * shape[dim] if self.batched and dim == 0 else shape[dim]

    @property
    def device(self) -> torch.device:
        """Return the network's device, which is that of its first tensor, or the CPU where it has none."""
        tensors = (*self.params.values(), *self.constants.values())
        return next((value.device for value in tensors), torch.device("cpu"))

    # -- parameters ------------------------------------------------------------------------------------------------

    def with_params(self, changes: Mapping[str, Tensor]) -> Network:
        """Return the same graph with some parameters replaced.

        Args:
            changes: new tensors by state_dict name (any of the names of a tied one). Shapes must match.

        Example:
            >>> net = tamis.trace(torch.nn.Linear(2, 1, bias=False), torch.zeros(1, 2))
            >>> ones = net.with_params({"weight": torch.ones(1, 2)})
            >>> ones(torch.tensor([[2.0, 3.0]]))
            tensor([[5.]])
        """
        params = dict(self.params)
        for name, value in changes.items():
            known = self.aliases.get(name, name)
            if known not in params:
                raise InvalidParameters(f"the network has no parameter '{name}'; it has {join_names(self.params)}")
            if tuple(value.shape) != tuple(params[known].shape):
                expected = tuple(params[known].shape)
                raise InvalidParameters(f"parameter '{name}' has shape {expected}, got {tuple(value.shape)}")
            params[known] = value.detach().clone()  # a copy: the caller may go on changing what was passed
        return self.replace(params=params)

    def with_weights_of(self, model: nn.Module) -> Network:
        """Return a copy with the parameters, and the seen samples, of a module like the one that was traced."""
        return self.with_params(model.state_dict()).replace(seen=self.seen | seen_by(model))

    def to(self, target: torch.dtype | torch.device | str) -> Network:
        """Return a copy with floating-point tensors converted to a dtype, or with all tensors moved to a device."""
        is_dtype = isinstance(target, torch.dtype)

        def move(value: Tensor) -> Tensor:
            return value if is_dtype and not value.is_floating_point() else value.to(target)

        params = {name: move(value) for name, value in self.params.items()}
        constants = {name: move(value) for name, value in self.constants.items()}
        if not isinstance(target, torch.dtype):
            return self.replace(params=params, constants=constants)
        dtypes = tuple(target if dtype.is_floating_point else dtype for dtype in self.input_dtypes)
        return self.replace(params=params, constants=constants, input_dtypes=dtypes)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of parameters and buffers under the user's own names, ready for `model.load_state_dict`."""
        state = {name: value.clone() for name, value in self.params.items()}
        # Tied names share one tensor, as they do in the model's own state_dict.
        return state | {alias: state[name] for alias, name in self.aliases.items()}

    def replace(self, **changes: Any) -> Network:
        """Return a copy with some constructor arguments replaced."""
        return Network(**{name: changes.get(name, getattr(self, name)) for name in _list_arguments()})

    def check_finite(self) -> None:
        """Raise InvalidParameters where a parameter is NaN or infinite, naming it and the first such entry."""
        for name, value in {**self.params, **self.constants}.items():
            # A sum is NaN or infinite if an entry is, and is found in one pass without a mask. Large finite entries may
            # overflow it as well, so the entries themselves have the last word.
            if value.is_floating_point() and not math.isfinite(float(value.sum())):
                wrong = (~torch.isfinite(value)).nonzero()
                if len(wrong):
                    at = tuple(wrong[0].tolist())
                    raise InvalidParameters(
                        f"parameter '{name}' of shape {tuple(value.shape)} has {len(wrong)} entries that are not "
                        f"finite, the first at {at}: {value[at].item()}"
                    )


def _list_arguments() -> list[str]:
    """Return the arguments of the constructor, which are all that a network is."""
    return [name for name in inspect.signature(Network.__init__).parameters if name != "self"]


def _make_network(arguments: dict[str, Any]) -> Network:
    structure = pytree.tree_structure(arguments["output_structure"])
    return Network(**{**arguments, "output_structure": structure})
