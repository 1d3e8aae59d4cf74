"""All settings of training, none of them at its default, and the options that give them: for commands that train."""

from __future__ import annotations

from dataclasses import asdict

from tamis.training import Settings

EVERY_SETTING = Settings(
    epochs=3,
    batch=50,
    optimizer="adamw",
    learning_rate=0.003,
    momentum=0.8,
    weight_decay=0.05,
    schedule="multistep",
    milestones=(1, 2),
    warmup_epochs=1,
    augment=True,
    seed=5,
    amp=True,
)


def options_of_every_setting() -> list[object]:
    """As on the command line."""
    given: list[object] = []
    for name, value in asdict(EVERY_SETTING).items():
        assert value != getattr(Settings(epochs=1), name), f"the default of {name} would prove nothing"
        written = {"milestones": ["1,2"], "augment": [], "amp": []}.get(name, [value])
        given += [f"--{name.replace('_', '-')}", *written]
    return given
