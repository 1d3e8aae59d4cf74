"""`tamis train`: train a network to classify, with what is pruned held at zero, and write it to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.text import Text
from safetensors.torch import save_model
from torch import nn

from tamis.artifact.atomic import replacing
from tamis.artifact.compressed import Compressed
from tamis.artifact.masks import Masks
from tamis.cli.display import console, facts
from tamis.cli.model_argument import LoadedModule, load_module
from tamis.cli.output_argument import prepare_output
from tamis.errors import InvalidInput
from tamis.graph.network import Network
from tamis.graph.trace import trace
from tamis.train.checkpoint import read_checkpoint
from tamis.train.data import Data, load_data
from tamis.train.distributed import join_team
from tamis.train.fits import check_fits
from tamis.train.loop import Settings, Trained
from tamis.train.loop import train as train_module


def train(
    model: str,
    weights: Path | None,
    data: str,
    test: str | None,
    directory: Path,
    out: Path,
    device: str,
    options: Mapping[str, Any],
) -> None:
    """The command; arguments as on the command line, `options` those of `Settings` that are given."""
    settings = parse_settings(options)
    team = join_team(parse_device(device))
    prepare_output(out, ".safetensors", ".tamis")
    loaded = _load(model, weights, settings.seed, out)
    examples, test_examples = load_data(data), None if test is None else load_data(test)
    for each in (examples, test_examples):
        if each is not None:
            check_fits(loaded.module, each, called=model)
    # Now: what cannot be traced is better refused before training than after it.
    network = _traced(loaded, examples) if out.suffix == ".tamis" else None
    if team.leads:
        origin = {"model": model, "weights": _origin_of_weights(loaded, directory), "device": str(team.device)}
        console().print(facts(origin | _described(examples, test_examples, settings)))
    trained = train_module(
        loaded.module,
        examples,
        settings,
        test=test_examples,
        masks=_masks(loaded) or None,
        directory=directory,
        device=team.device,
    )
    if team.leads:
        step = {"step": "train", "data": examples.name, **settings.in_effect}
        _write(trained.model, network, _masks(loaded), [*_recipe(loaded), step], out)
        console().print(_result(trained, out), soft_wrap=True)


# -- arguments ---------------------------------------------------------------------------------------------------------


def parse_settings(options: Mapping[str, Any]) -> Settings:
    """`Settings`, which complains of all but milestones that are none, such as "30,sixty"."""
    if "milestones" not in options:
        return Settings(**options)
    epochs = options["milestones"].split(",")
    if not all(epoch.strip().isdecimal() for epoch in epochs):
        raise InvalidInput(f"--milestones must be epochs, such as 30,60,80; got '{options['milestones']}'")
    return Settings(**{**options, "milestones": tuple(int(epoch) for epoch in epochs)})


def parse_device(text: str) -> torch.device:
    """A device that is there."""
    try:
        device = torch.device(text)
    except RuntimeError:
        raise InvalidInput(f"--device must be cpu or cuda, got '{text}'") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidInput(f"--device {text}: torch finds {torch.cuda.device_count()} CUDA devices here")
    return device


def _load(model: str, weights: Path | None, seed: int, out: Path) -> LoadedModule:
    if model.endswith(".pt2"):
        raise InvalidInput(f"train needs package.module:factory; '{model}' is a program, which cannot be trained")
    loaded = load_module(model, weights, seed)
    if _masks(loaded) and out.suffix != ".tamis":
        raise InvalidInput(f"-o must end in .tamis, to remember what is pruned in '{weights}', got '{out}'")
    return loaded


def _masks(loaded: LoadedModule) -> Masks:
    return loaded.compressed.masks if loaded.compressed else Masks({})


def _recipe(loaded: LoadedModule) -> tuple[dict[str, Any], ...]:
    return loaded.compressed.recipe if loaded.compressed else ()


# -- writing -----------------------------------------------------------------------------------------------------------


def _traced(loaded: LoadedModule, data: Data) -> Network:
    return loaded.compressed.network if loaded.compressed else trace(loaded.module, data.example)


def _write(model: nn.Module, network: Network | None, masks: Masks, recipe: list[dict[str, Any]], out: Path) -> None:
    """The weights alone; or, with the network that was trained, all that a `.tamis` file holds."""
    if network is None:
        with replacing(out) as part:
            save_model(model, str(part))
    else:
        Compressed(network.with_params(model.state_dict()), masks, recipe).save(out)


# -- for people --------------------------------------------------------------------------------------------------------


def _origin_of_weights(loaded: LoadedModule, directory: Path) -> str:
    begun = read_checkpoint(directory)
    return loaded.weights if begun is None else f"of {directory}, after epoch {begun.epoch}"


def _described(data: Data, test: Data | None, settings: Settings) -> dict[str, str]:
    lines = {"data": f"{data.name}, {len(data):,} examples"}
    if test is not None:
        lines["test"] = f"{test.name}, {len(test):,} examples"
    lines["settings"] = ", ".join(f"{name} {value}" for name, value in settings.in_effect.items())
    return lines


def _result(trained: Trained, out: Path) -> Text:
    last = trained.history[-1]
    return Text.assemble(
        f"{'training' if last.test_accuracy is None else 'test'} accuracy ",
        (f"{last.reported_accuracy:.1%}", "bold green"),
        f" after {last.epoch} epochs\n",
        f"saved {out}, {out.stat().st_size:,} bytes",
    )
