"""What tamis and other tools leave of a published network, without training: accuracy, bytes, seconds, memory.

    python benchmarks/peers.py [--store] [--only TEXT] [--folder out/peers]

The published ResNet-20 and ResNet-32 for CIFAR-10 are quantized to 8 bits, 4 bits and three levels, or 50, 80 and 90%
of their weights are pruned, by every tool that is installed:

    pip install -c constraints.txt torchao nncf openvino torch-pruning
    pip install --no-deps brevitas==0.13.4 dependencies==2.0.1 unfoldNd onnxoptimizer

A tool that is not installed has a row that says so. Calibration data, for all who use any, are the first 1,000 training
images; for ResNet-32, which has fewer rows, the first 250, as Brevitas goes through them once or twice for each layer.
Accuracy is top-1 on the 10,000 test images; of tamis and OpenVINO, that of the file, read again.

Each row is measured in a process of its own, whose imports are done before the clock starts. Seconds run from the
module in memory to the file on disk, what a tool needs for itself (tracing, conversion) included: CPU seconds of all
threads of the process, and wall-clock seconds. torch has one thread; OpenVINO, which NNCF calibrates with, takes its
own. Peak memory is that of the whole process until the file is written, and beside it how much more that is than the
process held before. Bytes are those of what the tool saves, as it is and after gzip -9.

--folder keeps every finished row, so that the same command goes on after a kill; --only measures the rows whose name
contains a text. --store writes docs/results/peers.json and the tables of docs/peers.md.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import gzip
import importlib
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from measure import store
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import tamis
from tamis.artifact import replace_file
from tamis.training import load_data
from tamis.training.models import resnet20, resnet32

NETWORKS = {"resnet20": resnet20, "resnet32": resnet32}
FOLDER = Path(__file__).parents[1].parent / "shared" / "models"
CALIBRATION = {"resnet20": "cifar10:train[:1000]", "resnet32": "cifar10:train[:250]"}
TEST, BATCH = "cifar10:test", 100
PAGE = Path(__file__).parents[1] / "docs" / "peers.md"
HEADINGS = {"resnet20": "## ResNet-20\n", "resnet32": "## ResNet-32\n"}
PACKAGES = ("brevitas", "torchao", "nncf", "openvino", "torch-pruning")


class Task(NamedTuple):
    """A network to compress, data to calibrate with, and a folder for the file."""

    model: nn.Module
    images: Tensor
    folder: Path

    def save(self, state: dict[str, Any]) -> None:
        torch.save(state, self.folder / "state.pt")


Answers = Callable[[Tensor], Tensor]


# -- tamis -------------------------------------------------------------------------------------------------------------


def by_tamis(task: Task, make: Callable[[tamis.Network, Tensor], tamis.Compressed]) -> Answers:
    """What any call of tamis makes of the network, saved and loaded."""
    small = make(tamis.trace(task.model, task.images[:1]), task.images)
    small.save(task.folder / "small.tamis")
    return tamis.load(task.folder / "small.tamis", task.model).apply_to(task.model)


def tamis_levels(task: Task, method: Any, levels: int) -> Answers:
    return by_tamis(task, lambda net, x: tamis.quantize(net, x, levels=levels, method=method, progress=False))


def tamis_pruned(task: Task, by: Any, amount: float) -> Answers:
    return by_tamis(task, lambda net, _: tamis.prune(net, amount, by=by))


def tamis_repaired(task: Task, by: Any, amount: float) -> Answers:
    return by_tamis(task, lambda net, x: tamis.repair(net, tamis.prune(net, amount, by=by), x, progress=False))


def tamis_surgeon(task: Task, amount: float) -> Answers:
    return by_tamis(task, lambda net, x: tamis.prune(net, amount, by="obs", calibration=x, progress=False))


# -- torch and torchao -------------------------------------------------------------------------------------------------


def layers(model: nn.Module) -> list[nn.Module]:
    """What every tool here prunes or quantizes: all weights but those of batch-norms."""
    return [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]


def floats(task: Task) -> Answers:
    """The network as it is."""
    task.save(task.model.state_dict())
    return task.model


def torch_magnitude(task: Task, amount: float) -> Answers:
    weights = [(layer, "weight") for layer in layers(task.model)]
    torch_prune.global_unstructured(weights, torch_prune.L1Unstructured, amount=amount)
    for layer, name in weights:
        torch_prune.remove(layer, name)
    task.save(task.model.state_dict())
    return task.model


def torchao_weights(task: Task, bits: int) -> Answers:
    """2^bits levels, the largest weight of each output channel and place in the kernel on the outermost."""
    from torchao.quantization import IntxWeightOnlyConfig, quantize_

    config = IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"))
    quantize_(task.model, config, filter_fn=lambda module, _: isinstance(module, (nn.Conv2d, nn.Linear)))
    task.save(task.model.state_dict())
    return task.model


# -- NNCF and OpenVINO -------------------------------------------------------------------------------------------------


def by_openvino(task: Task, make: Callable[[Any], Any]) -> Answers:
    """What a call of NNCF makes of the network, saved as .xml and .bin, and read."""
    import openvino

    small = make(openvino.convert_model(task.model, example_input=task.images[:1]))
    openvino.save_model(small, task.folder / "small.xml")
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(task.folder / "small.xml", "CPU", options)
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])


def nncf_weights(task: Task) -> Answers:
    """Weights on 8 bits, a scale for each channel."""
    import nncf

    mode = nncf.CompressWeightsMode.INT8_SYM
    return by_openvino(task, lambda network: nncf.compress_weights(network, mode=mode))


def nncf_all(task: Task) -> Answers:
    """Weights and activations on 8 bits, with bias correction."""
    import nncf

    images = nncf.Dataset([image.numpy() for image in task.images.split(1)])
    return by_openvino(task, lambda network: nncf.quantize(network, images, subset_size=len(task.images)))


# -- Brevitas ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def brevitas_levels(task: Task, bits: int, method: str) -> Answers:
    """2^bits − 1 levels, a scale of least squared error for each channel, then the method and bias correction."""
    from brevitas import nn as brevitas_nn
    from brevitas.export import export_onnx_qcdq
    from brevitas.graph.calibrate import bias_correction_mode
    from brevitas.graph.gpfq import gpfq_mode
    from brevitas.graph.gptq import gptq_mode
    from brevitas.graph.qronos import Qronos
    from brevitas.graph.quantize import layerwise_quantize
    from brevitas.quant import Int8WeightPerChannelFloatMSE

    options = {"weight_quant": Int8WeightPerChannelFloatMSE.let(bit_width=bits), "return_quant_tensor": False}
    kinds = {nn.Conv2d: brevitas_nn.QuantConv2d, nn.Linear: brevitas_nn.QuantLinear}
    model = layerwise_quantize(task.model, {kind: (quantized, options) for kind, quantized in kinds.items()})
    model(task.images[:BATCH])  # finds the scales
    modes = {"GPFQ": gpfq_mode, "GPTQ": gptq_mode, "Qronos": partial(gpfq_mode, algorithm_impl=Qronos)}
    if method in modes:
        with modes[method](model, act_order=True) as algorithm:
            for _ in range(algorithm.num_layers):
                for batch in task.images.split(BATCH):
                    algorithm.model(batch)
                algorithm.update()
    with bias_correction_mode(model):
        for batch in task.images.split(BATCH):
            model(batch)
    export_onnx_qcdq(model, args=task.images[:1], export_path=str(task.folder / "small.onnx"), dynamo=False)
    return model


# -- Torch-Pruning -----------------------------------------------------------------------------------------------------


def torch_pruning_channels(task: Task, amount: float) -> Answers:
    """That share of the channels between the two convolutions of each block; the others meet a padded shortcut."""
    import torch_pruning

    within = [module.conv1 for module in task.model.modules() if hasattr(module, "shortcut")]
    pruner = torch_pruning.pruner.MagnitudePruner(
        task.model,
        task.images[:1],
        importance=torch_pruning.importance.MagnitudeImportance(p=2),
        pruning_ratio=amount,
        ignored_layers=[layer for layer in layers(task.model) if layer not in within],
    )
    pruner.step()
    task.save(task.model.state_dict())
    return task.model


# -- rows --------------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One way to compress; the modules that it needs are imported before it is measured."""

    group: str
    method: str
    run: Callable[[Task], Answers]
    modules: tuple[str, ...] = ()
    networks: tuple[str, ...] = ("resnet20", "resnet32")


