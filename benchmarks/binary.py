"""How long binary 3 × 3 convolutions take, float32 in and out with the scale, beside what else runs them on a CPU.

    python benchmarks/binary.py [--store] [--rounds 300]

Floors, for each of the three layers (64 channels of 56², 256 of 14², 512 of 7²; 115.6 M products each):

Arithmetic. With AVX-512 on a processor that runs two 512-bit operations a cycle and one vpopcntq, a row of 512 products
takes an xor, a popcount and an addition: 1.5 cycles, 341 products a cycle. Three rows at once (cpu/binary.h) take three
xors, one ternary operation, two popcounts and two additions: 4 cycles, 384 a cycle. At 3.7 GHz that is 81 µs, and with
AVX2, where 21 operations at four a cycle count three rows of 256, 146 products a cycle and 214 µs.

With 64 channels a number comes of nine rows alone, so that what becomes of counts weighs more: with AVX-512 sixteen
numbers take 51 operations, 44 of them to count, which are 86 µs for all. With AVX2 nine rows are added up bit by bit
before they are looked up: 58 operations, 159 products a cycle and 197 µs, and some 215 with what becomes of counts.

Bytes. Inputs are read and outputs written once: 1.6 MB, 0.4 MB and 0.2 MB an image; weights are 5 kB, 74 kB and 295 kB.
At 20 GB/s 64 channels of 56² take 80 µs an image where no cache holds them (a batch of 16 is 26 MB), so that reading
ahead while computing matters there, and nothing at the other sizes.

A float32 convolution has 16 products to an operation, two operations a cycle: 32, a twelfth of 384. More than some 20 ×
over what PyTorch reaches is not to be had.

Peers: PyTorch in float32; PyTorch in int8, from quantized inputs to quantized outputs; OpenVINO's BinaryConvolution, if
it is installed, float32 in and out without a scale. Seconds are wall-clock, the best of rounds in which peers take
turns.

A whole network, too: ResNet-18 for one image of 224², in float32 beside what `tamis.binary.binarize` and `compile` make
of it. Its first and last layer, 7 % of its products, stay in float32: they alone take some 2.3 of 46 ms with one
thread, which makes 20 × the most that there is to be had. Batch normalizations, sums and ReLU stay in float32, too, in
the passes of the binary layers before them, or in their thresholds.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measure import best_seconds, store
from torch import Tensor, nn

from tamis.binary import BinaryConv2d, binarize, compile
from tamis.kernels import binary, dispatch
from tamis.training.models import resnet18

LAYERS = ((64, 56), (256, 14), (512, 7))
BATCHES = (1, 16)
THREADS = (1, 2)
GOALS = {"tamis": 15, "tamis, avx2": 5}  # times faster than float32
NETWORK_GOAL = 6


def int8(x: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """PyTorch's quantized convolution."""
    inputs = torch.quantize_per_tensor(x, 0.05, 128, torch.quint8)
    weights = torch.quantize_per_tensor(weight, 0.05, 0, torch.qint8)
    packed = torch.ops.quantized.conv2d_prepack(weights, None, [1, 1], [1, 1], [1, 1], 1)
    return lambda: torch.ops.quantized.conv2d(inputs, packed, 0.5, 128)


def openvino(x: Tensor, weight: Tensor, threads: int) -> Callable[[], Any]:
    """OpenVINO's binary convolution."""
    import openvino as ov
    from openvino import opset1 as op

    source = op.parameter(list(x.shape), np.float32)
    zero = op.constant(np.zeros((1, x.shape[1], 1, 1), np.float32))
    ends = [op.constant(np.full((1, 1, 1, 1), end, np.float32)) for end in (-1, 1)]
    signs = op.fake_quantize(source, zero, zero, *ends, 2)
    bits = np.packbits((weight >= 0).numpy().reshape(-1))
    filters = ov.op.Constant(ov.Tensor(bits, ov.Shape(list(weight.shape)), ov.Type.u1))
    result = op.binary_convolution(signs, filters, [1, 1], [1, 1], [1, 1], [1, 1], "xnor-popcount", 0.0)
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = ov.Core().compile_model(ov.Model([result], [source]), "CPU", options).create_infer_request()
    request.set_input_tensor(ov.Tensor(x.numpy(), shared_memory=True))
    request.infer()
    return request.infer


