"""Every command that trains has these options, which are those of `tamis.training.Settings`."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from tamis.cli.option_groups import Group, settings_group
from tamis.settings import Training


def _make_group() -> Group:
    """Make the options of a training; what is not given is left to the settings themselves."""
    group = settings_group(Training)
    # Milestones are typed as one text, and an empty one is none.
    annotation = group.parameters["milestones"].annotation
    optional = Annotated[str | None, *annotation.__metadata__]
    milestones = group.parameters["milestones"].replace(default=None, annotation=optional)

    def collect(**options: Any) -> dict[str, Any]:
        return {name: value for name, value in group.collect(**options).items() if value is not None}

    return dataclasses.replace(group, collect=collect, parameters={**group.parameters, "milestones": milestones})


TrainingGroup = Annotated[dict[str, Any], _make_group()]