OURS = ("torch.export", "tamis.quantize", "tamis.prune", "constriction")
AO = ("torchao.quantization",)
NNCF = ("nncf", "openvino")
BREVITAS = ("brevitas.graph.quantize", "brevitas.graph.qronos", "brevitas.graph.gptq", "brevitas.export", "onnx")
SMALL = ("resnet20",)  # rows that the larger network can do without: what they show, they show on the smaller one


def by_brevitas(group: str, method: str, bits: int, networks: tuple[str, ...] = tuple(NETWORKS)) -> Row:
    run = partial(brevitas_levels, bits=bits, method=method)
    return Row(group, f"Brevitas {method}", run, BREVITAS, networks)


def by_levels(group: str, method: str, levels: int, networks: tuple[str, ...] = tuple(NETWORKS)) -> Row:
    return Row(group, f"tamis {method}", partial(tamis_levels, method=method, levels=levels), OURS, networks)


def pruning(amount: float) -> list[Row]:
    group, networks = f"{amount:.0%} pruned", tuple(NETWORKS) if amount == 0.8 else SMALL
    return [
        Row(group, "torch.nn.utils.prune magnitude", partial(torch_magnitude, amount=amount), (), networks),
        Row(group, "Torch-Pruning channels", partial(torch_pruning_channels, amount=amount), ("torch_pruning",), SMALL),
        Row(group, "tamis magnitude", partial(tamis_pruned, by="magnitude", amount=amount), OURS, SMALL),
        Row(group, "tamis phi", partial(tamis_pruned, by="phi", amount=amount), OURS, SMALL),
        Row(group, "tamis magnitude, repaired", partial(tamis_repaired, by="magnitude", amount=amount), OURS, SMALL),
        Row(group, "tamis obs", partial(tamis_surgeon, amount=amount), OURS, networks),
    ]


