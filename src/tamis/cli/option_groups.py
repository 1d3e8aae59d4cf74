"""Groups of options that a command takes as one argument: the model, the settings of a method, those of training."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from tamis.cli.setting_values import PARSERS


@dataclass(frozen=True)
class Group:
    """Options that stand for one parameter of a command, whose annotation is `Annotated[…, Group(…)]`.

    Attributes:
        collect: makes the argument of the options, by their names.
        parameters: the options; by default the parameters of `collect`.
    """

    collect: Callable[..., Any]
    parameters: dict[str, inspect.Parameter] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.parameters:
            object.__setattr__(self, "parameters", list_parameters(self.collect))


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of each group in the place of the parameter that stands for it.

    Options that must be given come first, as a command's help should have them.

    Example:
        >>> from tamis.cli.options import Json, ModelGroup
        >>> @with_groups
        ... def inspect(model: ModelGroup, as_json: Json = False) -> None:
        ...     print(model.model, as_json)
        >>> inspect(model="mlp", weights=None, shape="64", trust=False, as_json=True)
        mlp True
    """
    own = list_parameters(command)
    groups = {name: group for name, each in own.items() if (group := _find_group(each)) is not None}

    @functools.wraps(command)
    def with_options(**options: Any) -> None:
        taken = {
            name: group.collect(**{option: options.pop(option) for option in group.parameters})
            for name, group in groups.items()
        }
        command(**options, **taken)

    spliced = sorted(_splice(own, groups), key=lambda each: each.default is not inspect.Parameter.empty)
    with_options.__signature__ = inspect.Signature(spliced)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in spliced}
    return with_options


def list_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a function's parameters, annotations resolved, as keywords: their order is free whatever has a default."""
    annotations = get_type_hints(function, include_extras=True)
    return {
        name: each.replace(annotation=annotations[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, each in inspect.signature(function).parameters.items()
    }


def _find_group(parameter: inspect.Parameter) -> Group | None:
    return next((each for each in getattr(parameter.annotation, "__metadata__", ()) if isinstance(each, Group)), None)


def _splice(own: dict[str, inspect.Parameter], groups: dict[str, Group]) -> Iterator[inspect.Parameter]:
    for name, each in own.items():
        yield from groups[name].parameters.values() if name in groups else [each]


# -- the settings of a method ------------------------------------------------------------------------------------------


def make_settings_group(settings: type, only: Collection[str] = (), **defaults: Any) -> Group:
    """Make the options of a method from its settings object; the command gets them as keywords of the Python call.

    Args:
        settings: the settings object.
        only: the settings that the command has, where it has some of them and not all.
        defaults: of the options that have others than the settings.
    """
    fields = {field.name: field for field in dataclasses.fields(settings) if not only or field.name in only}

    def keywords(**options: Any) -> dict[str, Any]:
        return {name: _choose_value(fields[name], given) for name, given in options.items()}

    return Group(
        keywords,
        {name: _make_parameter(field, defaults.get(name, field.default), [*fields]) for name, field in fields.items()},
    )


def _choose_value(field: dataclasses.Field[Any], given: Any) -> Any:
    if field.name not in PARSERS:
        return given
    return field.default if given is None else PARSERS[field.name].parse(given)


def _make_parameter(field: dataclasses.Field[Any], default: Any, names: list[str]) -> inspect.Parameter:
    required, typed = default is dataclasses.MISSING, field.metadata["typed"]
    if isinstance(default, tuple):
        default = ",".join(map(str, default)) or None  # as one types it
    kind: Any = list[str] if typed is list else typed
    declarations = []
    if typed is bool:
        option = f"--{field.name.replace('_', '-')}"
        # What is on unless one says otherwise, or left to the method, can be turned off as well.
        declarations = [option if default is False else f"{option}/--no-{option[2:]}"]
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=Annotated[
            kind if required or default is not None else kind | None,
            typer.Option(*declarations, metavar=field.metadata["metavar"], help=_help(field, names)),
        ],
    )


def _help(field: dataclasses.Field[Any], names: list[str]) -> str:
    """Return the help of a setting with options in the place of settings, and how its value is written."""

    def option(name: re.Match[str]) -> str:
        return f"--{name[1].replace('_', '-')}" if name[1] in names else name[0]

    text = re.sub(r"`(\w+)`", option, field.metadata["help"])
    written = PARSERS[field.name].written if field.name in PARSERS else ""
    return " ".join(filter(None, [text, written or ("May be repeated." if field.metadata["typed"] is list else "")]))
