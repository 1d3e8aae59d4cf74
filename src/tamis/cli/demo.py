"""`tamis demo`: train a small network on handwritten digits, inspect it, rescale it, save it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import safetensors.torch
import torch
import torch.nn.functional as F
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.export import Dim

from tamis.cli.display import console, from_logarithm
from tamis.cli.inspect import inspection, show
from tamis.graph.network import Network
from tamis.graph.rescale import rescale
from tamis.graph.trace import quietly, trace
from tamis.paths.norm import path_norm, product_norm
from tamis.train.digits import digits
from tamis.train.models.digits_cnn import digits_cnn

SEED, EPOCHS, BATCH, LEARNING_RATE = 0, 20, 64, 0.01
NAME = "digits"


def demo(directory: Path) -> None:
    """The command; the two files of the trained network go to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)  # first, so that nobody waits for a directory that cannot be made
    with _reproducible():
        _demo(directory, console())


def _demo(directory: Path, out: Console) -> None:
    images, labels = digits("test")
    out.print(f"Training a small CNN on handwritten digits, 8 × 8 pixels, seed {SEED}.\n")
    model = train(out)
    net = trace(model, images[:1])
    right = _count_right(net(images), labels)
    accuracy = (f"{right / len(labels):.1%}", "bold green")
    out.print(Text.assemble("test accuracy ", accuracy, f", {right} of {len(labels)} new images\n"))
    show(inspection(net), {}, out)
    out.print("\nMultiply a neuron's incoming weights, divide its outgoing ones: the function stays the same.\n")
    out.print(_comparison(net, rescale(net, SEED), images, labels))
    weights, program = save(model, images[:2], directory)
    out.print(f"\nsaved     {weights}\n          {program}", soft_wrap=True)
    out.print(Text.assemble("try next  ", (f"tamis inspect {program}", "bold")), soft_wrap=True)


@contextmanager
def _reproducible() -> Iterator[None]:
    """Seeded, and on one thread: sums come out alike on any number of cores, and layers this small lose nothing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            yield
    finally:
        torch.set_num_threads(threads)


def train(out: Console) -> nn.Module:
    """Train on the digits with the global generator; the accuracy shown meanwhile is that on the training images."""
    images, labels = digits("train")
    model = digits_cnn()
    steps = EPOCHS * -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    with _progress(out) as progress:
        task = progress.add_task("training", total=EPOCHS, loss=float("nan"), accuracy=0.0)
        for _ in range(EPOCHS):
            loss_sum, right = 0.0, 0
            for chosen in torch.randperm(len(images)).split(BATCH):
                scores = model(images[chosen])
                loss = F.cross_entropy(scores, labels[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                loss_sum += loss.item() * len(chosen)
                right += _count_right(scores, labels[chosen])
            progress.update(task, advance=1, loss=loss_sum / len(images), accuracy=right / len(images))
    return model.eval()


def _progress(out: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs   loss {task.fields[loss]:.3f}   accuracy {task.fields[accuracy]:.1%}"),
        TimeElapsedColumn(),
        console=out,
    )


def _count_right(scores: Tensor, labels: Tensor) -> int:
    return int((scores.argmax(1) == labels).sum())


def _comparison(net: Network, rescaled: Network, images: Tensor, labels: Tensor) -> Table:
    """The same function with two sets of weights: what changes, and what does not."""
    scores = (net(images), rescaled(images))
    largest_weight = [max(float(n.params[name].abs().max()) for name in n.trainable) for n in (net, rescaled)]
    rows = {
        "test accuracy": [f"{_count_right(each, labels) / len(labels):.1%}" for each in scores],
        "largest change of an output": ["", f"{float((scores[0] - scores[1]).abs().max()):g}"],
        "largest weight": [f"{value:,.2f}" for value in largest_weight],
        "path-norm": [from_logarithm(path_norm(n, log=True)) for n in (net, rescaled)],
        "product of layer norms": [from_logarithm(product_norm(n, log=True)) for n in (net, rescaled)],
    }
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("as trained", justify="right")
    table.add_column("rescaled", justify="right")
    for name, values in rows.items():
        changed = values[0] and values[0] != values[1]
        table.add_row(name, values[0], Text(values[1], "red" if changed else "green"))
    return table


def save(model: nn.Module, example: Tensor, directory: Path) -> tuple[Path, Path]:
    """Write the weights and the exported program, each of which appears whole or not at all."""
    weights, program = directory / f"{NAME}.safetensors", directory / f"{NAME}.pt2"
    _write(weights, safetensors.torch.save(model.state_dict()))
    # In memory first: torch would write the temporary file's name into the archive.
    archive = BytesIO()
    with quietly():
        torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: Dim.AUTO},)), archive)
    _write(program, archive.getvalue())
    return weights, program


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
