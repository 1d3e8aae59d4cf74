"""Every command that trains has these options, which are those of `tamis.training.Settings`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tamis.cli.option_groups import Group


def given_settings(
    epochs: Annotated[int, typer.Option(metavar="N", help="How often to go through the data.")],
    batch: Annotated[int | None, typer.Option(metavar="N", help="Examples per step, over all processes.")] = None,
    optimizer: Annotated[str | None, typer.Option(metavar="sgd|adamw")] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="RATE", help="The largest one.")] = None,
    momentum: Annotated[float | None, typer.Option(metavar="M", help="Of SGD; β₁ of AdamW.")] = None,
    weight_decay: Annotated[float | None, typer.Option(metavar="DECAY")] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="cosine|multistep", help="How the learning rate goes down.")
    ] = None,
    milestones: Annotated[
        str | None,
        typer.Option(metavar="EPOCHS", help="For multistep: when it falls to a tenth, such as 30,60,80."),
    ] = None,
    warmup_epochs: Annotated[
        int | None, typer.Option(metavar="N", help="How long the learning rate first goes up from 0.")
    ] = None,
    augment: Annotated[bool, typer.Option("--augment", help="Crop and flip images at random.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of the first weights, the order of data, augmentation and dropout."),
    ] = None,
    amp: Annotated[bool, typer.Option("--amp", help="Compute in bfloat16 where it is safe, on CUDA.")] = False,
) -> dict[str, Any]:
    """Return the options that the user has given, by name; `Settings` has the defaults of the others."""
    options = {
        "epochs": epochs,
        "batch": batch,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "milestones": milestones,
        "warmup_epochs": warmup_epochs,
        "augment": augment or None,
        "seed": seed,
        "amp": amp or None,
    }
    return {name: value for name, value in options.items() if value is not None}


TrainingGroup = Annotated[dict[str, Any], Group(given_settings)]
