"""A `.pt2` file holds an exported program, and is read so that it cannot bring code with it.

`torch.export.load` unpickles parts of an archive, loads shared libraries, evaluates texts of its graph as Python
(sizes, guards, names), imports modules that it names, and calls any function of torch that a node names, of which not
all keep within their tensors. So an archive is not given to it as it is. It is taken apart first; what could be more
than data is refused; and torch reads a new archive, in memory, that has the parts which were looked at and no other.
"""

from __future__ import annotations

import io
import json
import math
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload

from tamis.errors import InvalidInput, TamisError, UntrustedFile
from tamis.graph.network import Network
from tamis.graph.safe_operations import is_safe
from tamis.graph.size_arithmetic import FUNCTIONS as ARITHMETIC
from tamis.graph.size_arithmetic import ITEM, find_excess
from tamis.graph.size_formula import NAME, is_size_formula
from tamis.graph.trace import network_from_program, silence_torch
from tamis.graph.unchecked_operands import find_mismatch

GRAPH, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
PAYLOADS = {"weights": "data/weights/", "constants": "data/constants/"}  # tensors as they are, and what says which
PLAIN = ("archive_format", "archive_version", ".data/version", "byteorder")  # what else a reader needs
LEGACY = ("data/weights/model.pt", "data/constants/model.pt")  # whole state dicts, pickled, of torch before 2.9
COMPILED = "data/aotinductor/"

TEXT = re.compile(r"[^'\"\\\x00-\x1f]*")  # what can stand between quotes, and not end them
TEXTS = ("as_string", "as_strings")
TREES = ("in_spec", "out_spec")
CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
OPERATION = re.compile(r"torch\.ops\.(aten|prims)\.\w+\.\w+")
SUBGRAPHS = ("cond", "wrap_with_set_grad_enabled", "wrap_with_autocast")  # no loops, which need not end
FUNCTIONS = (*(f"torch.ops.higher_order.{name}" for name in SUBGRAPHS), *ARITHMETIC, ITEM)
LARGEST = 2**63  # of integers
# RuntimeError and NotImplementedError are of zipfile, for what is encrypted or of a later version of the format.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, EOFError, RuntimeError)
ROOM = 4  # times the bytes of an archive: the most that tensors of it may take, which can be views of one another


def load_program(path: Path, trust: bool = False) -> Network:
    """Read the network of a `.pt2` file.

    Args:
        path: the file, as `torch.export.save` wrote it.
        trust: read it even if it can run code: pickled tensors, objects of classes, compiled libraries, and functions
            other than the operations that `safe_operations` lists.

    Raises:
        UntrustedFile: it can run code, or is made to do harm, and `trust` is False.
        InvalidInput: it is no such file.

    Example:
        >>> torch.export.save(torch.export.export(torch.nn.Linear(2, 1), (torch.zeros(1, 2),)), "model.pt2")
        >>> load_program(Path("model.pt2"))
        Network(1 nodes, 3 parameters, inputs [(1, 2)])
    """
    content = path.read_bytes()
    source = io.BytesIO(content if trust else _rebuild_archive(path, content))
    with silence_torch():
        try:
            program = torch.export.load(source)
            return (
                network_from_program(program)
                if trust
                else network_from_program(program, partial(_check_operands, path))
            )
        except TamisError:
            raise
        except Exception as error:  # torch raises whatever it tripped over, in the file or in the graph that it says
            _refuse_unreadable(path, error)


def _refuse_unreadable(path: Path, error: Exception | None = None) -> NoReturn:
    raise InvalidInput(f"'{path}' is not a file that torch.export.save of this torch version wrote") from error


def _rebuild_archive(path: Path, content: bytes) -> bytes:
    """Return an archive of the checked parts that torch needs to read the program."""
    try:
        members = _read_members(path, content)
        if any(name not in members for name in (GRAPH, *PLAIN[:2])):
            _refuse_unreadable(path)
        made = {name: members[name] for name in PLAIN if name in members}
        made[GRAPH] = _to_json(_check_graph(path, _parse_json(members[GRAPH])))
        made[SAMPLES] = b""  # pickled, and not needed
        for kind, folder in PAYLOADS.items():
            described = f"{folder}model_{kind}_config.json"
            config = _parse_json(members[described])
            made[described] = _to_json(config)
            for name in _check_payloads(path, kind, folder, config, members, len(content)):
                made[name] = members[name]
    except UNREADABLE as error:
        _refuse_unreadable(path, error)
    return _write_archive(made)


# -- the archive -------------------------------------------------------------------------------------------------------


