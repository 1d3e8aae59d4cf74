"""`tamis demo`: train a small network on handwritten digits, rescale, prune, quantize, certify and report on it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.export import Dim

from tamis.artifact import Compressed, save_weights, write_program
from tamis.certificates import certify
from tamis.cli.display import from_logarithm, make_console, table
from tamis.cli.inspect import inspect_network, show
from tamis.graph import Network, rescale, silence_torch, trace
from tamis.layerwise import repair
from tamis.paths import path_norm, product_norm
from tamis.pruning import prune
from tamis.quantization import quantize
from tamis.reports import report
from tamis.training import Data, Settings, load_data, train
from tamis.training.models import digits_cnn
from tamis.verification import Certificate, verify

SEED = 0
SETTINGS = Settings(
    epochs=20, batch=64, optimizer="adamw", learning_rate=0.01, weight_decay=0.01, warmup_epochs=5, seed=SEED
)
AMOUNT = 0.8
AMOUNT_OF_BOTH = 0.5
LEVELS = 3
NAME = "digits"
CERTIFIED = "tiny"
FILES = [
    *(f"{NAME}.safetensors", f"{NAME}.pt2", "small.tamis"),
    *(f"{CERTIFIED}.tamis", f"{CERTIFIED}.json", "report.html"),
]


Figures = dict[str, dict[str, float]]  # networks by name → their test accuracy and bytes


def demo(directory: Path, as_json: bool = False) -> None:
    """Run the command; the files of the trained network and of the small ones go to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)  # first, so that nobody waits for a directory that cannot be made
    with _reproducible():
        figures = _demo(directory, Console(quiet=True) if as_json else make_console())
    if as_json:
        print(json.dumps({"seed": SEED, "networks": figures, "folder": str(directory), "files": FILES}, indent=2))


def _demo(directory: Path, out: Console) -> Figures:
    test = load_data("digits:test")
    images = test.normalised()
    out.print(f"Training a small CNN on handwritten digits, 8 × 8 pixels, seed {SEED}.\n")
    model = train(digits_cnn(), load_data("digits:train"), SETTINGS).model
    net = trace(model, images[:1])
    right = _count_right(net, test)
    accuracy = (f"{right / len(test):.1%}", "bold green")
    out.print(Text.assemble("test accuracy ", accuracy, f", {right} of {len(test)} new images\n"))
    show(inspect_network(net), {}, out)
    out.print("\nMultiply a neuron's incoming weights, divide its outgoing ones: the function stays the same.\n")
    rescaled = rescale(net, SEED)
    out.print(_compare(net, rescaled, test))
    out.print(f"\nPrune {AMOUNT:.0%} of the weights: one function, one result by Φ-cost, but not by magnitude.\n")
    out.print(_compare_pruned(net, rescaled, test))
    out.print(f"\nOr put the weights on {LEVELS} levels, layer by layer, without training.\n")
    small = _make_small_networks(net, load_data("digits:train"))
    figures = _measure(net, small, test)
    out.print(_compare_small(figures))
    out.print("\nAnd say what the last one cost, so that anybody can check it.\n")
    out.print(_certify(net, list(small.values())[-1], test, directory))
    _show_files(*save(model, next(iter(small.values())), images[:2], directory), out)
    return figures


def _make_small_networks(net: Network, training: Data) -> dict[str, Compressed]:
    """Make small networks of one, by name: pruned, quantized, and one after the other."""
    both = quantize(prune(net, AMOUNT_OF_BOTH), training, LEVELS, progress=False)
    return {
        f"{AMOUNT:.0%} pruned": prune(net, AMOUNT),
        f"on {LEVELS} levels": quantize(net, training, LEVELS, progress=False),
        f"{AMOUNT_OF_BOTH:.0%} pruned, then on {LEVELS} levels, then refitted": repair(
            net, both, training, progress=False
        ),
    }


def _certify(net: Network, small: Compressed, test: Data, directory: Path) -> str:
    """Save a small network, certify its file, verify the certificate as anybody may, and write the page about it."""
    file, certificate = (directory / f"{CERTIFIED}{suffix}" for suffix in (".tamis", ".json"))
    small.save(file)
    certify(net, file, test).save(certificate)
    verified = verify(certificate, file, net, test)
    report(certificate, directory / "report.html", original=net)
    return f"{Certificate.load(certificate)}\n{verified}"


