"""Whether the kernels for GPUs give what their references give, and how long they take, beside cuDNN's convolutions.

    python benchmarks/gpu_kernels.py [--store]

Binary 3 × 3 convolutions, float32 in and out with a scale for each channel, of 64 channels of 56², 256 of 14² and 512
of 7²: 115.6 M products an image each. Floors, for an H200 (132 multiprocessors, 1.7 GHz, 4.3 TB/s):

Arithmetic. Nine rows of 32 bits take 19 logical operations, 4 popcounts and 4 additions. A multiprocessor issues 128
operations a cycle, of which 16 can be popcounts: 16 · 9 / 4 rows, 1152 products a cycle, 258 T products a second; 29 µs
for 64 images. Tensor cores multiply 495 T float16 numbers a second.

Bytes. Inputs are read and outputs written once: 103 MB, 26 MB and 13 MB for 64 images, 24, 6 and 3 µs. Bits are 1/32.

The projection reads its columns and writes as many numbers: 34 MB for 1024 of 4096 float32, 103 MB for 512 of 25 088, 8
and 24 µs.

"call" is the time from one call to the next, "device" the same calls in a CUDA graph, which waits for no Python.
Seconds are by CUDA events, the best of rounds in which peers take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import store
from torch import Tensor, nn

from tamis.kernels import Geometry
from tamis.kernels import binary_reference as reference
from tamis.kernels.triton import binary_conv, l1ball
from tamis.l1inf import project
from tamis.l1inf.projection import slack

LAYERS = ((64, 56), (256, 14), (512, 7))
BATCHES = (1, 64)
COLUMNS = ((1024, 4096, 0.1), (1024, 4096, 10.0), (512, 25088, 0.1), (512, 25088, 10.0))
CALLS = 20  # in one measurement
ROUNDS = 10
# Batch, channels and outputs of a group, sizes, kernel, stride, padding, dilation, groups.
GEOMETRIES = (
    (2, 64, 64, (56, 56), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (3, 130, 70, (13, 17), (3, 3), (2, 2), (1, 1), (1, 1), 1),
    (1, 3, 20, (31, 30), (5, 2), (2, 3), (2, 0), (1, 1), 1),
    (2, 20, 12, (17, 18), (3, 3), (1, 1), (3, 4), (2, 3), 1),
    (1, 65, 5, (9, 9), (2, 2), (2, 1), (0, 0), (1, 1), 3),
    (2, 1, 1, (15, 16), (3, 3), (1, 1), (1, 1), (1, 1), 32),
    (300, 1000, 130, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (1, 2, 3, (2, 2), (1, 1), (2, 2), (3, 2), (1, 1), 1),
)
FORMS = ("alpha", "full", "alpha beta", "rank one")


def check_binary(number: int) -> None:
    """One geometry against PyTorch, to the bit, from floats to floats and to bits."""
    batch, channels, outputs, size, kernel, stride, padding, dilation, groups = GEOMETRIES[number]
    x = torch.randn(batch, channels * groups, *size, device="cuda")
    thresholds, flips = (
        torch.randn(channels * groups, device="cuda"),
        torch.rand(channels * groups, device="cuda") < 0.5,
    )
    weight = torch.randn(outputs * groups, channels, *kernel, device="cuda")
    bits, packed = reference.pack_bits(x, thresholds, flips, groups), reference.pack_weight(weight, groups)
    assert torch.equal(binary_conv.pack_bits(x, thresholds, flips, groups), bits), GEOMETRIES[number]
    height, width = nn.functional.conv2d(
        x[:1], weight, None, stride=stride, padding=padding, dilation=dilation, groups=groups
    ).shape[2:]
    shapes: dict[str, list[tuple[int, ...]]] = {
        "alpha": [(len(weight),)],
        "full": [(len(weight), height, width)],
        "alpha beta": [(len(weight),), (height, width)],
        "rank one": [(len(weight),), (height,), (width,)],
    }
    scales = [torch.randn(shape, device="cuda") for shape in shapes[FORMS[number % len(FORMS)]]]
    geometry = Geometry(tuple(weight.shape), stride, padding, dilation)
    wanted = reference.conv2d(bits, packed, scales, geometry)
    found = binary_conv.conv2d(bits, packed, scales, geometry)
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32)), GEOMETRIES[number]
    tau, f = torch.randn(len(weight), device="cuda"), torch.rand(len(weight), device="cuda") < 0.5
    to_bits = binary_conv.conv2d(bits, packed, scales, geometry, tau, f)
    assert torch.equal(to_bits, reference.pack_bits(wanted, tau, f, 1)), GEOMETRIES[number]


def check_projection(columns: int, entries: int, dtype: torch.dtype, c: float) -> None:
    """Columns of every scale against the CPU, and against themselves, to the bit."""
    rows = torch.randn(columns, entries, dtype=torch.float64)
    rows *= torch.logspace(-9, 9, columns, dtype=torch.float64)[:, None]
    weight, bias = rows.to(dtype), rows[:, 0].to(dtype)
    wanted, wanted_bias = project(weight, c, bias)
    found, found_bias = project(weight.cuda(), c, bias.cuda())
    allowed = 4 * slack(weight, bias) * c
    assert float((found.cpu() - wanted).abs().max()) <= allowed, (columns, entries, dtype, c)
    assert float((found_bias.cpu() - wanted_bias).abs().max()) <= allowed, (columns, entries, dtype, c)
    again, again_bias = project(found, c, found_bias)
    assert torch.equal(again, found) and torch.equal(again_bias, found_bias), (columns, entries, dtype, c)


def repeated(task: Callable[[], Any]) -> Callable[[], None]:
    def all_calls() -> None:
        for _ in range(CALLS):
            task()

    return all_calls


def in_graph(task: Callable[[], Any]) -> Callable[[], None]:
    """So many calls of a task, recorded once."""
    task()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeated(task)()
    return graph.replay


def best_seconds(tasks: dict[str, Callable[[], Any]]) -> dict[str, dict[str, float]]:
    """Seconds of one call of each task, "call" and "device"."""
    forms = {name: {"call": repeated(task), "device": in_graph(task)} for name, task in tasks.items()}
    best = {name: dict.fromkeys(ways, float("inf")) for name, ways in forms.items()}
    for _ in range(ROUNDS):
        for name, ways in forms.items():
            for way, calls in ways.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                start.record()
                calls()
                end.record()
                end.synchronize()
                best[name][way] = min(best[name][way], start.elapsed_time(end) / 1000 / CALLS)
    return best


def conv_in(x: Tensor, weight: Tensor, dtype: torch.dtype, tf32: bool = False) -> Callable[[], Tensor]:
    """cuDNN's convolution, of the memory format that it is fastest in."""
    x, weight = (tensor.to(dtype, memory_format=torch.channels_last) for tensor in (x, weight))

    def call() -> Tensor:
        torch.backends.cudnn.allow_tf32 = tf32
        return nn.functional.conv2d(x, weight, padding=1)

    return call


