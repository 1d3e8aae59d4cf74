"""`trace` turns any PyTorch module that exports into a `Network`.

The module is exported in evaluation mode by `torch.export`, made functional where it is not by `run_decompositions({})`
(which keeps high-level operations such as convolutions whole), and copied into tamis' own graph. The module stays as it
was.
"""

from __future__ import annotations

import inspect
import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from copy import copy
from threading import RLock
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.utils import _pytree as pytree

from tamis.errors import InvalidInput, TraceError
from tamis.graph.network import Network, Node, Ref, references_in
from tamis.graph.seen_samples import seen_by

aten = torch.ops.aten

# In evaluation mode these hand their first argument on unchanged: their third argument says that nothing is dropped.
DROPOUTS = {
    aten.dropout.default,
    aten.feature_dropout.default,
    aten.alpha_dropout.default,
    aten.feature_alpha_dropout.default,
}
IDENTITIES = DROPOUTS | {
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
}
# These give their argument another shape, which export has computed.
RESHAPES = {aten.flatten.using_ints, aten.unflatten.int}
# While torch.export runs, parameters of a module and parts of torch itself are placeholders: another thread in the
# middle of it would take them for tensors, and leave them behind.
LOCK = RLock()
# Checks that export leaves in the graph; tamis checks shapes itself, at the network's door.
CHECKS = ("_assert", "sym_constrain", "_guards_fn")


def trace(model: nn.Module, example: Tensor | tuple[Tensor, ...]) -> Network:
    """Trace a model into an immutable `Network`.

    Args:
        model: any module that `torch.export` accepts; traced in evaluation mode and left untouched.
        example: an input, or a tuple of inputs. The first dimension is taken as a batch dimension of any size, unless
            the model ties it to something else (a fixed graph, say), the output does not have it, or samples
            are mixed: then the whole example is one sample.

    Returns:
        A `Network` with `net(x)` equal to `model(x)` (random operations stay random), and its own copies of the
        parameters. Forward hooks of the model run while it is traced. One model is traced at a time: other threads
        wait, and must not use a model that is being traced.

    Example:
        >>> net = tamis.trace(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()), torch.zeros(1, 4))
    """
    examples = _check_example(model, example)
    with LOCK, _evaluation_mode(model), torch.no_grad():
        program, batched = _export(model, examples)
        net = _build_network(model, program, batched)
        try:
            mixed = _mixes_samples(net, examples)
        except Exception as error:  # torch exports some that it cannot run, as with an example of another dtype
            raise TraceError(_explain_failure(model, examples, error)) from error
        return _build_network(model, _export_as_given(model, examples), False) if mixed else net


def trace_with_batch(model: nn.Module, example: Tensor | tuple[Tensor, ...], batched: bool) -> Network:
    """Trace a model, knowing whether the first dimension is a batch of any size, without running the model."""
    examples = _check_example(model, example)
    with LOCK, _evaluation_mode(model), torch.no_grad():
        if batched:
            return _build_network(model, *_export(model, examples))
        return _build_network(model, _export_as_given(model, examples), False)


def _build_network(model: nn.Module, program: ExportedProgram, batched: bool) -> Network:
    net = _Builder(program, batched, tied_names(model.state_dict(keep_vars=True))).build()
    return net.replace(seen=seen_by(model))


