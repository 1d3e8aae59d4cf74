"""The commands that pages print: pasted into a shell, they do what the page says that they do."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import tamis.reports.comparison
from tamis.cli.main import app
from tamis.training import load_data

MLP = "tamis.training.models:mlp"
RECIPE = "steps:\n- {step: quantize, method: msq, levels: 4, c_alpha: 2.0}\n"
NET = """from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
DATA = """from tamis.training import load_data

learned = load_data("digits:train[:200]")


def asked():
    return load_data("digits:test[:120]")
"""


@pytest.fixture(autouse=True)
def in_a_directory_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that says no shape, its weights, and data in Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tamis.reports.comparison, "SECONDS", 0.0)
    Path("printed_net.py").write_text(NET)
    Path("printed_data.py").write_text(DATA)
    Path("four.yaml").write_text(RECIPE)
    generator = torch.Generator().manual_seed(0)
    weights = {"1.weight": torch.randn(10, 64, generator=generator), "1.bias": torch.zeros(10)}
    torch.save(weights, "my weights.pth")


NAMED = ("printed_net:net", "--weights", "my weights.pth")
IN_PYTHON = ("--data", "printed_data:learned", "--test", "printed_data:asked")


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, list(map(str, arguments)), catch_exceptions=False)


def printed(page: str, command: str) -> str:
    """The command on a page, as a browser shows it."""
    found = re.search(rf"tamis {command} .*", html.unescape(re.sub("<[^<]+>", "", Path(page).read_text("utf-8"))))
    assert found is not None
    return found[0]


def pasted(command: str) -> Any:
    return invoke(*shlex.split(command)[1:])


def verified(page: str) -> None:
    result = pasted(printed(page, "verify"))
    assert result.exit_code == 0 and "\nverified" in result.stdout, result.stderr


@pytest.mark.slow
def test_of_a_budget() -> None:
    """Half of the test data went into the search: the certificate names the other half, and a command finds it."""
    Path("budget.yaml").write_text("budget: {target_bytes: 1000, starts: [[]]}\n")
    result = invoke("compress", *NAMED, "--shape", "1,8,8", "--recipe", "budget.yaml", *IN_PYTHON, "-o", "out")
    assert result.exit_code == 0, result.stderr
    said = tamis.Certificate.load("out/certificate.json").content["data"]
    assert (said["name"], said["given"]) == ("printed_data:asked@rest=0.5,0", 60)
    assert " --shape 1,8,8 " in printed("out/report.html", "verify")
    verified("out/report.html")
    again = pasted(printed("out/report.html", "compress"))
    assert again.exit_code == 0, again.stderr
    assert Path("again/small.tamis").read_bytes() == Path("out/small.tamis").read_bytes()


def test_of_what_was_required_and_missed() -> None:
    first = invoke("compress", *NAMED, "--recipe", "four.yaml", *IN_PYTHON, "--max-accuracy-drop", "0.01pt", "-o", "o")
    again = pasted(printed("o/report.html", "compress"))
    assert (first.exit_code, again.exit_code) == (3, 3)
    verified("o/report.html")  # nobody said the shape of an input, but the data has it
    asked = [tamis.Certificate.load(f"{out}/certificate.json").content["requirements"] for out in ("o", "again")]
    assert asked[0] and asked[0] == asked[1]
    lifted = invoke(*shlex.split(printed("o/report.html", "compress"))[1:], "--max-accuracy-drop", "100%")
    assert lifted.exit_code == 0 and "max_accuracy_drop: 1.0" in Path("again/recipe.lock.yaml").read_text()
    lock = yaml.safe_load(Path("o/recipe.lock.yaml").read_text())
    del lock["requirements"]  # as files had it before
    Path("old.yaml").write_text(yaml.safe_dump(lock))
    assert invoke("compress", *NAMED, "--recipe", "old.yaml", *IN_PYTHON, "-o", "old").exit_code == 0


def test_of_data_without_labels() -> None:
    np.savez("plain.npz", x=load_data("digits:test[:50]").normalised().numpy())
    given = ("--data", "digits:train[:100]", "--test", "plain.npz", "-o", "out")
    assert invoke("compress", *NAMED, "--recipe", "four.yaml", *given).exit_code == 0
    verified("out/report.html")


def test_of_a_certificate_with_training_data() -> None:
    small = tamis.prune(tamis.cli.model_argument.load_network(MLP).network, 0.5, by="magnitude")
    small.save("small.tamis")
    given = ("--data", "digits:test[:100]", "--training", "digits:train[:200]")
    assert invoke("certify", MLP, "small.tamis", *given, "-o", "small.json").exit_code == 0
    assert invoke("report", "small.json", "-o", "page.html").exit_code == 0
    verified("page.html")


@pytest.mark.slow
def test_of_a_program_that_is_trusted() -> None:
    """Whoever checks it has to trust it as well."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    batch = {0: torch.export.Dim("batch")}
    torch.export.save(torch.export.export(module, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=(batch,)), "m.pt2")
    given = ("--data", "digits:train[:100]", "--test", "digits:test[:50]", "-o", "out")
    assert invoke("compress", "m.pt2", "--trust", "--recipe", "four.yaml", *given).exit_code == 0
    assert " m.pt2 --trust --data " in printed("out/report.html", "verify")
    verified("out/report.html")


@pytest.mark.slow
def test_of_a_sweep() -> None:
    data = {"train": "printed_data:learned", "test": "printed_data:asked"}
    spec = {"model": NAMED[0], "weights": NAMED[2], "data": data, "recipe": yaml.safe_load(RECIPE), "trials": 1}
    Path("s.yaml").write_text(yaml.safe_dump(spec))
    result = invoke("sweep", "s.yaml", "-o", "swept", "--max-accuracy-drop", "0.01pt")
    assert result.exit_code == 3, result.stderr
    verified("swept/report.html")
    assert pasted(printed("swept/report.html", "compress")).exit_code == 3