def _read_members(path: Path, content: bytes) -> dict[str, bytes]:
    """Return the files of an archive by their names, without the folder that contains them all."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        root = names[0].partition("/")[0] + "/" if names else ""
        for entry in entries:
            if stat.S_ISLNK(entry.external_attr >> 16):
                _refuse(path, f"its file {entry.filename!r:.200} is a link to another one")
            if entry.filename.startswith("/") or "\\" in entry.filename or ".." in entry.filename.split("/"):
                _refuse(path, f"its file {entry.filename!r:.200} lies outside of the archive")
            if entry.compress_type != zipfile.ZIP_STORED:  # torch stores what it writes as it is
                _refuse(path, f"its file {entry.filename!r:.200} is compressed, and could fill the memory")
        if len(set(names)) < len(names) or sum(entry.file_size for entry in entries) > len(content):
            _refuse(path, "files in it stand there twice, and could fill the memory")
        if any(not name.startswith(root) for name in names):
            _refuse_unreadable(path)
        if compiled := [name for name in names if name.startswith(root + COMPILED)]:
            _refuse(path, f"it has compiled code in {compiled[0]!r:.200}")
        if legacy := [name for name in names if name.removeprefix(root) in LEGACY or name.endswith("_state_dict.pt")]:
            _refuse(path, f"its weights in {legacy[0]!r:.200} are pickled")
        return {entry.filename.removeprefix(root): archive.read(entry) for entry in entries}


def _write_archive(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(f"model/{name}", content)
    return made.getvalue()


def _parse_json(text: bytes | str) -> Any:
    return json.loads(text, parse_int=_parse_whole)


def _parse_whole(digits: str) -> int:
    number = int(digits)
    if abs(number) > LARGEST:
        raise ValueError(f"{digits:.30} is too large")
    return number


def _to_json(content: Any) -> bytes:
    return json.dumps(content).encode()


def _refuse(path: Path, reason: str) -> NoReturn:
    raise UntrustedFile(f"'{path}' may do more than compute a network: {reason}")


# -- tensors -----------------------------------------------------------------------------------------------------------


def _check_payloads(
    path: Path, kind: str, folder: str, config: Any, members: Mapping[str, bytes], size: int
) -> Iterator[str]:
    """Return the files that hold the weights or constants of a program, each as a plain tensor."""
    prefix = {"weights": "weight_", "constants": "tensor_"}[kind]
    views: dict[str, int] = {}
    for name, entry in config["config"].items():
        what = f"{kind.removesuffix('s')} {name!r:.200}"
        if entry["use_pickle"] is not False:
            _refuse(path, f"its {what} is pickled")
        if not entry["path_name"].startswith(prefix):
            _refuse(path, f"its {what} is an object in {entry['path_name']!r:.200}")
        _check_words(path, entry)
        file = folder + entry["path_name"]
        meta = entry["tensor_meta"]
        view = _to_json([file, meta["sizes"], meta["strides"], meta["storage_offset"], meta["dtype"]])
        views[view.decode()] = math.prod(length["as_int"] for length in meta["sizes"])
        if views[view.decode()] and not members[file]:
            _refuse(path, f"its {what} has a shape and no numbers")
        yield file
    _check_words(path, list(config["config"]))
    if sum(views.values()) > ROOM * size:  # in entries of at least one byte
        _refuse(path, f"its {kind} have {sum(views.values()):,} entries in a file of {size:,} bytes")


# -- the graph ---------------------------------------------------------------------------------------------------------


def _check_graph(path: Path, content: Any) -> Any:
    """Return the description of the program without guards and notes, if it calls only operations of torch."""
    content["guards_code"] = []  # Python source, of what tamis checks itself
    _check_words(path, content)
    if excess := find_excess(content["graph_module"]["graph"]):
        _refuse(path, excess)
    return content


def _check_operands(path: Path, program: torch.export.ExportedProgram) -> None:
    if mismatch := find_mismatch(program):
        _refuse(path, mismatch)


def _check_words(path: Path, value: Any, key: str = "") -> None:
    """Raise UntrustedFile where a text somewhere inside could become more than a text."""
    if isinstance(value, dict):
        if "target" in value and isinstance(notes := value.get("metadata"), dict):  # of a node
            modules = notes.get("nn_module_stack", "")  # read, and never run; other notes are lines of source
            _check_words(path, {**value, "metadata": None})
            value["metadata"] = {"nn_module_stack": modules} if isinstance(modules, str) else {}
            return
        for name, each in value.items():
            _check_text(path, name, "")
            _check_words(path, each, name)
    elif isinstance(value, list):
        for each in value:
            _check_words(path, each, key)
    elif isinstance(value, str):
        _check_text(path, value, key)


def _check_text(path: Path, text: str, key: str) -> None:
    if key in CHECKS:
        CHECKS[key](path, text)
    elif not (TEXT if key in TEXTS else NAME).fullmatch(text):
        _refuse(path, f"it has {text!r:.200} where a name must stand")


def _check_function(path: Path, text: str) -> None:
    if OPERATION.fullmatch(text):
        _, _, space, name, overload = text.split(".")
        found = getattr(getattr(getattr(torch.ops, space), name, None), overload, None)
        if not isinstance(found, OpOverload):
            raise InvalidInput(f"'{path}' calls {text}, which this torch does not have")
        if not is_safe(found):
            _refuse(
                path, f"it calls {text}, which is none of the operations that are known to keep within their tensors"
            )
    elif text not in FUNCTIONS:
        _refuse(path, f"it calls {text!r:.200}, which is no operation of torch on tensors")


def _check_tree(path: Path, text: str) -> None:
    """Raise UntrustedFile for inputs or outputs in containers other than Python's own, which torch would import."""
    version, tree = _parse_json(text)
    _check_words(path, version)

    def check(node: Any) -> None:
        if node["type"] not in CONTAINERS:
            _refuse(path, f"it has inputs or outputs in a {node['type']!r:.200}")
        keys = _parse_json(node["context"]) if isinstance(node["context"], str) else node["context"]
        if keys is not None and not (isinstance(keys, list) and all(isinstance(name, (str, int)) for name in keys)):
            _refuse(path, f"it has inputs or outputs in a {node['type']!r:.200} of {keys!r:.200}")
        _check_words(path, keys)
        for child in node["children_spec"]:
            check(child)

    check(tree)


def _check_expression(path: Path, text: str) -> None:
    if not is_size_formula(text):
        _refuse(path, f"it has a size {text!r:.200}, which is no formula of sizes")


CHECKS: dict[str, Callable[[Path, str], None]] = {
    "target": _check_function,
    "as_operator": _check_function,
    "expr_str": _check_expression,
    **dict.fromkeys(TREES, _check_tree),
}
