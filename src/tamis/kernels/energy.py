"""The energy of a computation, in joules, is read from the counters that GPUs and processors keep.

On a GPU it is the driver's counter of the whole board since it was loaded, read from the library that comes with the
driver. On a CPU it is RAPL, as Linux shows it under /sys/class/powercap: all packages, with their memory where that is
counted apart. Both count what is drawn at rest, too, and what others run meanwhile. Counters move in steps of up to a
tenth of a second, so that a run is repeated until it is long beside that.

Where there is no counter, or no right to read it, the answer is None with the reason, never an estimate.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tamis.errors import InvalidInput

POWERCAP = Path("/sys/class/powercap")
SECONDS = 1.0  # that a measured run takes at least, unless said otherwise: ten steps of the slowest counter
NVML = "libnvidia-ml.so.1"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Energy:
    """An `Energy` is what one run of a computation draws.

    Attributes:
        joules: of one run, the device's rest among it; None where nothing could be measured.
        reason: what was read, or why nothing was.
        repeats: how many runs the number is the mean of; 0 where nothing was measured.
        seconds: of all of them together.
    """

    joules: float | None
    reason: str
    repeats: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{NOT_MEASURED} ({self.reason})" if self.joules is None else f"{self.joules:.3g} J"


class Counter(Protocol):
    """A counter gives the joules since some moment in the past."""

    name: str

    def __call__(self) -> float: ...


def measure_energy(
    run: Callable[[], Any], device: str = "cpu", seconds: float = SECONDS, counter: Counter | None = None
) -> Energy:
    """Measure the energy of one call of `run`, as the mean of enough calls to last at least `seconds`.

    Args:
        run: what is measured; called some times more, to begin with and to see how long it takes.
        device: "cpu", or "cuda", "cuda:1" for the board that it runs on.
        seconds: of the measured run.
        counter: another than the device's own.

    Example:
        >>> x = torch.randn(64, 64)
        >>> energy = measure_energy(lambda: x @ x.T, "cpu", seconds=0.01)
        >>> energy.joules is None or energy.joules > 0  # None where there is no counter: `energy.reason` says why
        True
    """
    if seconds <= 0:
        raise InvalidInput(f"a measured run takes some time: seconds must be > 0, got {seconds:g}")
    found = counter if counter is not None else find_counter(device)
    if isinstance(found, str):
        return Energy(None, found)
    wait = _make_synchronizer(device)
    _time_calls(run, 1, wait)  # what is compiled at first does not count
    took, calls = 0.0, 1
    while took < seconds / 8:  # how many calls it will take
        calls = calls if took == 0 else max(2 * calls, int(calls * seconds / 8 / max(took, 1e-6)))
        took = _time_calls(run, calls, wait)
    repeats = math.ceil(calls * seconds / took)
    try:
        before = found()
        lasted = _time_calls(run, repeats, wait)
        joules = found() - before
    except OSError as error:
        return Energy(None, f"{found.name} could not be read: {error}")
    if joules <= 0:
        return Energy(None, f"{found.name} did not move in {lasted:.2f} s")
    return Energy(joules / repeats, found.name, repeats, lasted)


def find_counter(device: str) -> Counter | str:
    """Return the counter of a device, or the reason why there is none."""
    kind, _, index = device.partition(":")
    if kind == "cuda":
        return _find_gpu_counter(int(index or 0))
    if kind == "cpu":
        return _find_cpu_counter()
    raise InvalidInput(f"energy is measured on cpu or cuda, got '{device}'")


def _time_calls(run: Callable[[], Any], calls: int, wait: Callable[[], None]) -> float:
    wait()
    began = time.perf_counter()
    for _ in range(calls):
        run()
    wait()
    return time.perf_counter() - began


def _make_synchronizer(device: str) -> Callable[[], None]:
    """Return a function that waits until the device has finished all its work."""
    if not device.startswith("cuda"):
        return lambda: None
    import torch

    return lambda: torch.cuda.synchronize(device)


# -- processors --------------------------------------------------------------------------------------------------------


class _Zone:
    """A zone is one of RAPL's counters, in microjoules, which wraps around to 0."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text())
        self._last = int(self._file.read_text())
        self._turns = 0

    def __call__(self) -> float:
        now = int(self._file.read_text())
        self._turns += now < self._last  # it wraps around within minutes under load
        self._last = now
        return (now + self._turns * self._range) / 1e6


class _Sum:
    def __init__(self, name: str, zones: list[_Zone]) -> None:
        self.name, self._zones = name, zones

    def __call__(self) -> float:
        return sum(zone() for zone in self._zones)


def _find_cpu_counter(root: Path | None = None) -> Counter | str:
    """Return the counter of all processor packages, with the memory that a package counts separately."""
    root = root or POWERCAP
    folders = [folder for folder in sorted(root.glob("*rapl:*")) if _read_kind(folder) in ("package", "dram")]
    if not folders:
        return f"no counter of a processor under {root}"
    try:
        zones = [_Zone(folder) for folder in folders]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"the counters under {root} cannot be read: {reason.lower()}"
    return _Sum(f"RAPL, {', '.join(_name(folder) for folder in folders)}", zones)


def _name(folder: Path) -> str:
    try:
        return (folder / "name").read_text().strip()
    except OSError:
        return ""


def _read_kind(folder: Path) -> str:
    return _name(folder).partition("-")[0]


# -- GPUs --------------------------------------------------------------------------------------------------------------


class _Board:
    """A board is the counter of one GPU board, in millijoules."""

    def __init__(self, library: Any, handle: ctypes.c_void_p, name: str) -> None:
        self.name, self._library, self._handle = name, library, handle

    def __call__(self) -> float:
        value = ctypes.c_ulonglong()
        code = self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(value))
        if code:
            raise OSError(f"error {code} of NVML")
        return value.value / 1e3


def _find_gpu_counter(index: int) -> Counter | str:
    """Return the counter of the board with this number in torch, or the reason why there is none."""
    import torch

    if index >= torch.cuda.device_count():
        return f"torch finds {torch.cuda.device_count()} CUDA devices here"
    try:
        library = ctypes.CDLL(NVML)
    except OSError:
        return f"the driver's library {NVML} is not here"
    if code := library.nvmlInit_v2():
        return f"NVML does not begin: error {code}"
    # By identity and not by number: torch and the driver may count boards in different orders.
    properties = torch.cuda.get_device_properties(index)
    identity, handle = f"GPU-{properties.uuid}", ctypes.c_void_p()
    if code := library.nvmlDeviceGetHandleByUUID(identity.encode(), ctypes.byref(handle)):
        return f"NVML does not know {properties.name}, {identity}: error {code}"
    board = _Board(library, handle, f"NVML, {properties.name}")
    try:
        board()
    except OSError as error:
        return f"{properties.name} has no counter of energy: {error}"
    return board