ROWS = [
    Row("floats", "torch.save", floats),
    Row("8 bits", "torchao int8", partial(torchao_weights, bits=8), AO, SMALL),
    Row("8 bits", "NNCF int8, weights", nncf_weights, NNCF, SMALL),
    Row("8 bits", "NNCF int8, weights and activations", nncf_all, NNCF),
    by_levels("8 bits", "msq", 255, SMALL),
    by_levels("8 bits", "optq", 255),
    Row("4 bits", "torchao int4", partial(torchao_weights, bits=4), AO),
    by_brevitas("4 bits", "GPFQ", 4, SMALL),
    by_brevitas("4 bits", "GPTQ", 4, SMALL),
    by_levels("4 bits", "gpfq", 15, SMALL),
    by_levels("4 bits", "optq", 15),
    Row("3 levels", "torchao int2 (4 levels)", partial(torchao_weights, bits=2), AO, SMALL),
    by_brevitas("3 levels", "GPFQ", 2, SMALL),
    by_brevitas("3 levels", "GPTQ", 2),
    by_brevitas("3 levels", "Qronos", 2),
    by_levels("3 levels", "msq", 3, SMALL),
    by_levels("3 levels", "gpfq", 3, SMALL),
    by_levels("3 levels", "optq", 3),
    *pruning(0.5),
    *pruning(0.8),
    *pruning(0.9),
]


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(network: str, row: Row) -> dict[str, Any]:
    """The figures of one row; this process is its own."""
    torch.set_num_threads(1)
    for module in row.modules:
        importlib.import_module(module)
    model = NETWORKS[network]().eval()
    model.load_state_dict(load_file(FOLDER / f"{network}_cifar10.safetensors"))
    images = load_data(CALIBRATION[network]).normalised()
    with tempfile.TemporaryDirectory() as folder:
        held = reset_peak()
        cpu, wall = time.process_time(), time.perf_counter()
        answers = row.run(Task(model, images, Path(folder)))
        cpu, wall, peak = time.process_time() - cpu, time.perf_counter() - wall, resident("VmHWM")
        files = sorted(Path(folder).iterdir())
        sizes = {path.suffix: path.stat().st_size for path in files}
        gzipped = sum(len(gzip.compress(path.read_bytes(), 9)) for path in files)
        found = {"accuracy": accuracy(answers), "bytes": sum(sizes.values()), "files": sizes, "gzipped": gzipped}
    return found | {"CPU seconds": cpu, "seconds": wall, "peak memory": peak, "of it for the call": peak - held}