def tamis(x: Tensor, weight: Tensor, kernel: str) -> Callable[[], Tensor]:
    """A compiled layer with a scale for each output channel, in one kernel."""
    layer = BinaryConv2d(x.shape[1], len(weight), 3, padding=1, scale="channel").eval()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.alpha.uniform_(0.5, 1.5)
    compiled = compile(layer)

    def run() -> Tensor:
        binary.kernel_name = named
        result: Tensor = compiled(x)
        return result

    def named() -> str:
        return kernel

    with torch.no_grad():
        assert torch.equal(run()[:1], layer(x[:1])), "the kernel and PyTorch differ"
    return run


def measure(channels: int, size: int, batch: int, threads: int, rounds: int) -> dict[str, float]:
    """Seconds of every peer for one layer."""
    torch.set_num_threads(threads)
    x, weight = torch.randn(batch, channels, size, size), torch.randn(channels, channels, 3, 3)
    names = {"tamis": dispatch.binary_kernel()[0], "tamis, avx2": "avx2"}
    tasks: dict[str, Callable[[], Any]] = {
        "float32 (torch)": lambda: nn.functional.conv2d(x, weight, padding=1),
        "int8 (torch)": int8(x, weight),
        **{name: tamis(x, weight, kernel) for name, kernel in names.items()},
    }
    if importlib.util.find_spec("openvino"):
        tasks["OpenVINO"] = openvino(x, weight, threads)
    seconds = dict.fromkeys(tasks, float("inf"))
    for _ in range(max(3, rounds // batch)):
        for name, task in tasks.items():
            task()  # brings its threads and its data back
            seconds[name] = min(seconds[name], best_seconds({name: task}, 3)[name])
    return seconds


def measure_network(threads: int, rounds: int) -> dict[str, float]:
    """Seconds of ResNet-18 for one image, as it is and as a compiled binary network."""
    torch.set_num_threads(threads)
    x, model = torch.randn(1, 3, 224, 224), resnet18().eval()
    trained = binarize(model, example=x, scale="channel").eval()
    compiled = compile(trained)
    with torch.inference_mode():
        assert torch.equal(compiled(x), trained(x)), "the compiled network and the binary one differ"
        return best_seconds({"float32 (torch)": lambda: model(x), "tamis": lambda: compiled(x)}, rounds)


def report_networks(figures: dict[str, dict[str, float]]) -> None:
    """A table in milliseconds, with the goal."""
    for title, row in figures.items():
        ratio = row["float32 (torch)"] / row["tamis"]
        print(f"{title:44s}" + "".join(f"{name:>17s}{1e3 * seconds:8.1f} ms" for name, seconds in row.items()), end="")
        print(f"   {ratio:5.1f} ×   {'met' if ratio >= NETWORK_GOAL else 'MISSED'}")


def report(figures: dict[str, dict[str, float]]) -> None:
    """A table in microseconds, with the goals."""
    names = list(next(iter(figures.values())))
    print(f"{'':44s}" + "".join(f"{name:>17s}" for name in names) + "   × float32, avx2")
    for title, row in figures.items():
        ratios = {name: row["float32 (torch)"] / row[name] for name in GOALS}
        missed = [name for name, goal in GOALS.items() if ratios[name] < goal]
        if row["tamis"] > row.get("OpenVINO", float("inf")):
            missed.append("OpenVINO")
        verdict = f"MISSED: {', '.join(missed)}" if missed else "met"
        print(f"{title:44s}" + "".join(f"{1e6 * row[name]:14.0f} µs" for name in names), end="")
        print(f"   {ratios['tamis']:5.1f}, {ratios['tamis, avx2']:4.1f}   {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--store", action="store_true", help="write docs/results/binary_speed.json")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(dispatch.binary_kernel()[1])
    networks = {}
    for threads in THREADS:
        title = f"ResNet-18, 224², batch 1, {threads} thread{'s' * (threads > 1)}"
        networks[title] = measure_network(threads, max(3, arguments.rounds // 3))
    figures = {
        f"{channels} channels, {size}², batch {batch}, {threads} thread{'s' * (threads > 1)}": measure(
            channels, size, batch, threads, arguments.rounds
        )
        for batch in BATCHES
        for threads in THREADS
        for channels, size in LAYERS
    }
    report(figures)
    print()
    report_networks(networks)
    if arguments.store:
        print(f"\nstored in {store('binary_speed', figures | networks)}")


if __name__ == "__main__":
    main()
