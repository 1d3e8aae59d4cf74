"""A network is exported for use without tamis as a plain module, a `.pt2` file of torch.export, or an `.onnx` file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from tamis.artifact.atomic_file import replace_file
from tamis.errors import InvalidInput, TamisError
from tamis.graph import Network, Ref, remember, silence_torch

CONTAINERS = (tuple, list, dict)  # what a plain module can return tensors in
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-5  # of what an .onnx file computes, relative to the largest output or to 1; or eight roundings, if more
BATCHES = (1, 3)  # that an .onnx file of a batched network is tried with


def to_module(net: Network) -> fx.GraphModule:
    """Return the network as a module that runs without tamis, on any batch that the network takes.

    Parameters and buffers are copies, under the user's own names in its state_dict, tied ones tied. It computes what
    the network does, in evaluation mode whatever its mode is; it can be trained, moved, copied and pickled.

    Example:
        >>> model, x = nn.Linear(3, 2), torch.ones(1, 3)
        >>> net = tamis.trace(model, x)
        >>> module = to_module(net)
        >>> torch.equal(module(x), net(x)), module.state_dict().keys() == model.state_dict().keys()
        (True, True)
    """
    module = fx.GraphModule(nn.Module(), fx.Graph(), type(net).__name__)
    for name, value in net.params.items():
        _register(module, name, _copy_tensor(value, name in net.trainable))
    for alias, name in net.aliases.items():
        _register(module, alias, _at(module, name))
    places = {name: _find_free_name(module, name) for name in net.constants}
    for name, place in places.items():
        _register(module, place, net.constants[name].detach().clone(), persistent=False)
    module.graph = _build_graph(net, module, places)
    remember(module, net.seen)
    return module.eval()


def export(net: Network, path: str | Path) -> None:
    """Write the network to a file that other programs run, whole or not at all.

    Args:
        net: any network.
        path: ending in `.pt2` for torch.export, or `.onnx`, which needs the packages of `tamis[onnx]`. An `.onnx` file
            is run with onnxruntime on random inputs, and written only if it gives what the network gives.

    Example:
        >>> export(tamis.trace(nn.Linear(3, 2), torch.ones(1, 3)), "small.pt2")
        >>> torch.export.load("small.pt2").module()(torch.ones(1, 3)).shape
        torch.Size([1, 2])
    """
    path = Path(path)
    if path.suffix not in (".pt2", ".onnx"):
        raise InvalidInput(f"export writes .pt2 and .onnx files, got '{path}'")
    if path.suffix == ".onnx":
        _check_onnx_packages()
    program = _export_program(net)
    if path.suffix == ".pt2":
        write_program(program, path)
        return
    with replace_file(path) as part, silence_torch():
        _write_onnx(net, program, part, path)


def write_program(program: ExportedProgram, path: Path) -> None:
    """Write a `.pt2` file, whole or not at all.

    In memory first: torch aborts where it cannot write to a file, and would put the name of a temporary one into it.
    """
    archive = BytesIO()
    with silence_torch():
        torch.export.save(program, archive)
    with replace_file(path) as part:
        part.write_bytes(archive.getbuffer())


def _export_program(net: Network) -> ExportedProgram:
    module, inputs = to_module(net), example_inputs(net, batch=2)  # export takes a size of one for a constant
    dynamic = tuple({0: Dim.AUTO} for _ in inputs) if net.batched else None
    with torch.no_grad(), silence_torch():
        return torch.export.export(module, inputs, dynamic_shapes=dynamic)


def example_inputs(net: Network, batch: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Draw random inputs that the network takes: normal numbers, and 0 and 1 for integers."""
    generator = torch.Generator().manual_seed(seed)
    inputs = []
    for shape, dtype in zip(net.input_shapes, net.input_dtypes, strict=True):
        size = (batch * shape[0], *shape[1:]) if net.batched else shape
        drawn = torch.randn(size, generator=generator)
        inputs.append((drawn if dtype.is_floating_point else drawn > 0).to(dtype).to(net.device))
    return tuple(inputs)


# -- the module ----------------------------------------------------------------------------------------------------


