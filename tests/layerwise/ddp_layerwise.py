"""One of some processes that go through a network's layers together; run by test_two_processes.py under torchrun.

torchrun --nproc-per-node=2 ddp_layerwise.py FOLDER
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tamis
from tamis.training.models import digits_cnn

X = torch.randn(46, 1, 8, 8, generator=torch.Generator().manual_seed(1))
BATCHES = list(X.split(7))  # 7 of them, which two processes cannot share evenly; the last is small


def network() -> tamis.Network:
    torch.manual_seed(0)
    model = digits_cnn(4).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
    return tamis.trace(model, X[:2].double())


def pruned(net: tamis.Network) -> tamis.Compressed:
    return tamis.prune(net, 0.5, by="magnitude")


def runs(net: tamis.Network, folder: Path) -> dict[str, Callable[[], tamis.Compressed]]:
    """Calls by name; float64, so that sums in another order choose the same."""
    return {
        "repair": lambda: tamis.repair(net, pruned(net), BATCHES, progress=False),
        "repair from one batch": lambda: tamis.repair(net, pruned(net), BATCHES[:1], progress=False),
        "prune": lambda: tamis.prune(net, 0.5, by="obs", calibration=BATCHES, progress=False),
        "quantize": lambda: tamis.quantize(net, BATCHES, levels=3, progress=False),
        "gpfq": lambda: tamis.quantize(net, BATCHES, bits=4, method="gpfq", c_alpha=3.0, progress=False),
        "with a directory": lambda: tamis.quantize(net, BATCHES, directory=folder / "journal", progress=False),
        "and again": lambda: tamis.quantize(net, BATCHES, directory=folder / "journal", progress=False),
    }


def result(small: tamis.Compressed) -> dict[str, Any]:
    return {
        "params": dict(small.params),
        "masks": dict(small.masks),
        "indices": {name: code.indices for name, code in small.codes.items()},
        "errors": {name: figures["error"] for name, figures in small.recipe[-1]["layers"].items()},
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, net = Path(sys.argv[1]), network()
    results = {name: result(run()) for name, run in runs(net, folder).items()}
    torch.save(results, folder / f"{os.environ['RANK']}.pt")
