"""How long pruning, saving and loading a ResNet-50 take, and how much memory, beside what else one could use.

    python benchmarks/prune.py [--store] [--rounds 5]

Floors, for 25.5 M float32 weights (102 MB): pruning by magnitude reads them once to find the threshold and once more to
write the pruned network (102 MB) and its masks (26 MB): about 0.33 GB of traffic, 0.03 s at 10 GB/s, beside fresh pages
for what is written. By Φ, two float64 forward and backward passes at batch 1 come on top. Loading reads 18 MB, checks
their sha256 (2 GB/s: 10 ms), decodes 3.2 M symbols of masks, each of which waits for the one before (15 cycles: 16 ms),
and 5.1 M highest bytes (2 bits each: 9 ms, though zlib takes 20), and writes 102 MB of weights and 26 MB of masks (10
ms): two threads cannot take less than 23 ms. Reading the float file copies 102 MB.

Seconds are wall-clock on two threads, the best of rounds in which peers take turns. Memory is the peak of the process
above what it held before the call, in units of the weights.
"""

from __future__ import annotations

import argparse
import copy
import resource
import tempfile
from pathlib import Path
from typing import Any

import torch
from measure import best_seconds, best_seconds_reported, peak_memory, store
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune as torch_prune

import tamis
from tamis.training.models import example_input, resnet50

AMOUNT, THREADS = 0.8, 2
FIRST_LOAD = """
import gc, time, torch, tamis
from safetensors.torch import load_file
from tamis.training.models import resnet50
torch.set_num_threads(2)
model, _ = resnet50().eval(), tamis.load
gc.collect()  # else Python may look through all that torch made just while we load, or not
start = time.perf_counter()
loaded = {}
print(time.perf_counter() - start)
"""


def layers(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """What torch prunes: the same weights as tamis does."""
    return [(module, "weight") for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]


def measure_pruning(model: nn.Module, net: tamis.Network, rounds: int) -> dict[str, float]:
    """Seconds of global pruning, by tamis and by torch."""
    copies = [copy.deepcopy(model) for _ in range(rounds)]  # torch changes its model in place

    def by_torch() -> None:
        torch_prune.global_unstructured(layers(copies.pop()), torch_prune.L1Unstructured, amount=AMOUNT)

    return best_seconds(
        {
            "torch.nn.utils.prune, magnitude": by_torch,
            "tamis, magnitude": lambda: tamis.prune(net, AMOUNT, by="magnitude"),
            "tamis, Φ": lambda: tamis.prune(net, AMOUNT, by="phi"),
            "  of which the Φ-costs": lambda: tamis.path_costs(net),
            "tamis, random": lambda: tamis.prune(net, AMOUNT, by="random"),
        },
        rounds,
    )


def measure_file(model: nn.Module, net: tamis.Network, rounds: int) -> dict[str, float]:
    """Bytes and seconds of the file of a pruned network, and of all its floats."""
    small = tamis.prune(net, AMOUNT, by="magnitude")
    with tempfile.TemporaryDirectory() as folder:
        floats, ours = Path(folder) / "floats.safetensors", Path(folder) / "small.tamis"
        state = {name: value.contiguous() for name, value in small.state_dict().items()}
        save_file(state, floats)
        small.save(ours)
        seconds = best_seconds(
            {
                "write the floats (safetensors)": lambda: save_file(state, floats),
                "save": lambda: small.save(ours),
                "read the floats (safetensors, copied from the mapping)": lambda: {
                    name: value.clone() for name, value in load_file(floats).items()
                },
                "load": lambda: tamis.load(ours, model),
            },
            rounds,
        )
        same = all(torch.equal(value, small.params[name]) for name, value in tamis.load(ours, model).params.items())
        assert same, "what was loaded is not what was saved"
        return seconds | {"bytes": ours.stat().st_size, "bytes of the floats": floats.stat().st_size}


def measure_first_load(net: tamis.Network, rounds: int) -> dict[str, float]:
    """Seconds of the first load in a process, whose memory is all new."""
    small = tamis.prune(net, AMOUNT, by="magnitude")
    with tempfile.TemporaryDirectory() as folder:
        floats, ours = Path(folder) / "floats.safetensors", Path(folder) / "small.tamis"
        save_file({name: value.contiguous() for name, value in small.state_dict().items()}, floats)
        small.save(ours)
        programs = {
            "read the floats": f"{{n: v.clone() for n, v in load_file({str(floats)!r}).items()}}",
            "load": f"tamis.load({str(ours)!r}, model)",
        }
        return best_seconds_reported({name: FIRST_LOAD.format(program) for name, program in programs.items()}, rounds)


def measure_memory(net: tamis.Network) -> dict[str, float]:
    """Peak memory of pruning, as a multiple of the weights."""
    weights = sum(value.numel() * value.element_size() for value in net.params.values())
    return {
        by: peak_memory(lambda by=by: tamis.prune(net, AMOUNT, by=by)) / weights  # type: ignore[misc]
        for by in ("magnitude", "phi")
    }


def report(figures: dict[str, Any]) -> None:
    """Tables with the goals."""
    pruning, file, memory = figures["pruning"], figures["file"], figures["memory"]
    print(f"pruning a ResNet-50 globally at {AMOUNT:.0%}")
    for name, seconds in pruning.items():
        print(f"  {name:56s} {seconds:8.3f} s")
    ratio = pruning["torch.nn.utils.prune, magnitude"] / pruning["tamis, magnitude"]
    print(f"  magnitude: {ratio:.1f} × faster than torch.nn.utils.prune   {_goal('≥ 20', ratio >= 20)}")
    print(f"  Φ: {pruning['tamis, Φ']:.2f} s   {_goal('< 2.5 s', pruning['tamis, Φ'] < 2.5)}")
    for by, multiple in memory.items():
        print(f"  peak memory by {by}: {multiple:.2f} × the weights   {_goal('≤ 2.5', multiple <= 2.5)}")
    print("its file")
    for name in (
        "write the floats (safetensors)",
        "save",
        "read the floats (safetensors, copied from the mapping)",
        "load",
    ):
        print(f"  {name:56s} {file[name]:8.3f} s")
    size = file["bytes"] / file["bytes of the floats"]
    print(f"  {file['bytes']:,} bytes, {size:.3f} × the floats   {_goal('≤ 0.25', size <= 0.25)}")
    load = file["load"] / file["read the floats (safetensors, copied from the mapping)"]
    print(f"  load: {load:.2f} × reading the floats   {_goal('≤ 2', load <= 2)}")
    first = figures["first load of a process"]
    ratio = first["load"] / first["read the floats"]
    print(f"  first load of a process: {first['load']:.3f} s, {ratio:.2f} × reading the floats for the first time")


def _goal(text: str, met: bool) -> str:
    return f"goal {text}: {'met' if met else 'MISSED'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", action="store_true", help="write docs/results/prune.json")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = resnet50().eval()
    net = tamis.trace(model, example_input("resnet50"))
    figures = {
        "memory": measure_memory(net),
        "pruning": measure_pruning(model, net, arguments.rounds),
        "file": measure_file(model, net, arguments.rounds),
        "first load of a process": measure_first_load(net, arguments.rounds),
        "peak of the whole run, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }
    report(figures)
    if arguments.store:
        print(f"\nstored in {store('prune', figures)}")


if __name__ == "__main__":
    main()