@contextmanager
def _reproducible() -> Iterator[None]:
    """Run the block seeded and on one thread: sums come out alike on any number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            yield
    finally:
        torch.set_num_threads(threads)


def _format_accuracy(net: Network, data: Data) -> str:
    return f"{_count_right(net, data) / len(data):.1%}"


def _count_right(net: Network, data: Data) -> int:
    return int((net(data.normalised()).argmax(1) == data.labels).sum())


def _compare(net: Network, rescaled: Network, test: Data) -> Table:
    """Compare two sets of weights for the same function: what changes, and what does not."""
    both = (net, rescaled)
    before, after = (each(test.normalised()) for each in both)
    largest_weight = [max(float(each.params[name].abs().max()) for name in each.trainable) for each in both]
    return _lay_side_by_side(
        {
            "test accuracy": [_format_accuracy(each, test) for each in both],
            "largest change of an output": ["", f"{float((before - after).abs().max()):g}"],
            "largest weight": [f"{value:,.2f}" for value in largest_weight],
            "path-norm": [from_logarithm(path_norm(each, log=True)) for each in both],
            "product of layer norms": [from_logarithm(product_norm(each, log=True)) for each in both],
        }
    )


def _compare_pruned(net: Network, rescaled: Network, test: Data) -> Table:
    """Compare test accuracies after pruning by two criteria: one looks at the function, one at the weights."""
    both = (net, rescaled)
    return _lay_side_by_side(
        {
            "by Φ-cost": [_format_accuracy(prune(each, AMOUNT, "phi").network, test) for each in both],
            "by magnitude": [_format_accuracy(prune(each, AMOUNT, "magnitude").network, test) for each in both],
        },
        heading="test accuracy",
    )


def _measure(net: Network, small: dict[str, Compressed], test: Data) -> Figures:
    """Measure the accuracy and the size of the network and of the small ones made of it."""
    networks = {"as trained": (net, sum(value.nbytes for value in net.params.values()))}
    networks |= {name: (each.network, each.nbytes) for name, each in small.items()}
    return {
        name: {"accuracy": _count_right(each, test) / len(test), "bytes": size}
        for name, (each, size) in networks.items()
    }


def _compare_small(figures: Figures) -> Table:
    rows = table()
    rows.add_column("network")
    rows.add_column("test accuracy", justify="right")
    rows.add_column("bytes", justify="right")
    for name, row in figures.items():
        rows.add_row(name, f"{row['accuracy']:.1%}", f"{row['bytes']:,}")
    return rows


def _lay_side_by_side(lines: dict[str, list[str]], heading: str = "") -> Table:
    rows = table()
    rows.add_column(heading)
    rows.add_column("as trained", justify="right")
    rows.add_column("rescaled", justify="right")
    for name, (before, after) in lines.items():
        rows.add_row(name, before, Text(after, "red" if before and before != after else "green"))
    return rows


def save(model: nn.Module, small: Compressed, example: Tensor, directory: Path) -> tuple[Path, Path, Path]:
    """Write the weights, the exported program and the pruned network, each of which appears whole or not at all."""
    weights, program = directory / f"{NAME}.safetensors", directory / f"{NAME}.pt2"
    save_weights(model, weights)
    with silence_torch():
        exported = torch.export.export(model, (example,), dynamic_shapes=({0: Dim.AUTO},))
    write_program(exported, program)
    small.save(directory / "small.tamis")
    return weights, program, directory / "small.tamis"


def _show_files(weights: Path, program: Path, small: Path, out: Console) -> None:
    whole, left = (path.stat().st_size for path in (weights, small))
    out.print(f"\nsaved     {weights}, {whole:,} bytes\n          {program}", soft_wrap=True)
    out.print(f"          {small}, {left:,} bytes, {left / whole:.0%} of the weights as floats", soft_wrap=True)
    out.print(Text.assemble("try next  ", (f"tamis inspect {program}", "bold")), soft_wrap=True)
    out.print(Text(f"          tamis inspect {program} --weights {small}", "bold"), soft_wrap=True)
    files = " ".join(str(program.with_name(f"{CERTIFIED}{suffix}")) for suffix in (".json", ".tamis"))
    out.print(Text(f"          tamis verify {files} {program} --data digits:test", "bold"), soft_wrap=True)
    out.print(f"and open  {program.with_name('report.html')} in a browser", soft_wrap=True)