def _check_example(model: nn.Module, example: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the example as a tuple."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"trace needs a torch.nn.Module, got {type(model).__name__}: {model!r:.80}")
    examples = example if isinstance(example, tuple) else (example,)
    for value in examples:
        if not isinstance(value, Tensor):
            raise InvalidInput(f"the example must be a tensor or a tuple of tensors, got {type(value).__name__}")
        if value.numel() == 0:
            raise InvalidInput(f"the example is empty: it has shape {tuple(value.shape)}")
    return examples


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every submodule in evaluation mode, and afterwards restore all attributes of each module.

    Exporting a module that assigns attributes (hooks of pruning do) would leave export's placeholders behind; so
    would one that puts them into a dictionary, list or set of its own.
    """
    # __dict__ and not setattr: modules may define properties and hooks that would run when an attribute is set back.
    before = [(module, dict(module.__dict__)) for module in model.modules()]
    containers = [
        (v, copy(v)) for _, attributes in before for v in attributes.values() if isinstance(v, (dict, list, set))
    ]
    try:
        for module, _ in before:
            module.__dict__["training"] = False
        yield
    finally:
        for module, attributes in before:
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for container, contents in containers:
            # In place: others may hold the same container, and must see it as it was.
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(contents)


def _export(model: nn.Module, examples: tuple[Tensor, ...]) -> tuple[ExportedProgram, bool]:
    """Export with a batch dimension of any size where the model allows it, else with the example's own sizes."""
    if all(value.dim() > 0 for value in examples):
        # Export takes a size of one for a constant, so a batch of one is doubled first.
        doubled = tuple(torch.cat([value, value]) if len(value) == 1 else value for value in examples)
        try:
            program = _export_program(model, doubled, _declare_batch(model, len(doubled)))
            if _keeps_batch(program):
                return program, True
        except Exception:  # reported below, if the plain export fails as well
            pass
    return _export_as_given(model, examples), False


def _export_as_given(model: nn.Module, examples: tuple[Tensor, ...]) -> ExportedProgram:
    try:
        return _export_program(model, examples, None)
    except Exception as error:
        raise TraceError(_explain_failure(model, examples, error)) from error


def _mixes_samples(net: Network, examples: tuple[Tensor, ...]) -> bool:
    """Return whether the output for a sample depends on the samples around it, or on their number."""
    if not net.batched or any(_is_random(node) for node in net.nodes):  # other draws would be taken for other samples
        return False

    def compute_second_outputs(around: list[Tensor], after: int) -> list[Tensor]:
        pairs = zip(examples, around, strict=True)
        # The sample in question is the second, with one neighbour before it and `after` behind: both the neighbours and
        # their number change between the two calls.
        batch = [torch.cat([other, example[:1], *[other] * after]) for example, other in pairs]
        return [output[1] for output in pytree.tree_leaves(net(*batch)) if isinstance(output, Tensor)]

    alike = compute_second_outputs([example[:1] for example in examples], 1)
    # NaN spreads to whatever reads it: a sample that comes out finite beside one of NaNs does not depend on it.
    spoilt = [example[:1] * (torch.nan if example.is_floating_point() else 0) for example in examples]
    spoiled = compute_second_outputs(spoilt, 2)
    return any(_differ(a, b) for a, b in zip(alike, spoiled, strict=True) if a.numel() and a.is_floating_point())


def _differ(alone: Tensor, beside: Tensor) -> bool:
    """Return whether two outputs for one sample differ by more than rounding."""
    # What overflows says nothing: the order of a product's sum depends on how many samples there are, and with it
    # whether inf or NaN comes out.
    finite = alone.isfinite()
    alone, beside = alone[finite], beside[finite]
    largest = float(alone.abs().max()) if alone.numel() else 0.0
    return not torch.allclose(alone, beside, rtol=1e-2, atol=1e-3 * largest)


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _declare_batch(model: nn.Module, count: int) -> tuple[Any, ...]:
    """Declare a first dimension of any size for each input, arranged as the signature of `forward` takes them."""
    free = [{0: Dim.AUTO} for _ in range(count)]
    kinds = [parameter.kind for parameter in inspect.signature(model.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return tuple(free)
    named = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*free[:named], tuple(free[named:]))


def _export_program(model: nn.Module, examples: tuple[Tensor, ...], dynamic: Any) -> ExportedProgram:
    with silence_torch(), redirect_stderr(io.StringIO()):  # torch prints graphs that it could not finish
        return _make_functional(torch.export.export(model, examples, dynamic_shapes=dynamic))


def _make_functional(program: ExportedProgram) -> ExportedProgram:
    """Return the program without operations that change their arguments.

    Torch's own pass first prepares itself for all of its operations, which takes several times as long as exporting a
    small network does. Where it would change nothing, or only what `_Builder` knows, it is left out.
    """
    calls = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    batch = _batch_symbol(program)
    known = all(_stays_whole(node) or _is_rewritten(node, batch) for node in calls)
    return program if known else program.run_decompositions({})


def _batch_symbol(program: ExportedProgram) -> str | None:
    """Return the size of the batch as torch writes it, where the program has one input and no other free size."""
    inputs = [node for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    value = inputs[0].meta["val"] if len(inputs) == 1 else None
    return str(value.shape[0]) if isinstance(value, Tensor) and _free_sizes(value) == [0] else None


def _free_sizes(value: Tensor) -> list[int]:
    return [axis for axis, size in enumerate(value.shape) if not isinstance(size, int)]


def _is_rewritten(node: torch.fx.Node, batch: str | None) -> bool:
    """Return whether `_Builder` turns a node into what torch's pass would make of it.

    The pass takes sizes of the batch from the input, at the top of the graph, and gives reshapes the shape that they
    lead to. Where a size is computed from that of the batch, it leaves the computation in the graph: not known here.
    """
    target, value = node.target, node.meta.get("val")
    if target in DROPOUTS:
        return node.args[2] is False
    if target is aten.reshape.default:  # a view of what lies in order, and a view is a reshape to us
        source = node.args[0].meta["val"]  # type: ignore[union-attr]
        return bool(source.is_contiguous())
    if target is aten.sym_size.int:
        return str(value) == batch
    if target not in RESHAPES or not isinstance(value, Tensor):
        return False
    return all(str(value.shape[axis]) == batch for axis in _free_sizes(value))


def _stays_whole(node: torch.fx.Node) -> bool:
    """Return whether torch's pass surely keeps a node as it is, where it is."""
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    if target is aten.batch_norm.default:
        return node.args[5] is False  # otherwise it updates its running statistics, which its schema does not say
    # A dropout that drops is another operation after the pass, and sizes of the batch move to the top of the graph.
    if torch.Tag.nondeterministic_seeded in target.tags or target is aten.sym_size.int:
        return False
    # Views that are defined by other operations, as flatten is, are taken apart.
    views = any(each.alias_info is not None for each in target._schema.returns)
    return not (views and target.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


@contextmanager
def silence_torch() -> Iterator[None]:
    """Suppress torch's warnings about its own code and about attributes we restore, and logs of what we report.

    Both are switched off for the whole process, so one thread is quiet at a time.
    """
    with LOCK, warnings.catch_warnings():
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            warnings.simplefilter("ignore")
            yield
        finally:
            logging.disable(before)


def _keeps_batch(program: ExportedProgram) -> bool:
    """Return whether the same free symbol leads every input and every output."""
    user_inputs = set(program.graph_signature.user_inputs)
    first: list[Any] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in user_inputs:
            first.append(node.meta["val"].shape[0])
        if node.op == "output":
            results = [r.meta.get("val") for r in _select_user_outputs(program, node) if isinstance(r, torch.fx.Node)]
            first += [value.shape[0] if isinstance(value, Tensor) and value.dim() else None for value in results]
    return all(isinstance(size, torch.SymInt) for size in first) and len({str(size) for size in first}) == 1


def _explain_failure(model: nn.Module, examples: tuple[Tensor, ...], error: Exception) -> str:
    shapes = ", ".join(str(tuple(value.shape)) for value in examples)
    name, text = type(error).__name__, str(error).strip()
    if "data-dependent" in text.lower() or "DataDependent" in name or "guard on" in text.lower():
        hint = "its control flow depends on the values of its input; a graph needs one flow for all inputs"
    elif any(words in text for words in ("dtype", "Input type", "scalar type")):
        dtypes = ", ".join(str(value.dtype) for value in examples)
        hint = f"the example is {dtypes}; check that the model takes that"
    elif "shape" in text.lower() or "size" in text.lower():
        hint = "check that the example has the shape the model expects"
    else:
        hint = "torch.export could not follow it"
    lines = text.splitlines() or [""]
    return f"cannot trace {type(model).__name__} with an example of shape {shapes}: {hint} ({name}: {lines[0]})"


def tied_names(state: Mapping[str, Any]) -> dict[str, str]:
    """Map each further state_dict name of a tensor to its first name."""
    first: dict[Any, str] = {}
    tied: dict[str, str] = {}
    for name, value in state.items():
        # Tensors without entries may all have the same address, and would be taken for one.
        if not isinstance(value, Tensor) or value.numel() == 0 or value.layout != torch.strided:
            continue
        place = (
            value.untyped_storage().data_ptr() or id(value),
            value.storage_offset(),
            tuple(value.shape),
            value.stride(),
            value.dtype,
        )
        # The same memory read in the same way is one tensor; views that overlap only in part are not.
        owner = first.setdefault(place, name)
        if owner != name:
            tied[name] = owner
    return tied


def network_from_program(
    program: ExportedProgram, check: Callable[[ExportedProgram], None] = lambda program: None
) -> Network:
    """Make a `Network` of an exported program (as `torch.export.load` returns it), if a check lets it pass."""
    with silence_torch():
        program = program.run_decompositions({})  # also where it changes nothing: a file may lie about its shapes
    check(program)
    return _Builder(program, _keeps_batch(program), tied_names(program.state_dict)).build()


class _Builder:
    """A builder copies an exported program's graph, without identities and checks."""

    def __init__(self, program: ExportedProgram, batched: bool, tied: Mapping[str, str]) -> None:
        self.program, self.batched = program, batched
        state, constants = program.state_dict, program.constants
        # Buffers that are not in the user's state_dict cannot be saved or loaded under a name: they become constants.
        persistent = set(state) - set(program.graph_signature.non_persistent_buffers)
        self.tied = {name: first for name, first in tied.items() if first in persistent}
        self.params = {n: v.detach().clone() for n, v in state.items() if n in persistent and n not in self.tied}
        self.trainable = frozenset(set(program.graph_signature.parameters) - set(self.tied)) & self.params.keys()
        others = {**{n: v for n, v in state.items() if n not in persistent}, **constants}
        same = tied_names(others)  # copied once: a small file can give one tensor thousands of names
        copies = {n: v.detach().clone() for n, v in others.items() if isinstance(v, Tensor) and n not in same}
        self.constants = {n: copies[same.get(n, n)] for n in (*copies, *same)}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.input_shapes: list[tuple[int, ...]] = []
        self.input_dtypes: list[torch.dtype] = []
        self.known: dict[str, Any] = {}  # a graph node's name → what stands for it in our arguments
        self.batch_symbol = _batch_symbol(program)
        self.batch_size: Ref | None = None  # the node that reads it, once it is needed

    def build(self) -> Network:
        outputs: tuple[Any, ...] = ()
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._add_placeholder(node)
            elif node.op == "call_function":
                self._add_call(node)
            elif node.op == "get_attr":  # a sub-graph of a higher-order operation
                self.known[node.name] = getattr(self.program.graph_module, node.target)
            elif node.op == "output":
                outputs = self._convert(_select_user_outputs(self.program, node))
        structure = self.program.call_spec.out_spec
        assert structure is not None
        needed = self._find_needed(outputs)
        if not any(name in needed for name in self.inputs):
            raise TraceError("the network is empty: no output depends on an input")
        shapes = {node.name: node.shape for node in self.nodes}
        for name in references_in(outputs):
            if (shape := shapes.get(name)) is not None and 0 in shape:
                raise TraceError(f"the network has an output without entries: '{name}' has shape {tuple(shape)}")
        return Network(
            nodes=tuple(node for node in self.nodes if node.name in needed),
            inputs=tuple(self.inputs),
            input_shapes=tuple(self.input_shapes),
            input_dtypes=tuple(self.input_dtypes),
            batched=self.batched,
            params=self.params,
            trainable=self.trainable,
            outputs=outputs,
            output_structure=structure,
            aliases=self.tied,
            constants={name: value for name, value in self.constants.items() if name in needed},
        )

    def _add_placeholder(self, node: torch.fx.Node) -> None:
        signature = self.program.graph_signature
        owners = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        if node.name in owners:
            name = owners[node.name]
            self.known[node.name] = Ref(self.tied.get(name, name))
            return
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            raise TraceError(f"input '{node.name}' of the model is {value!r}, not a tensor")
        name = self._find_free_name(node.name)
        self.inputs.append(name)
        self.input_shapes.append(self._find_shape(value) or ())
        self.input_dtypes.append(value.dtype)
        self.known[node.name] = Ref(name)

    def _add_call(self, node: torch.fx.Node) -> None:
        target, args = node.target, self._convert(node.args)
        name = getattr(target, "__name__", str(target))
        if name.startswith(CHECKS):
            return
        # `x[:]` is exported as a slice whose end is the largest integer.
        full_slice = target is aten.slice.Tensor and len(args) == 4 and args[2] == 0 and args[3] >= 2**62
        if target in IDENTITIES or full_slice:
            self.known[node.name] = args[0]
            return
        source = node.args[0] if node.args else None
        if target is operator.getitem and args[1] == 0 and _is_batch_norm(source):
            self.known[node.name] = args[0]  # in evaluation mode the other two results are empty
            return
        if target is aten.sym_size.int and str(node.meta["val"]) == self.batch_symbol:
            self.known[node.name] = self._read_batch_size()
            return
        if target in RESHAPES:
            shape = node.meta["val"].shape
            # As texts: comparing sizes that are free would have torch settle them.
            if str(source.meta["val"].shape) == str(shape):  # type: ignore[union-attr]
                self.known[node.name] = args[0]
                return
            sizes = [size if isinstance(size, int) else self._read_batch_size() for size in shape]
            target, args = aten.reshape.default, (args[0], sizes)
        if target in (aten.view.default, aten._unsafe_view.default):  # without the copies left out, views may not do
            target = aten.reshape.default
        if target is aten.squeeze.default:  # by name, so that a batch of one is not squeezed away
            sizes = node.args[0].meta["val"].shape  # type: ignore[union-attr]
            target, args = (
                aten.squeeze.dims,
                (args[0], [d for d, n in enumerate(sizes) if isinstance(n, int) and n == 1]),
            )
        if _is_batch_norm(node):
            target = aten.batch_norm.default
            x, weight, bias, mean, variance, momentum, eps = args
            args = (x, weight, bias, mean, variance, False, momentum, eps, False)
        elif target is aten.batch_norm.default:
            args = (*args[:8], False)  # the last one only chooses a library to compute it with
        value = node.meta["val"][0] if _is_batch_norm(node) else node.meta.get("val")
        if target is operator.getitem and isinstance(value, Tensor) and not value.is_floating_point():
            value = None  # indices are not neurons
        kwargs, fresh = self._convert(dict(node.kwargs)), self._find_free_name(node.name)
        self.nodes.append(Node(fresh, target, args, kwargs, _find_module_path(node), self._find_shape(value)))  # type: ignore[arg-type]
        self.known[node.name] = Ref(fresh)

    def _read_batch_size(self) -> Ref:
        """Return what stands for the size of the batch: one node before all others, which reads it off the input."""
        if self.batch_size is None:
            self.batch_size = Ref(self._find_free_name("batch_size"))
            node = Node(self.batch_size.name, aten.sym_size.int, (Ref(self.inputs[0]), 0), {}, "", None)
            self.nodes.insert(0, node)
        return self.batch_size

    def _find_free_name(self, name: str) -> str:
        """Return a name for a node or an input that no parameter of the user's has."""
        while name in self.params or name in self.constants or name in self.tied or name in self.inputs:
            name += "_"
        return name

    def _convert(self, value: Any) -> Any:
        """Convert fx arguments into plain Python containers with our references."""
        if isinstance(value, torch.fx.Node):
            return self.known[value.name]
        if isinstance(value, tuple):
            return tuple(self._convert(item) for item in value)
        if isinstance(value, list):
            return [self._convert(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self._convert(item) for key, item in value.items()}
        return value

    def _find_shape(self, value: Any) -> tuple[int, ...] | None:
        """Return a traced value's shape with every free symbol set to one."""
        if not isinstance(value, Tensor):
            return None
        return tuple(
            int(size)
            if isinstance(size, int)
            else int(size.node.expr.subs(dict.fromkeys(size.node.expr.free_symbols, 1)))
            for size in value.shape
        )

    def _find_needed(self, outputs: tuple[Any, ...]) -> set[str]:
        """Return everything an output depends on."""
        # Nodes are in topological order, so that one pass from the end reaches everything.
        needed = set(references_in(outputs))
        for node in reversed(self.nodes):
            if node.name in needed:
                needed.update(node.references)
        return needed


def _select_user_outputs(program: ExportedProgram, output: torch.fx.Node) -> tuple[Any, ...]:
    """Return what the model returns, without the new values of buffers that it updates."""
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    results: Any = output.args[0]
    return tuple(result for result, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT)


def _is_batch_norm(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.target is aten._native_batch_norm_legit_no_training.default


def _find_module_path(node: torch.fx.Node) -> str:
    """Return the path of a node's module in the model, such as 'layer1.0.conv1'."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values() if not path.startswith("_empty")]
    return paths[-1] if paths else ""