def reset_peak() -> int:
    """Bytes that the process holds, from which its peak counts from here on (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that was freed before would be used again, and not be counted
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def resident(field: str) -> int:
    """VmRSS or VmHWM in bytes. ru_maxrss would count what the parent process held when it started this one."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


@torch.no_grad()
def accuracy(answers: Answers) -> float:
    """Top-1 on the test images."""
    test = load_data(TEST)
    batches = zip(test.normalised().split(BATCH), test.labels.split(BATCH), strict=True)
    return sum(int((answers(x).argmax(1) == y).sum()) for x, y in batches) / len(test.labels)


def measured(network: str, row: Row) -> dict[str, Any]:
    """The figures of one row, from a process that measures it."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", network, str(ROWS.index(row))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1]
        return {"not measured": "not installed" if last.startswith("ModuleNotFoundError") else last}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def all_rows(folder: Path, only: str) -> list[dict[str, Any]]:
    """Every row of every network; those that the folder has are read, the others measured."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for network in NETWORKS:
        for row in ROWS:
            name = f"{network}, {row.group}, {row.method}"
            if only not in name or network not in row.networks:
                continue
            kept = folder / f"{name}.json"
            if not kept.exists():
                kept.write_text(json.dumps(measured(network, row)))
            figures = json.loads(kept.read_text())
            found.append({"network": network, "group": row.group, "method": row.method, **figures})
            print(table([found[-1]]), flush=True)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The rows of the table in docs/peers.md."""
    return "\n".join(f"| {' | '.join(cells(row))} |" for row in rows)


def cells(row: dict[str, Any]) -> list[str]:
    """A row as the page has it: KB and MB are 1,000 and 1,000,000 bytes."""
    name = [row["group"], row["method"]]
    if "not measured" in row:
        return [*name, row["not measured"], "", "", "", "", ""]
    sizes = [f"{row[size] / 1000:,.1f}" for size in ("bytes", "gzipped")]
    seconds = [f"{row[clock]:.2f}" for clock in ("CPU seconds", "seconds")]
    memory = f"{row['peak memory'] / 1e6:.0f} (+{row['of it for the call'] / 1e6:.0f})"
    return [*name, f"{row['accuracy']:.2%}".rstrip("%"), *sizes, *seconds, memory]


def write_tables(rows: list[dict[str, Any]]) -> None:
    """Put the rows into the tables of the page, each below the heading of its network and two lines of titles."""
    text = PAGE.read_text(encoding="utf-8")
    for network, heading in HEADINGS.items():
        start = text.index("\n", text.index("| --- |", text.index(heading))) + 1
        stop = text.index("\n\n", start)
        text = text[:start] + table([row for row in rows if row["network"] == network]) + text[stop:]
    with replace_file(PAGE) as part:
        part.write_text(text, encoding="utf-8")


def versions() -> dict[str, str]:
    """Of the tools that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/peers.json and docs/peers.md")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--folder", type=Path, default=Path("out/peers"), help="where finished rows are kept")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        warnings.simplefilter("ignore")  # the tools warn about their own modules
        print("\n" + json.dumps(measure(arguments.one[0], ROWS[int(arguments.one[1])])))
        return
    if arguments.store and arguments.only:
        parser.error(f"--store writes whole tables, and --only {arguments.only!r} leaves rows out: give one of the two")
    figures = {
        "versions": versions(),
        "calibration": CALIBRATION,
        "test": TEST,
        "rows": all_rows(arguments.folder, arguments.only),
    }
    if arguments.store:
        write_tables(figures["rows"])
        print(f"\nstored in {store('peers', figures)} and {PAGE}")


if __name__ == "__main__":
    main()
