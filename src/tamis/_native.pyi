"""CPU kernels of tamis, compiled from kernels/cpu/*.cpp. Reach them through `tamis.kernels.dispatch.native`."""

from collections.abc import Sequence
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

def count_bytes(row: NDArray[Any], counts: NDArray[Any]) -> None:
    """Add to 256 counts, in uint64, how often each byte occurs in a row of bytes."""

def pack_digits(digits: NDArray[Any], base: int, group: int, out: NDArray[Any]) -> None:
    """Write digits, bytes below a base of 2, 3, 4 or 16, as a byte for each group of 8, 5, 4 or 2, the first lowest."""

def join_bytes(lower: NDArray[Any], top: NDArray[Any], out: NDArray[Any]) -> None:
    """Write numbers of 2, 4 or 8 bytes, (numbers, bytes), of rows of all their bytes but the highest, and of those.

    The bytes of each row stand side by side; the rows, (bytes - 1, numbers), may stand anywhere.
    """

def ans_compress(symbols: NDArray[Any], frequencies: NDArray[Any], words: NDArray[Any]) -> int:
    """Write the words of a row of symbols, and return their number.

    Symbols are uint8 or int32; their frequencies, which sum to 2²⁴, and the words are uint32.
    """

def ans_decompress(words: NDArray[Any], frequencies: NDArray[Any], symbols: NDArray[Any]) -> bool:
    """Write the symbols of a row of words, and return whether the words are those of so many symbols."""

def ans_decompress_digits(
    words: NDArray[Any], frequencies: NDArray[Any], lookup: NDArray[Any], digits: NDArray[Any]
) -> bool:
    """Likewise the digits that symbols stand for, as `lookup` has them, (symbols, digits of each), in bytes."""

def project_l1(
    weights: NDArray[Any],
    biases: NDArray[Any] | None,
    radius: float,
    slack: float,
    out: NDArray[Any],
    out_biases: NDArray[Any] | None,
    thresholds: NDArray[Any],
    threads: int,
) -> None:
    """Write the projection of every column, (columns, entries) with a bias each, onto the ℓ1 ball of a radius.

    All in float32 or all in float64, but the thresholds, in float64: what was taken from every magnitude of a column, 0
    where it is left as it is, which it is up to a norm of radius (1 + slack), and not a number where the column holds
    what is not finite. The results may be written over what is read.
    """

def binary_kernels() -> list[str]:
    """The kernels of binary layers that this processor can run, the fastest first."""

class BinaryLayer:
    """A binary convolution of one shape; raises ValueError where it cannot be run. Pairs are (vertical, horizontal).

    Lengths are numbers of entries, 0 where there are none: x (float32), thresholds (float32) and flips (bool), or bits
    (64-bit words); weights (64-bit words); alpha, full, beta, gamma (float32); out (float32), or out_bits (64-bit
    words) with thresholds and flips; and what follows where numbers come out, a bias, a slope and a shift of each
    channel and numbers to add (float32): value + bias, · slope + shift in one rounding or in two, + added, no less than
    0 with `relu`.
    """

    def __init__(
        self,
        kernel: str,
        outputs: int,
        channels: int,
        groups: int,
        size: Sequence[int],
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        batch: int,
        out_groups: int,
        lengths: Sequence[int],
        one_rounding: bool,
        relu: bool,
    ) -> None: ...
    def run(self, threads: int, addresses: Sequence[int], /) -> None:
        """Run the convolution on the addresses of contiguous memory of these lengths, in their order; 0 for none."""

class BoundLayer:
    """A binary convolution with the addresses of all but its input, its result, and what is added, which are 0."""

    def __init__(self, layer: BinaryLayer, addresses: Sequence[int]) -> None: ...
    def run(self, threads: int, input: int, result: int, added: int, /) -> None:
        """Run the convolution on these addresses, and on those that stay."""

def binary_pack(
    kernel: str, threads: int, shape: Sequence[int], groups: int, x: int, thresholds: int, flips: int, bits: int
) -> None:
    """Write the bits of float32 numbers of a shape (images, channels, pixels), packed for a layer of so many groups.

    Memory is contiguous and given by its address.
    """

def kronecker_kernels() -> list[str]:
    """The kernels of Kronecker-sparse products that this processor can run, the fastest first."""

def kronecker_multiply(
    kernel: str,
    threads: int,
    pattern: Sequence[int],
    batch: int,
    batch_last: bool,
    transposed: bool,
    x: int,
    x_row: int,
    weight: int,
    y: int,
) -> None:
    """Write y = x Kᵀ, or x K for the transposed matrix, for a pattern (a, b, c, d) and a batch of at least 1.

    Memory is given by its address: x (batch, inputs), or (inputs, batch) in the layout batch last, with rows `x_row`
    numbers apart; the weight (a, b, c, d) and y contiguous.
    """

def kronecker_weight_gradient(
    kernel: str,
    threads: int,
    pattern: Sequence[int],
    batch: int,
    batch_last: bool,
    x: int,
    x_row: int,
    y: int,
    y_row: int,
    weight: int,
) -> None:
    """Write the gradient (a, b, c, d) of `kronecker_multiply` in the weight, from x and the gradient in y.

    The result is the same for any number of threads.
    """

def affine(
    planes: NDArray[Any],
    slope: NDArray[Any],
    shift: NDArray[Any],
    out: NDArray[Any],
    threads: int,
    one_rounding: bool,
) -> None:
    """Write x · slope + shift for planes, (planes, entries) in float32, in one rounding or in two.

    Planes are of channels 0, 1, … again and again, each with its slope and shift. The result is other memory.
    """

def max_pool(
    planes: NDArray[Any],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    out: NDArray[Any],
    threads: int,
    slope: NDArray[Any] | None = None,
    shift: NDArray[Any] | None = None,
    one_rounding: bool = False,
    relu: bool = False,
) -> None:
    """Write the largest entry of each window of planes, (planes, rows, columns) in float32; what is no number wins.

    Before that, entries become x · slope + shift of their channel, in one rounding or in two, and no less than 0 with
    `relu`; planes are of channels 0, 1, … again and again.
    """
