"""What each process of a team runs: one training after the other, results of each into a folder.

    python ddp_worker.py FOLDER NAME...

The names are those of `RUNS`. With KILL_AFTER=EPOCH in the environment, the first process kills itself then.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import Masks
from tamis.progress import Progress
from tamis.training import Settings, Trained, load_data, train
from tamis.training.models import digits_cnn, mlp

TEST = load_data("digits:test[:101]")


def plain() -> nn.Module:
    return mlp((64, 12, 10))


def with_dropout_and_batch_norm() -> nn.Module:
    return nn.Sequential(digits_cnn(4), nn.Dropout(0.2))


def masks() -> Masks:
    generator = torch.Generator().manual_seed(0)
    return Masks({name: torch.rand(shape, generator=generator) < 0.5 for name, shape in SHAPES.items()})


SHAPES = {"linear1.weight": (12, 64), "linear2.weight": (10, 12)}
ADAMW = Settings(epochs=8, batch=16, optimizer="adamw", learning_rate=0.01, weight_decay=0.1)
WHOLE = (with_dropout_and_batch_norm, "digits:train[:61]", Settings(epochs=4, batch=16, augment=True), None)
RUNS: dict[str, tuple[Callable[[], nn.Module], str, Settings, Masks | None]] = {
    "last batch uneven": (plain, "digits:train[:61]", Settings(epochs=3, batch=16), None),
    "last batch of one": (plain, "digits:train[:49]", replace(ADAMW, epochs=3), None),
    "masked": (plain, "digits:train[:60]", ADAMW, masks()),
    "whole": WHOLE,
    "broken off": WHOLE,
}


def trained(name: str, directory: Path | None = None) -> Trained:
    """The training of this name, in this process alone or as one of a team."""
    build, data, settings, kept = RUNS[name]
    torch.manual_seed(int(os.environ.get("RANK", 0)))  # weights of their own, of which those of the first must win
    return train(
        build(), load_data(data), settings, test=TEST, masks=kept, directory=directory, progress=_kill_on_request
    )


def result(trained: Trained) -> dict[str, Any]:
    weights: dict[str, Tensor] = dict(trained.model.state_dict())
    return {"weights": weights, "history": [{**asdict(epoch), "seconds": 0} for epoch in trained.history]}


def _kill_on_request(now: Progress) -> None:
    if now.done == int(os.environ.get("KILL_AFTER", -1)):
        os.kill(os.getpid(), signal.SIGKILL)


def _write_threads(folder: Path) -> None:
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (folder / f"threads_{os.environ['RANK']}.txt").write_text("\n".join(threads))


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, *names = sys.argv[1:]
    atexit.register(_write_threads, Path(folder))  # before any training, so that it is called after the group is left
    for name in names:
        given = result(trained(name, Path(folder) / name))
        torch.save(given, Path(folder) / f"{name}_{os.environ['RANK']}.pt")
