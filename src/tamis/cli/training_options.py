"""Every command that trains has these options, which are those of `tamis.training.Settings`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from tamis.cli.option_groups import Group, make_settings_group
from tamis.settings import Training


def _make_group() -> Group:
    """Make the options of a training; what is not given is left to the settings themselves."""
    group = make_settings_group(Training)

    def collect(**options: Any) -> dict[str, Any]:
        return {name: value for name, value in group.collect(**options).items() if value is not None}

    return dataclasses.replace(group, collect=collect)


TrainingGroup = Annotated[dict[str, Any], _make_group()]
