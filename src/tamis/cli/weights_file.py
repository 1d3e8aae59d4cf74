"""--weights on the command line: a `.safetensors` file, or a `.pt` or `.pth` file with a state_dict in it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model
from torch import Tensor, nn

from tamis.artifact import check_uncompressed, seen_in
from tamis.errors import InvalidParameters, join_names
from tamis.graph import remember

PICKLES = frozenset((".pt", ".pth", ".bin", ".ckpt"))
WRAPPERS = ("state_dict", "model_state_dict", "model", "weights", "net")  # keys of what training scripts save
PREFIXES = ("module.", "model.", "_orig_mod.", "net.")  # of DataParallel, Lightning, torch.compile


def load_weights(module: nn.Module, path: Path) -> str:
    """Load a file, which must hold all parameters and buffers and nothing else, into a module; say what it was."""
    check_readable(path)
    return _load_pickled(module, path) if path.suffix in PICKLES else _load_safetensors(module, path)


def check_readable(path: Path) -> None:
    """Raise what Python raises for a file that cannot be opened; torch and safetensors do not name the file."""
    with path.open("rb"):
        pass


def _load_safetensors(module: nn.Module, path: Path) -> str:
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InvalidParameters(
            f"'{path}' is not a safetensors file, as safetensors.torch.save_model(model, …) writes it: {error}"
        ) from error
    wrong = _of_another_shape(module, shapes)
    missing: Iterable[str] = module.state_dict().keys() - shapes.keys()
    unexpected: Iterable[str] = shapes.keys() - module.state_dict().keys()
    if not wrong:  # which would stop the load
        missing, unexpected = load_model(module, path, strict=False)
        unexpected = set(unexpected) - module.state_dict().keys()  # of tied ones it needs one, but may find them all
    _refuse(module, path, missing, unexpected, wrong)
    remember(module, seen_in(path))
    return str(path)


def _load_pickled(module: nn.Module, path: Path) -> str:
    state, steps = _unwrap(_read_pickled(path), module, path)
    wrong = _of_another_shape(module, {name: tuple(value.shape) for name, value in state.items()})
    own = module.state_dict().keys()
    _refuse(module, path, own - state.keys(), state.keys() - own, wrong)
    module.load_state_dict(state)
    if not steps:
        return str(path)
    said = f"{path}, {', '.join(steps)}"
    print(f"weights: {said}", file=sys.stderr, flush=True)  # nobody should have to guess what was taken
    return said


def _read_pickled(path: Path) -> Any:
    check_uncompressed(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its reader tripped over
        reason = str(error).strip().split("\n")[0]
        raise InvalidParameters(
            f"'{path}' is not read: it must hold tensors alone, as torch.save(model.state_dict(), …) writes them, for "
            f"other objects in such a file can run code ({type(error).__name__}: {reason:.200})"
        ) from error


def _unwrap(found: Any, module: nn.Module, path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Find the state_dict in the content of a file, and say in words what had to be done to find it."""
    steps: list[str] = []
    for key in WRAPPERS:
        if isinstance(found, Mapping) and not _is_state(found) and isinstance(found.get(key), Mapping):
            found = found[key]
            steps.append(f"under '{key}'")
    if not _is_state(found):
        has = f"the keys {join_names(map(str, found))}" if isinstance(found, Mapping) else f"a {type(found).__name__}"
        raise InvalidParameters(f"'{path}' holds no state_dict but {has}: save model.state_dict(), or a dict with it")
    state = dict(found)
    for prefix in PREFIXES:
        carried = all(name.startswith(prefix) for name in state)
        if carried and not any(name.startswith(prefix) for name in module.state_dict()):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
            steps.append(f"names without '{prefix}'")
    return state, steps


def _is_state(found: Any) -> bool:
    return isinstance(found, Mapping) and bool(found) and all(isinstance(value, Tensor) for value in found.values())


def _of_another_shape(module: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    return [f"{n} is {shapes[n]} instead of {s}" for n, s in wanted.items() if n in shapes and shapes[n] != s]


def _refuse(module: nn.Module, path: Path, missing: Iterable[str], unexpected: Iterable[str], wrong: list[str]) -> None:
    """Raise InvalidParameters where anything is missing, unexpected or of another shape."""
    complaints = {"missing": sorted(missing), "unexpected": sorted(unexpected), "of another shape": wrong}
    found = [f"{what}: {join_names(names, most=4)}" for what, names in complaints.items() if names]
    if found:
        raise InvalidParameters(f"'{path}' does not fit {type(module).__name__}; {'; '.join(found)}")
