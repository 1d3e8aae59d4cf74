"""Tuning measures once which backend is the fastest on this machine, and stores the result on disk.

What is measured goes to the file kronecker.json in the folder that the environment variable TAMIS_CACHE names, or in
~/.cache/tamis. An entry counts for one pattern, layout and dtype, for batches with the same next power of two, and only
on the hardware, with the number of threads and with the versions that it was measured with. While a network is compiled
or exported, no entry counts.
"""

from __future__ import annotations

import json
import math
import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis import __version__
from tamis.artifact import replace_file
from tamis.errors import InvalidInput
from tamis.kernels import dispatch, needs_gradient, time_in_turns
from tamis.kronecker.pattern import Pattern, PatternLike, as_pattern

FORMAT = 1
LARGEST_DENSE = 2**26  # entries of a matrix that is still multiplied with its zeros
WARNING = "the tuned table {file} is not used: {error}; delete it, or let tamis.kronecker.tuning.tune write a new one"
Table = dict[str, dict[str, dict[str, Any]]]  # machine → what is multiplied → a `Tuned`


@dataclass(frozen=True)
class Tuned:
    """A `Tuned` holds the measurements for one pattern and size of batch.

    Attributes:
        forward: the backend that multiplies the fastest.
        training: the one that multiplies and differentiates, in the input and the weight, the fastest.
        seconds: of every backend that accepts, by name, under "forward" and "training".
    """

    forward: str
    training: str
    seconds: dict[str, dict[str, float]]


def tune(
    pattern: PatternLike,
    batch: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    layout: str = "batch_first",
) -> Tuned:
    """Measure every backend that accepts, with torch's number of threads, and let the fastest be chosen from now on.

    It takes a second or two. The table is written whole or not at all; of two processes that tune at the same moment,
    one may lose what the other one wrote.

    Args:
        pattern, dtype, layout: as of `tamis.kronecker.multiply`.
        batch: the number of vectors.
        device: where they are multiplied.

    Example:
        >>> tune((1, 192, 48, 2), 256).forward  # doctest: +SKIP
        'cpu'
    """
    pattern, device = as_pattern(pattern), torch.device(device)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidInput(f"batch must be a whole number ≥ 1, got {batch!r}")
    if not dtype.is_floating_point:
        raise InvalidInput(f"tune measures with real numbers, got {dtype}")
    tasks = {training: _tasks(pattern, batch, dtype, device, layout, training) for training in (False, True)}
    seconds = {"forward": time_in_turns(tasks[False], device), "training": time_in_turns(tasks[True], device)}
    forward, training = (min(times, key=lambda name: times[name]) for times in seconds.values())
    tuned = Tuned(forward, training, seconds)
    _write_entry(machine(device), _key(pattern, layout, dtype, batch), tuned)
    return tuned


def fastest(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> str | None:
    """Return the backend that was measured as the fastest for this product, or None without a measurement."""
    measured = read_table()
    if not measured:
        return None
    batch = x.shape[0] if layout == "batch_first" else x.shape[1]
    entry = measured.get(machine(x.device), {}).get(_key(pattern, layout, x.dtype, batch))
    if entry is None:
        return None
    return str(entry["training" if needs_gradient(x, weight) else "forward"])


def file() -> Path:
    """Return the path of the table."""
    folder = os.environ.get("TAMIS_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "tamis")
    return Path(folder) / "kronecker.json"


def entries(device: torch.device | str = "cpu") -> tuple[int, int]:
    """Count the entries for this machine, and all of them."""
    measured = read_table()
    return len(measured.get(machine(torch.device(device)), {})), sum(map(len, measured.values()))


def machine(device: torch.device) -> str:
    """Describe what an entry depends on: hardware, threads and versions."""
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    index = device.index if device.index is not None or device.type != "cuda" else torch.cuda.current_device()
    return _machine(device.type, index, threads)


@lru_cache(maxsize=16)
def _machine(kind: str, index: int | None, threads: int) -> str:
    versions = f"torch {torch.__version__}, tamis {__version__}"
    if kind == "cpu":
        kernel = "torch" if dispatch.native() is None else dispatch.kronecker_kernel()[0]
        return f"{_processor()}, {threads} threads, {kernel}, {versions}"
    name = torch.cuda.get_device_name(index) if kind == "cuda" else kind
    return f"{name}, {versions}, triton {_version_of('triton')}"


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def next_power_of_two(batch: int) -> int:
    """Return the least power of two that is at least a batch; all batches with the same one share an entry."""
    return 1 << max(batch - 1, 0).bit_length()


def _key(pattern: Pattern, layout: str, dtype: torch.dtype, batch: int) -> str:
    """Return an entry's name in the table."""
    return f"{pattern}, {layout}, {str(dtype).removeprefix('torch.')}, {next_power_of_two(batch)}"


def _tasks(
    pattern: Pattern, batch: int, dtype: torch.dtype, device: torch.device, layout: str, training: bool
) -> dict[str, Callable[[], Any]]:
    """Make one task for each backend that accepts, which is the product, or the product and its gradients."""
    from tamis.kronecker.backends import BACKENDS  # which asks this module
    from tamis.kronecker.multiply import check_layout, multiply

    check_layout(layout)
    sizes = [(batch, pattern.columns), (batch, pattern.rows)]
    shapes = sizes if layout == "batch_first" else [size[::-1] for size in sizes]
    draw = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=draw).to(device, dtype) for shape in shapes)
    weight = ((2 * torch.rand(pattern.shape, generator=draw) - 1) / math.sqrt(pattern.c)).to(device, dtype)
    x.requires_grad_(training), weight.requires_grad_(training)

    def task(name: str) -> Any:
        y = multiply(x, weight, pattern, layout, name)
        return torch.autograd.grad(y, (x, weight), gradient) if training else y

    large = pattern.rows * pattern.columns > LARGEST_DENSE
    names = [name for name, backend in BACKENDS.items() if not backend.accepts(x, weight, pattern, layout)]
    return {name: partial(task, name) for name in names if not (large and name == "dense")}


@lru_cache(maxsize=1)
def read_table() -> Table:
    """Read the table, once and again after `tune`, as the same object as long as it says the same."""
    return _parse_table(file())


def _parse_table(path: Path) -> Table:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, and this version of tamis reads {FORMAT}")
        table: Table = content["machines"]
        for of_machine in table.values():
            for entry in of_machine.values():
                if not (isinstance(entry["forward"], str) and isinstance(entry["training"], str)):
                    raise ValueError("an entry names no backend")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = str(error) if isinstance(error, (OSError, ValueError)) else f"it is not laid out as a table ({error!r})"
        warnings.warn(WARNING.format(file=path, error=said), stacklevel=2)
        return {}
    return table


def _write_entry(of_machine: str, key: str, tuned: Tuned) -> None:
    path = file()
    table = _parse_table(path)  # anew: others may have written meanwhile
    table.setdefault(of_machine, {})[key] = asdict(tuned)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as part:
        part.write_text(json.dumps({"format": FORMAT, "machines": table}, indent=1) + "\n", encoding="utf-8")
    read_table.cache_clear()
