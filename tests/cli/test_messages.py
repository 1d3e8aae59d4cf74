"""Commands speak of options: what the library says of its arguments is put into their words, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tamis.cli.main import app
from tamis.cli.messages import find_options, rewrite_in_options

OPTIONS = {"levels": "--levels", "c_alpha": "--c-alpha", "biases": "--biases", "include": "--include", "data": "--data"}
OPTIONS |= {
    "conv": "--conv",
    "shape": "--shape",
    "by": "--by",
    "max_disagreement": "--max-disagreement",
    "out": "-o FILE",
}


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("levels=1 must be 2 or more", "--levels 1 must be 2 or more"),
        ("c_alpha=-1.0 must be positive", "--c-alpha -1.0 must be positive"),
        ("leave out c_alpha=2.0.", "leave out --c-alpha 2.0."),
        ("by='foo bar' is no criterion", "--by 'foo bar' is no criterion"),
        ("biases=True needs conv='joint': a bias", "--biases needs --conv joint: a bias"),
        ("include=['a', 'b'] and c_alpha=None leave", "--include a --include b and no --c-alpha leave"),
        ("pass example=, or data=NAME", "pass --shape, or --data NAME"),
        ("it is said: levels must be few; data needs labels", "it is said: --levels must be few; --data needs labels"),
        ("fewer levels than data has", "fewer levels than data has"),
        ("no max_disagreement was met", "no --max-disagreement was met"),
        ("'levels=3' of 'a/max_disagreement.npz' and other=3", "'levels=3' of 'a/max_disagreement.npz' and other=3"),
        ("recipe: budget.max_disagreement: it must be less", "--max-disagreement must be less"),
        (
            "mine.yaml:3:1: budget.max_disagreement: it must be less",
            "mine.yaml:3:1: budget.max_disagreement: it must be less",
        ),
        (
            "or call tamis.repair afterwards, with tamis.load(x)",
            "or call `tamis repair` afterwards, with tamis.load(x)",
        ),
        ("a == b, levels==3", "a == b, levels==3"),
        ("runs/levels=4/q.tamis or levels=4.json", "runs/levels=4/q.tamis or levels=4.json"),
        ("'my c_alpha runs/levels=4: levels must' is there", "'my c_alpha runs/levels=4: levels must' is there"),
        (
            "by='mine:net' failed: ValueError: levels must be 3 (got levels=None)",
            "--by mine:net failed: ValueError: levels must be 3 (got levels=None)",
        ),
        ("name another place by directory=, to begin", "name another place by -o FILE, to begin"),
    ],
)
def test_arguments_become_options(said: str, heard: str) -> None:
    assert rewrite_in_options(said, OPTIONS, {"repair", "load"}) == heard


def test_groups_have_the_options_of_all_their_commands() -> None:
    group = typer.main.get_command(app)
    assert find_options(group.commands["sweep"])["storage"] == "--storage"  # type: ignore[attr-defined]
    assert find_options(group.commands["quantize"])["out"] == "-o FILE"  # type: ignore[attr-defined]


MLP = "tamis.training.models:mlp"
QUANTIZE = ["quantize", MLP, "--calibration", "digits:train[:20]", "-o", "s.tamis"]
PRUNE = ["prune", MLP, "--amount", "0.5", "-o", "s.tamis"]
TRAIN = ["train", MLP, "--data", "digits:train[:20]", "--epochs", "1", "--directory", "d", "-o", "w.safetensors"]
ONLINE = ["online", "--data", "digits", "--space", "dense", "--rounds", "2"]
COMPRESS = ["compress", MLP, "--data", "digits", "-o", "out"]
WRONG = [
    ([*QUANTIZE, "--levels", "1"], "--levels 1 must be a whole number"),
    ([*QUANTIZE, "--method", "foo"], "--method foo is not a quantizer"),
    ([*QUANTIZE, "--c-alpha", "-1"], "--c-alpha -1.0 must be a positive number"),
    ([*QUANTIZE, "--levels", "3", "--bits", "2"], "got --levels 3 and --bits 2"),
    ([*QUANTIZE, "--biases", "--conv", "per_channel"], "--biases needs --conv joint"),
    ([*PRUNE, "--by", "foo"], "--by foo is not a criterion"),
    ([*PRUNE, "--by", "obs"], "pass --calibration"),
    ([*PRUNE, "--scope", "foo"], "--scope foo must be one of"),
    ([*TRAIN, "--batch", "0"], "--batch must be a whole number"),
    ([*TRAIN, "--learning-rate", "-1"], "--learning-rate must be a number > 0"),
    ([*TRAIN, "--schedule", "multistep"], "--milestones must be given with --schedule multistep"),
    ([*ONLINE, "--lam", "-1"], "--lam must be a finite number above 0, got --lam -1.0"),
    ([*COMPRESS, "--target-bytes", "x"], "--target-bytes must be a number of bytes"),
    (["compress", MLP, "--recipe", "ternary", "-o", "out"], "or pass --data NAME"),
]


@pytest.mark.parametrize(("arguments", "part"), WRONG, ids=lambda value: " ".join(value[-2:]))
def test_commands_speak_of_options(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    line = result.stderr.strip().splitlines()[-1]
    assert result.exit_code == 2 and part in line
    names = find_options(typer.main.get_command(app).commands[arguments[0]])  # type: ignore[attr-defined]
    assert not [name for name in names if re.search(rf"(?<![\w-]){name}=", line)]
