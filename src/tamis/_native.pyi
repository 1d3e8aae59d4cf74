"""CPU kernels of tamis, compiled from kernels/cpu/*.cpp. Reach them through `tamis.kernels.dispatch.native`."""

from typing import Any

from numpy.typing import NDArray

def cpu_features() -> dict[str, bool]:
    """Which instruction sets this processor and operating system can run, by name."""

def expand(values: NDArray[Any], mask: NDArray[Any], out: NDArray[Any]) -> None:
    """Write values where a mask is true, in order, and zeros elsewhere: rows of one type, and a row of booleans."""

def feedback(
    start: NDArray[Any],
    target: NDArray[Any],
    coupling: NDArray[Any],
    scales: NDArray[Any],
    levels: NDArray[Any],
    middles: NDArray[Any],
    dtype: str,
    indices: NDArray[Any],
    errors: NDArray[Any],
    keep: NDArray[Any] | None = None,
) -> None:
    """Write the levels that a block of at most 64 features is rounded to, and what each rounding leaves.

    All in float64 but the indices, in int32: start, target, indices, errors (problems, features, neurons), coupling
    (problems, features, features), scales (problems, neurons), and rows of levels and of the middles between them.
    Where keep, booleans of the shape of start, is false, the value is zero whatever the levels, and the index is 0.
    """
