"""What recipes and budgets leave of a network: bytes, right answers, different answers, seconds.

    python benchmarks/recipes.py [--store] [--only TEXT] [--folder out/recipes]

Every recipe that ships, on a small convolutional network that is trained on the digits first; and, on the published
ResNet-20 for CIFAR-10, two recipes and two budgets, with 500 of 1,000 training images for calibration and 4,000 test
images, of which a search holds half out for itself. Seconds are CPU seconds of one thread, certificate and report
included. Finished rows lie in --folder: the same command goes on after a kill, and --only measures the rows whose name
contains a text. --store writes docs/results/recipes.json from what is there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from measure import store
from safetensors.torch import load_file
from torch import Tensor, nn

import tamis
from tamis.artifact import replace_file
from tamis.recipes import Compression, list_shipped
from tamis.training import Settings, load_data, train
from tamis.training.models import digits_cnn, resnet20

PRETRAINED = Path(__file__).parents[1].parent / "shared" / "models" / "resnet20_cifar10.safetensors"
CIFAR = {"data": "cifar10:train[:1000]", "test": "cifar10:test[:4000]"}
BUDGETS: dict[str, dict[str, str]] = {
    "--max-disagreement 6%": {"max_disagreement": "6%"},
    "--target-bytes 95KB": {"target_bytes": "95KB"},
}
Row = dict[str, Any]


@cache
def trained() -> nn.Module:
    """A network that knows the digits."""
    torch.manual_seed(0)
    settings = Settings(epochs=15, batch=64, optimizer="adamw", learning_rate=0.005)
    return train(digits_cnn(), load_data("digits"), settings, progress=False).model.eval()


@cache
def published() -> nn.Module:
    """The ResNet-20 of 91.73%."""
    model = resnet20()
    model.load_state_dict(load_file(PRETRAINED))
    return model.eval()


def rows() -> dict[str, Callable[[Path], Compression]]:
    """What is run, by name; each takes the folder to write to."""

    def on_digits(recipe: str) -> Callable[[Path], Compression]:
        return lambda out: tamis.compress(trained(), recipe, "digits", out, progress=False)

    def on_cifar(recipe: Any, **budget: str) -> Callable[[Path], Compression]:
        return lambda out: tamis.compress(published(), recipe, out=out, progress=False, **CIFAR, **budget)

    with_data = {"name": "budget", "data": {"calibration": 500}, "budget": {}}
    found = {f"digits, {entry.name}": on_digits(entry.name) for entry in list_shipped()}
    found |= {f"ResNet-20, {name}": on_cifar(name) for name in ("ternary", "two-bit")}
    return found | {f"ResNet-20, {name}": on_cifar({**with_data, "budget": budget}) for name, budget in BUDGETS.items()}


def right_answers(network: Callable[[Tensor], Tensor], test: str) -> float:
    """The share of them."""
    data = load_data(test)
    with torch.no_grad():
        return (network(data.normalised()).argmax(1) == data.labels).double().mean().item()


def measured(make: Callable[[Path], Compression], folder: Path, test: str) -> Row:
    """One row."""
    shutil.rmtree(folder, ignore_errors=True)
    start = time.process_time()
    done = make(folder)
    seconds = time.process_time() - start
    claim = done.certificate["disagreement"]
    return {
        "bytes": done.small.nbytes,
        "right": right_answers(done.small.network, test),
        "differ at most": claim.bound.value,
        "different": claim.bound.terms["different"],
        "compared on": claim.bound.terms["n"],
        "CPU seconds": seconds,
        "met": done.met,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/recipes.json")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--folder", type=Path, default=Path("out/recipes"), help="of finished rows")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures: dict[str, Row] = {}
    for name, make in rows().items():
        kept = arguments.folder / f"{name}.json"
        if not kept.exists() and arguments.only in name:
            test = "digits:test" if name.startswith("digits") else CIFAR["test"]
            row = measured(make, arguments.folder / name, test)
            with replace_file(kept) as part:
                part.write_text(json.dumps(row, indent=1), encoding="utf-8")
        if kept.exists():
            row = figures[name] = json.loads(kept.read_text(encoding="utf-8"))
            print(
                f"{name:36}{row['bytes']:>9,} bytes {row['right']:>7.1%} right {row['differ at most']:>7.2%} differ at "
                f"most {row['CPU seconds']:>6.0f} s"
            )
    if arguments.store:
        figures["digits, before"] = {"right": right_answers(trained(), "digits:test")}
        print(f"stored in {store('recipes', figures)}")


if __name__ == "__main__":
    main()