def _build_graph(net: Network, module: nn.Module, places: dict[str, str]) -> fx.Graph:
    graph = fx.Graph()
    known: dict[str, fx.Node] = {name: graph.placeholder(name) for name in net.inputs}

    def argument(value: Any) -> Any:
        """Return an argument of ours as one of fx."""
        if isinstance(value, Ref):
            if value.name not in known:
                known[value.name] = graph.get_attr(places.get(value.name, value.name))
            return known[value.name]
        if isinstance(value, fx.GraphModule):  # of a higher-order operation
            name = _find_free_name(module, "subgraph")
            module.add_module(name, value)
            return graph.get_attr(name)
        if isinstance(value, (list, tuple)):
            return type(value)(argument(item) for item in value)
        if isinstance(value, dict):
            return {key: argument(item) for key, item in value.items()}
        return value

    with silence_torch():  # fx warns of attributes that it does not find, where a name has several dots
        for node in net.nodes:
            args, kwargs = argument(node.args), argument(dict(node.kwargs))
            known[node.name] = graph.call_function(node.target, args, kwargs)
        graph.output(_arrange_outputs([argument(output) for output in net.outputs], net))
    return graph


def _arrange_outputs(outputs: list[Any], net: Network) -> Any:
    """Put outputs into the containers that the model returned them in."""
    whole = pytree.tree_unflatten(outputs, net.output_structure)
    for container in _iterate_containers(whole):
        if not isinstance(container, CONTAINERS):
            raise InvalidInput(
                f"the network returns a {type(container).__name__}, which no plain module can; let the model return "
                "tensors, or tuples, lists and dicts of them"
            )
    return whole


def _iterate_containers(value: Any) -> Iterator[Any]:
    if value is None or isinstance(value, (fx.Node, int, float, bool, str)):
        return
    yield value
    if isinstance(value, CONTAINERS):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _iterate_containers(item)


def _copy_tensor(value: Tensor, trainable: bool) -> Tensor:
    copy = value.detach().clone()
    return nn.Parameter(copy, requires_grad=copy.is_floating_point() or copy.is_complex()) if trainable else copy


def _register(module: nn.Module, path: str, value: Tensor, persistent: bool = True) -> None:
    """Put a tensor where a state_dict has it under this name."""
    *parents, name = path.split(".")
    for parent in parents:
        if parent not in module._modules:
            module.add_module(parent, nn.Module())
        module = module.get_submodule(parent)
    if isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value, persistent=persistent)


def _at(module: nn.Module, path: str) -> Tensor:
    parent, _, name = path.rpartition(".")
    found: Tensor = getattr(module.get_submodule(parent), name)
    return found


def _find_free_name(module: nn.Module, name: str) -> str:
    """Return a name without dots that nothing in a module has yet."""
    name = name.replace(".", "_")
    while hasattr(module, name):
        name += "_"
    return name


# -- ONNX ----------------------------------------------------------------------------------------------------------


def _check_onnx_packages() -> None:
    missing = []
    for package in ONNX_PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError:
            missing.append(package)
    if missing:
        raise InvalidInput(f"an .onnx file needs {', '.join(missing)}: pip install 'tamis[onnx]'")


def _write_onnx(net: Network, program: ExportedProgram, part: Path, path: Path) -> None:
    import onnxruntime  # type: ignore[import-untyped]

    try:
        written = torch.onnx.export(program, dynamo=True, input_names=list(net.inputs), verbose=False)
        assert written is not None
        written.save(part)
        session = onnxruntime.InferenceSession(part.read_bytes(), providers=["CPUExecutionProvider"])
    except Exception as error:  # torch and onnxruntime have many kinds of their own
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TamisError(f"'{path}' was not written: the network cannot be written as ONNX ({reason:.300})") from error
    _check_onnx(net, session, path)


def _check_onnx(net: Network, session: Any, path: Path) -> None:
    """Refuse a file that does not compute what the network does."""
    for batch in BATCHES if net.batched else (1,):
        inputs = example_inputs(net, batch, seed=batch)
        with torch.no_grad():
            expected = [value.cpu() for value in pytree.tree_leaves(net(*inputs)) if isinstance(value, Tensor)]
        names = [wanted.name for wanted in session.get_inputs()]
        given = {name: value.cpu().numpy() for name, value in zip(net.inputs, inputs, strict=True) if name in names}
        for own, other in zip(expected, map(torch.from_numpy, session.run(None, given)), strict=True):
            _compare(own, other, path)


def _compare(expected: Tensor, found: Tensor, path: Path) -> None:
    if expected.shape != found.shape:
        raise TamisError(f"'{path}' was not written: it gives {tuple(found.shape)}, not {tuple(expected.shape)}")
    if expected.numel() == 0:
        return
    rounding = torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0.0
    largest = max(1.0, float(expected.double().nan_to_num().abs().max()))
    error = float((expected.double() - found.double()).abs().nan_to_num().max()) / largest
    if error > max(TOLERANCE, 8 * rounding):
        raise TamisError(
            f"'{path}' was not written: on random inputs, it differs from the network by {error:.1e} of the largest "
            "output"
        )
