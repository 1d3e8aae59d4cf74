"""The options that say how to train, for every command that does: those of `tamis.training.Settings`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import typer

SETTINGS = "settings"  # the parameter of a command that stands for all of them


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
    """Those that the user has given, by name; the others are for `Settings` to say."""
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


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Puts the options in the place of a command's parameter `settings`, which is then what `given_settings` returns.

    Example:
        >>> @app.command()
        ... @with_settings
        ... def train(model: Model, settings: dict[str, Any], device: Device = "cpu") -> None: ...
    """
    shared = parameters_of(given_settings)

    @functools.wraps(command)
    def with_them(**options: Any) -> None:
        settings = given_settings(**{name: options.pop(name) for name in shared})
        command(**options, **{SETTINGS: settings})

    spliced = {each.name: each for each in _spliced(parameters_of(command), shared)}
    with_them.__signature__ = inspect.Signature([*spliced.values()])  # type: ignore[attr-defined]
    with_them.__annotations__ = {name: each.annotation for name, each in spliced.items()}
    return with_them


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A function's, by name, as keywords, whose order is free where some have defaults; annotations resolved."""
    annotations = get_type_hints(function, include_extras=True)
    return {
        name: each.replace(annotation=annotations[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in inspect.signature(function).parameters.items()
    }


def _spliced(own: dict[str, inspect.Parameter], shared: dict[str, inspect.Parameter]) -> Iterator[inspect.Parameter]:
    for name, each in own.items():
        yield from shared.values() if name == SETTINGS else [each]
