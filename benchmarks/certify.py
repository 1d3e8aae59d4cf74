"""How long a certificate takes beside the forward passes it needs, and how fast weights are packed.

    python benchmarks/certify.py [--store] [--rounds 3] [--images 10000]

A certificate of ResNet-20, pruned and quantized, on the test images of CIFAR-10. The floor is one forward pass of each
of the two networks over the same images in the same batches. The certificate has all claims that these images allow:
different answers, change of accuracy, error rate, deviation of outputs, path-metric. It also reads the file, and
fingerprints the images and both networks.

Packing is `Compressed.save` of one large layer, in megabytes of float32 weights a second, with everything it does:
choosing the encoding, entropy coding where that is smaller, checksums, and the file itself, on a file system in memory.
Two floors: copying the weights once, and checksumming them.

Seconds are those of one thread's CPU time, the best of rounds in which the tasks take turns.
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import best_cpu_seconds, store
from safetensors.torch import load_file
from torch import nn

import tamis
from tamis.artifact import Codes
from tamis.training import load_data
from tamis.training.models import resnet20
from tamis.verification.samples import BATCH

PRETRAINED = Path(__file__).parents[1].parent / "shared" / "models" / "resnet20_cifar10.safetensors"
WEIGHTS = (4096, 4096)
IN_MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
CERTIFY, FORWARD = "certify", "two forward passes"


def certificate(images: int, rounds: int) -> dict[str, Any]:
    """Seconds of a certificate and of the two forward passes."""
    model = resnet20()
    model.load_state_dict(load_file(PRETRAINED))
    net = tamis.trace(model, torch.zeros(1, 3, 32, 32))
    data = load_data(f"cifar10:test[:{images}]")
    inputs, labels = data.normalised(), data.labels
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "small.tamis"
        calibration = load_data("cifar10:train[:500]")
        tamis.quantize(tamis.prune(net, 0.3, by="magnitude"), calibration, levels=8, progress=False).save(file)
        small = tamis.load(file, net).network

        def forward() -> None:
            with torch.inference_mode():
                for batch in inputs.split(BATCH):
                    net(batch), small(batch)

        claims = [claim.name for claim in tamis.certify(net, file, inputs[:BATCH], labels[:BATCH]).claims]
        seconds = best_cpu_seconds(
            {FORWARD: forward, CERTIFY: lambda: tamis.certify(net, file, inputs, labels)}, rounds
        )
    return {"images": images, "claims": claims, "seconds": seconds, "ratio": seconds[CERTIFY] / seconds[FORWARD]}


def layer(content: str) -> tamis.Compressed:
    """One large layer of this content."""
    torch.manual_seed(0)
    model = nn.Linear(WEIGHTS[1], WEIGHTS[0], bias=False)
    net = tamis.trace(model, torch.zeros(1, WEIGHTS[1]))
    if content == "dense":
        return tamis.Compressed(net)
    if content == "90% pruned":
        return tamis.prune(net, 0.9, by="magnitude")
    levels = {"ternary, a third each": 3, "ternary, 80% zero": 3, "16 levels": 16}[content]
    weight = torch.randn(WEIGHTS)
    step = 2.56 if content.endswith("zero") else 0.86  # quantiles of a normal distribution, doubled
    indices = (weight / step).round().clamp(-1, 1) + 1 if levels == 3 else (weight * 3 + 8).round().clamp(0, 15)
    codes = Codes(indices.to(torch.uint8), torch.linspace(-1, 1, levels), torch.ones(WEIGHTS[0], 1))
    return tamis.Compressed(net).changed({}, {"weight": codes}, {"step": "quantize"})


def packing(rounds: int) -> dict[str, Any]:
    """Megabytes of float32 weights a second."""
    size = 4 * WEIGHTS[0] * WEIGHTS[1]
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        path = Path(folder) / "layer.tamis"
        contents = ("dense", "90% pruned", "ternary, a third each", "ternary, 80% zero", "16 levels")
        layers = {content: layer(content) for content in contents}
        weights = layers["dense"].params["weight"]
        floors: dict[str, Callable[[], Any]] = {
            "copy": weights.clone,
            "crc32": lambda: zlib.crc32(weights.numpy().data),
        }
        saves = {content: _save(small, path) for content, small in layers.items()}
        seconds = best_cpu_seconds({**floors, **saves}, rounds)
        sizes = {content: _size(small, path) for content, small in layers.items()}
    return {
        name: {"MB/s": size / value / 1e6, "bits a weight": 8 * sizes[name] / (size / 4) if name in sizes else None}
        for name, value in seconds.items()
    }


def _save(small: tamis.Compressed, path: Path) -> Callable[[], None]:
    return lambda: small.save(path)


def _size(small: tamis.Compressed, path: Path) -> int:
    small.save(path)
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/certify.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=10000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    packed = packing(options.rounds)
    print(f"{'packing':<24}{'MB/s':>8}{'bits a weight':>16}")
    for name, row in packed.items():
        bits = "" if row["bits a weight"] is None else f"{row['bits a weight']:.2f}"
        print(f"{name:<24}{row['MB/s']:>8.0f}{bits:>16}")
    whole = certificate(options.images, options.rounds)
    print(f"\nResNet-20, {whole['images']:,} images: {', '.join(whole['claims'])}")
    for name, seconds in whole["seconds"].items():
        print(f"{name:<24}{seconds:>8.2f} s")
    print(f"{'ratio':<24}{whole['ratio']:>8.2f}")
    if options.store:
        print(store("certify", {"certificate": whole, "packing": packed}))


if __name__ == "__main__":
    main()
