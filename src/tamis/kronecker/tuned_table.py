"""The tuned table stores on disk which backend was measured to be the fastest on this machine.

It is the file kronecker.json in the folder that the environment variable TAMIS_CACHE names, or in ~/.cache/tamis. An
entry counts for one pattern, layout and dtype, for batches with the same next power of two, and only on the hardware,
with the number of threads and with the versions that it was measured with. While a network is compiled or exported, no
entry counts. `tamis.kronecker.tuning` measures.
"""

from __future__ import annotations

import json
import os
import platform
import warnings
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tamis import __version__
from tamis.artifact import replace_file
from tamis.kernels import dispatch, needs_gradient
from tamis.kronecker.pattern import Pattern

FORMAT = 1
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


def find_fastest(x: Tensor, weight: Tensor, pattern: Pattern, layout: str) -> str | None:
    """Return the backend that was measured as the fastest for this product, or None without a measurement."""
    measured = read_table()
    if not measured:
        return None
    batch = x.shape[0] if layout == "batch_first" else x.shape[1]
    entry = measured.get(machine(x.device), {}).get(make_entry_key(pattern, layout, x.dtype, batch))
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
    return _describe_machine(device.type, index, threads)


@lru_cache(maxsize=16)
def _describe_machine(kind: str, index: int | None, threads: int) -> str:
    versions = f"torch {torch.__version__}, tamis {__version__}"
    if kind == "cpu":
        kernel = "torch" if dispatch.native() is None else dispatch.kronecker_kernel()[0]
        return f"{_name_processor()}, {threads} threads, {kernel}, {versions}"
    name = torch.cuda.get_device_name(index) if kind == "cuda" else kind
    return f"{name}, {versions}, triton {_find_version('triton')}"


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _name_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def next_power_of_two(batch: int) -> int:
    """Return the least power of two that is at least a batch; all batches with the same one share an entry."""
    return 1 << max(batch - 1, 0).bit_length()


def make_entry_key(pattern: Pattern, layout: str, dtype: torch.dtype, batch: int) -> str:
    """Return an entry's name in the table."""
    return f"{pattern}, {layout}, {str(dtype).removeprefix('torch.')}, {next_power_of_two(batch)}"


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


def write_entry(of_machine: str, key: str, tuned: Tuned) -> None:
    """Add an entry to the table on disk, which is replaced as a whole."""
    path = file()
    table = _parse_table(path)  # anew: others may have written meanwhile
    table.setdefault(of_machine, {})[key] = asdict(tuned)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as part:
        part.write_text(json.dumps({"format": FORMAT, "machines": table}, indent=1) + "\n", encoding="utf-8")
    read_table.cache_clear()
