"""CPU kernels of tamis, compiled from kernels/cpu/*.cpp. Reach them through `tamis.kernels.dispatch.native`."""

from typing import Any

from numpy.typing import NDArray

def cpu_features() -> dict[str, bool]:
    """Which instruction sets this processor and operating system can run, by name."""

def expand(values: NDArray[Any], mask: NDArray[Any], out: NDArray[Any]) -> None:
    """Write values where a mask is true, in order, and zeros elsewhere: rows of one type, and a row of booleans."""