def measure_binary(channels: int, size: int, batch: int) -> dict[str, dict[str, float]]:
    """Seconds by peer."""
    x = torch.randn(batch, channels, size, size, device="cuda")
    weight = torch.randn(channels, channels, 3, 3, device="cuda")
    thresholds, flips = torch.zeros(channels, device="cuda"), torch.zeros(channels, dtype=torch.bool, device="cuda")
    scales, packed = [torch.rand(channels, device="cuda")], reference.pack_weight(weight, 1)
    bits = binary_conv.pack_bits(x, thresholds, flips, 1)
    geometry = Geometry(tuple(weight.shape), (1, 1), (1, 1), (1, 1))
    tasks = {
        "float32 (cuDNN)": conv_in(x, weight, torch.float32),
        "tf32 (cuDNN)": conv_in(x, weight, torch.float32, tf32=True),
        "float16 (cuDNN)": conv_in(x, weight, torch.float16),
        "tamis": lambda: binary_conv.conv2d(binary_conv.pack_bits(x, thresholds, flips, 1), packed, scales, geometry),
        "tamis, packing alone": lambda: binary_conv.pack_bits(x, thresholds, flips, 1),
        "tamis, from bits": lambda: binary_conv.conv2d(bits, packed, scales, geometry),
        "tamis, from bits to bits": lambda: binary_conv.conv2d(bits, packed, scales, geometry, thresholds, flips),
    }
    return best_seconds(tasks)


def measure_projection(columns: int, entries: int, c: float) -> dict[str, dict[str, float]]:
    """Seconds of the kernel, and of a copy."""
    rows = 0.02 * torch.randn(columns, entries, device="cuda")
    out, bound = torch.empty_like(rows), slack(rows, None)
    tasks = {
        "copy": lambda: out.copy_(rows),
        "tamis": lambda: l1ball.project_l1(rows, None, c, bound, out, None),
    }
    return best_seconds(tasks)


def report(figures: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    """One table for each kernel, in microseconds."""
    for kernel, rows in figures.items():
        print(f"{kernel}, µs{'':24s}{'call':>10s}{'device':>10s}")
        for name, peers in rows.items():
            print(f"  {name}")
            for peer, seconds in peers.items():
                print(f"    {peer:30s}{1e6 * seconds['call']:10.1f}{1e6 * seconds['device']:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/gpu_kernels.json")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU here: these kernels run on none else")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True  # cuDNN looks for its fastest way
    for number in range(len(GEOMETRIES)):
        check_binary(number)
    for entries in (1, 3, 1000, 4097, 25088, 40_000):
        for dtype in (torch.float32, torch.float64):
            for c in (1e-6, 0.5, 1e6):
                check_projection(7, entries, dtype, c)
    print("both kernels give what their references give")
    figures = {
        "binary 3 × 3 convolution": {
            f"{channels} channels of {size}², batch {batch}": measure_binary(channels, size, batch)
            for channels, size in LAYERS
            for batch in BATCHES
        },
        "projection onto the ℓ1 ball": {
            f"{columns} columns of {entries}, c = {c:g}": measure_projection(columns, entries, c)
            for columns, entries, c in COLUMNS
        },
    }
    report(figures)
    if arguments.store:
        print(f"\nstored in {store('gpu_kernels', figures)}")


if __name__ == "__main__":
    main()
