"""--resize, --mean and --std: every command that takes data has them, and they reach what reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from tamis.cli.image_options import DATA, with_images
from tamis.cli.main import app
from tamis.errors import InvalidInput

heard: dict[str, Any] = {}
own = typer.Typer()


@own.command()
@with_images
def listen(model: str, data: str, test: str | None = None) -> None:
    heard.update(model=model, data=data, test=test)


def invoke(*arguments: str, of: typer.Typer = own) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(of, arguments)


def test_they_become_part_of_the_names_of_data() -> None:
    settings = ("--resize", "48x64", "--mean", "0.5,0.4,.3", "--std", "0.25")
    assert invoke("net", "pets:train", "--test", "pets:test[:9]", *settings).exit_code == 0
    ending = "@resize=48x64@mean=0.5,0.4,.3@std=0.25"
    assert heard == {"model": "net", "data": f"pets:train{ending}", "test": f"pets:test[:9]{ending}"}
    assert invoke("net", "pets").exit_code == 0
    assert heard == {"model": "net", "data": "pets", "test": None}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resize", "big"), "--resize must be a size in pixels, as 224, or HEIGHTxWIDTH, as 48x64; got 'big'"),
        (("--mean", "a,b", "--std", "1"), "--mean must be numbers with commas between"),
        (("--mean", "0.5"), "--mean and --std go together"),
    ],
)
def test_what_they_cannot_be(options: tuple[str, ...], message: str) -> None:
    raised = invoke("net", "pets", *options).exception
    assert isinstance(raised, InvalidInput) and message in str(raised)


def test_every_command_that_reads_data_has_them() -> None:
    group = typer.main.get_command(app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        parameters = {each.name for each in command.params}
        if parameters & {*DATA} and name != "online":  # whose streams are not read as images of a network's inputs
            assert {"resize", "mean", "std"} <= parameters, name


def test_a_recipe_alone_names_its_data_with_them() -> None:
    result = invoke("compress", "tamis.training.models:mlp", "--recipe", "ternary", "-o", "x", "--resize", "8", of=app)
    assert result.exit_code == 2 and "say how to read --data or --test, which is not given" in result.stderr


def test_a_folder_of_images_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for number in range(6):
        folder = tmp_path / "marks" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(draw.integers(0, 256, (9 + number, 12), np.uint8)).save(folder / f"{number}.png")
    command = ["quantize", "tamis.training.models:mlp", "--calibration", "marks", "-o", "small.tamis", "--c-alpha", "2"]
    result = invoke(*command, of=app)
    assert result.exit_code == 2 and "bring them to one with --resize 64" in result.stderr
    result = invoke(*command, "--resize", "8", "--mean", "0.5", "--std", "0.25", "--json", of=app)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["recipe"][-1]["calibration"] == "marks@resize=8@mean=0.5@std=0.25"
