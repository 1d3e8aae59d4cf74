"""`tamis train`: train a network to classify, with what is pruned held at zero, and write it to a file.

With --l1inf, hidden neurons' incoming weights are kept within an ℓ1 ball, which makes most of them zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text
from torch import nn

from tamis.artifact import Compressed, Masks, save_weights
from tamis.cli.device_argument import parse_device
from tamis.cli.display import make_console, make_fact_table
from tamis.cli.interruption import note_resumption
from tamis.cli.model_argument import LoadedModule, load_module
from tamis.cli.options import ModelChoice, Output, TrainingDataChoice
from tamis.cli.output_argument import prepare_output
from tamis.errors import InvalidInput, join_names
from tamis.graph import Network, trace
from tamis.l1inf import L1InfConstraint, Statistics
from tamis.training import CHECKPOINT, Data, Settings, Trained, check_fits, join_team, load_data, read_checkpoint
from tamis.training import train as train_module

RADII = "a number ≥ 0 (0.1), or NAME= and one for each layer (linear1=0.1)"


def train(
    model: ModelChoice,
    data: TrainingDataChoice,
    directory: Path,
    options: Mapping[str, Any],
    l1inf: Sequence[str],
    output: Output,
) -> None:
    """Run the command; arguments as on the command line, `options` those of `Settings` that are given."""
    out = output.out
    settings = parse_settings(options)
    constraint = L1InfConstraint(parse_radii(l1inf)) if l1inf else None
    team = join_team(parse_device(output.device))
    prepare_output(out, ".safetensors", ".tamis")
    note_resumption(directory, CHECKPOINT)
    loaded = _load(model, settings.seed, out)
    bounds = {} if constraint is None else {"l1inf": _describe_bounds(constraint, loaded.module)}
    examples, test_examples = load_training_data(data, loaded.module, model.model)
    # Now: what cannot be traced is better refused before training than after it.
    network = _trace_loaded(loaded, examples) if out.suffix == ".tamis" else None
    origin = {
        "model": model.model,
        "weights": describe_origin_of_weights(loaded, directory),
        "device": str(team.device),
    }
    if team.leads and not output.as_json:
        make_console().print(make_fact_table(origin | describe_training(examples, test_examples, settings) | bounds))
    trained = train_module(
        loaded.module,
        examples,
        settings,
        test=test_examples,
        masks=_find_masks(loaded) or None,
        constraint=constraint,
        directory=directory,
        device=team.device,
    )
    if team.leads:
        step = {"step": "train", "data": examples.name, **settings.in_effect}
        step |= {} if constraint is None else constraint.in_effect
        masks = (
            _find_masks(loaded)
            if network is None
            else _find_masks(loaded) & _find_zeros(constraint, trained.model, network)
        )
        _write(trained.model, network, masks, [*_find_recipe(loaded), step], out)
        reached = None if constraint is None else constraint.statistics(trained.model)
        if output.as_json:
            last = trained.history[-1]
            figures = {"accuracy": {"training": last.accuracy, "test": last.test_accuracy}, "bytes": out.stat().st_size}
            figures |= {} if reached is None else {"l1inf": {"sparsity": reached.sparsity, "c": reached.c}}
            asked = {
                "data": examples.name,
                "test": data.test,
                "recipe": [*_find_recipe(loaded), step],
                "file": str(out),
            }
            print(json.dumps({**origin, **asked, **figures}, indent=2, allow_nan=False))
            return
        if reached is not None:
            make_console().print(_describe_norms(reached), soft_wrap=True)
        make_console().print(describe_result(trained, out), soft_wrap=True)


# -- arguments ---------------------------------------------------------------------------------------------------------


def parse_settings(options: Mapping[str, Any]) -> Settings:
    """Make `Settings` of options; it checks all but the text of milestones, such as "30,sixty", which is read here."""
    if "milestones" not in options:
        return Settings(**options)
    epochs = options["milestones"].split(",")
    if not all(epoch.strip().isdecimal() for epoch in epochs):
        raise InvalidInput(f"--milestones must be epochs, such as 30,60,80; got '{options['milestones']}'")
    return Settings(**{**options, "milestones": tuple(int(epoch) for epoch in epochs)})


def parse_radii(entries: Sequence[str]) -> float | dict[str, float]:
    """Read c of all hidden layers, or one for each of some layers.

    Example:
        >>> parse_radii(["0.1"]), parse_radii(["linear1=0.1", "linear2=1"])
        (0.1, {'linear1': 0.1, 'linear2': 1.0})
    """
    if len(entries) == 1 and "=" not in entries[0]:
        return _parse_radius(entries[0], entries[0])
    radii: dict[str, float] = {}
    for entry in entries:
        name, _, number = entry.rpartition("=")
        if not name:
            among = f" among {len(entries)} of them" if len(entries) > 1 else ""
            raise InvalidInput(f"--l1inf must be {RADII}; got '{entry}'{among}")
        if name in radii:
            raise InvalidInput(f"--l1inf names '{name}' twice")
        radii[name] = _parse_radius(number, entry)
    return radii


def _parse_radius(text: str, entry: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidInput(f"--l1inf must be {RADII}; got '{entry}'")
    return number


def load_trainable(command: str, original: ModelChoice, seed: int) -> LoadedModule:
    """Load the module that a factory makes; refuse a program, and name the `command` that needs a module."""
    if original.model.endswith(".pt2"):
        program = f"'{original.model}' is a program, which cannot be trained"
        raise InvalidInput(f"{command} needs package.module:factory; {program}")
    return load_module(original.model, original.weights, seed)


def load_training_data(given: TrainingDataChoice, module: nn.Module, called: str) -> tuple[Data, Data | None]:
    """Read what to train on, and what to measure on, and refuse what does not fit the module before any training."""
    examples, test = load_data(given.data), None if given.test is None else load_data(given.test)
    for each in (examples, test):
        if each is not None:
            check_fits(module, each, called=called)
    return examples, test


def _load(original: ModelChoice, seed: int, out: Path) -> LoadedModule:
    loaded = load_trainable("train", original, seed)
    if _find_masks(loaded) and out.suffix != ".tamis":
        raise InvalidInput(f"-o must end in .tamis, to remember what is pruned in '{original.weights}', got '{out}'")
    return loaded


def _find_masks(loaded: LoadedModule) -> Masks:
    return loaded.compressed.masks if loaded.compressed else Masks({})


def _find_recipe(loaded: LoadedModule) -> tuple[dict[str, Any], ...]:
    return loaded.compressed.recipe if loaded.compressed else ()


# -- writing -----------------------------------------------------------------------------------------------------------


def _trace_loaded(loaded: LoadedModule, data: Data) -> Network:
    return loaded.compressed.network if loaded.compressed else trace(loaded.module, data.example)


def _find_zeros(constraint: L1InfConstraint | None, model: nn.Module, network: Network) -> Masks:
    """Return masks of the weights that the projection made 0, so that the file stores them as pruned."""
    layers = [] if constraint is None else constraint.layers(model)
    weights = {f"{layer.name}.weight" if layer.name else "weight": layer.weight.detach().cpu() for layer in layers}
    kept = {network.aliases.get(name, name): (value != 0) | value.signbit() for name, value in weights.items()}
    return Masks({name: mask for name, mask in kept.items() if not mask.all()})


def _write(model: nn.Module, network: Network | None, masks: Masks, recipe: list[dict[str, Any]], out: Path) -> None:
    """Write the weights alone; or, with the network that was trained, all that a `.tamis` file holds."""
    if network is None:
        save_weights(model, out)
    else:
        Compressed(network.with_weights_of(model), masks, recipe).save(out)


# -- for people --------------------------------------------------------------------------------------------------------


def describe_origin_of_weights(loaded: LoadedModule, directory: Path) -> str:
    """Say where training begins: with the weights that were loaded, or where it was broken off."""
    begun = read_checkpoint(directory)
    return loaded.weights if begun is None else f"of {directory}, after epoch {begun.epoch}"


def describe_training(data: Data, test: Data | None, settings: Settings) -> dict[str, str]:
    """Describe the data and the settings of a training."""
    lines = {"data": f"{data.name}, {len(data):,} examples"}
    if test is not None:
        lines["test"] = f"{test.name}, {len(test):,} examples"
    lines["settings"] = ", ".join(f"{name} {value}" for name, value in settings.in_effect.items())
    return lines


def _describe_bounds(constraint: L1InfConstraint, model: nn.Module) -> str:
    """Say which layers are constrained, and by how much; raise InvalidInput where the model has no such layers."""
    layers = [layer.name for layer in constraint.layers(model)]
    if isinstance(constraint.c, Mapping):
        return join_names([f"‖T_l‖₁,∞ ≤ {radius:g} in {name}" for name, radius in constraint.c.items()])
    return f"‖T_l‖₁,∞ ≤ {constraint.c:g} in {join_names(layers)}"


def _describe_norms(found: Statistics) -> Text:
    weights = sum(layer.weights for layer in found.layers)
    return Text.assemble(
        (f"{found.sparsity:.1%}", "bold green"),
        f" of {weights:,} weights are 0 in {join_names([layer.name for layer in found.layers])}; ",
        f"the largest ‖T_l‖₁,∞ is {found.c:.6g}",
    )


def describe_result(trained: Trained, out: Path) -> Text:
    """Say how accurate the trained network is, and where it is saved."""
    last = trained.history[-1]
    return Text.assemble(
        f"{'training' if last.test_accuracy is None else 'test'} accuracy ",
        (f"{last.reported_accuracy:.1%}", "bold green"),
        f" after {last.epoch} epochs\n",
        f"saved {out}, {out.stat().st_size:,} bytes",
    )
