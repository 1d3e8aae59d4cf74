"""The demo as a user types it, once; the other checks are made on what it left behind."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import tamis
import tamis.cli.demo
from tamis.cli.main import app
from tamis.graph.trace import network_from_program
from tamis.training.digits import digits
from tamis.training.models import digits_cnn


def run_tamis(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    package = str(Path(tamis.__file__).parents[1])  # found from any directory, installed or not
    environment = {**os.environ, "PYTHONPATH": package, "COLUMNS": "100"}
    command = [sys.executable, "-m", "tamis", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Size:
    """How wide the network is, how many weights it has, and how good it and what is made of it are at least, in %."""

    width: int
    parameters: int
    accuracy: float
    on_levels: float
    lost_by_magnitude: float
    share_of_floats: float


FULL = Size(32, 28_842, 98.5, 96, 20, 1 / 8)
SMALL = Size(16, 7_514, 93, 90, 12, 1 / 6)


def shrink(patch):
    """Have the demo train half the channels for a third of the time, with which it does all the same things."""
    patch.setattr(tamis.cli.demo, "digits_cnn", lambda: digits_cnn(SMALL.width))
    patch.setattr(tamis.cli.demo, "SETTINGS", replace(tamis.cli.demo.SETTINGS, epochs=6, warmup_epochs=2))


@pytest.fixture(scope="module", params=[SMALL, pytest.param(FULL, marks=pytest.mark.slow)], ids=["small", "full"])
def size(request):
    return request.param


@pytest.fixture(scope="module")
def demo(size, tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        if size is SMALL:
            shrink(patch)
        finished = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["demo"])
    assert finished.exit_code == 0, finished.stderr
    return directory, finished


@pytest.fixture(scope="module")
def net(demo):
    """The network that was trained, as its program holds it."""
    return network_from_program(torch.export.load(demo[0] / "out" / "demo" / "digits.pt2"))


def test_what_it_prints(demo, size):
    _, finished = demo
    assert all(line.startswith("training ") for line in finished.stderr.splitlines())  # no warning, no error
    assert float(re.search(r"test accuracy (\S+)%,", finished.stdout)[1]) >= size.accuracy
    assert "(batch, 1, 8, 8)" in finished.stdout
    assert "tamis inspect out/demo/digits.pt2" in finished.stdout
    assert max(map(len, finished.stdout.splitlines())) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("size", [FULL], indirect=True)
def test_the_same_for_machines(demo, tmp_path):
    _, shown = demo
    finished = run_tamis("demo", "--json", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    for name, row in found["networks"].items():
        assert re.search(rf"{name}\s+{row['accuracy']:.1%}\s+{row['bytes']:,}\s*$", shown.stdout, re.MULTILINE)
    assert sorted(found["files"]) == sorted(path.name for path in (tmp_path / found["folder"]).iterdir())


def test_rescaling_leaves_the_path_norm_and_not_the_product(demo):
    _, finished = demo
    rows = {
        name: re.search(rf"^{name}\s+(\S+)\s+(\S+)\s*$", finished.stdout, re.MULTILINE).groups()
        for name in ("test accuracy", "path-norm", "product of layer norms")
    }
    assert len(set(rows["test accuracy"])) == len(set(rows["path-norm"])) == 1
    before, after = rows["product of layer norms"]
    assert after.startswith("10^") and before != after
    assert re.search(r"^largest change of an output\s+0\s*$", finished.stdout, re.MULTILINE)


def test_rescaling_leaves_pruning_by_phi_and_not_by_magnitude(demo, size, net):
    _, finished = demo
    shown = {
        by: re.search(rf"^by {name}\s+(\S+)%\s+(\S+)%\s*$", finished.stdout, re.MULTILINE).groups()
        for by, name in (("phi", "Φ-cost"), ("magnitude", "magnitude"))
    }
    assert len(set(shown["phi"])) == 1
    assert float(shown["magnitude"][1]) < float(shown["magnitude"][0]) - size.lost_by_magnitude
    images, labels = digits("test")
    for by, accuracies in shown.items():
        for network, accuracy in zip((net, tamis.rescale(net, 0)), accuracies, strict=True):
            scores = tamis.prune(network, 0.8, by=by).network(images)
            assert f"{100 * float((scores.argmax(1) == labels).float().mean()):.1f}" == accuracy


def test_three_levels_are_enough(demo, size, net):
    _, finished = demo
    found = re.search(r"^on 3 levels\s+(\S+)%\s+(\S+)\s*$", finished.stdout, re.MULTILINE)
    images, labels = digits("test")
    small = tamis.quantize(net, "digits:train", 3, progress=False)
    accuracy = 100 * float((small.network(images).argmax(1) == labels).float().mean())
    assert (
        float(found[1]) == pytest.approx(accuracy, abs=0.6) and accuracy > size.on_levels
    )  # two images: sums may be rounded
    assert int(found[2].replace(",", "")) < 4 * size.parameters * size.share_of_floats


def test_the_last_one_is_pruned_and_quantized_and_its_page_is_there(demo, size):
    directory, finished = demo
    saved = directory / "out" / "demo"
    tiny = tamis.load(saved / "tiny.tamis", digits_cnn(size.width))
    assert [step["step"] for step in tiny.recipe] == ["prune", "quantize", "repair"]
    assert abs(tiny.masks.sparsity - 0.5) < 0.001
    disagreement = next(c for c in json.loads((saved / "tiny.json").read_text())["claims"] if c["informative"])
    shown, page = (" ".join(text.split()) for text in (finished.stdout, (saved / "report.html").read_text()))
    assert disagreement["sentence"] in shown and disagreement["sentence"] in page


def test_the_pruned_network_is_saved(demo, size, net):
    directory, finished = demo
    saved = directory / "out" / "demo"
    small, expected = tamis.load(saved / "small.tamis", digits_cnn(size.width)), tamis.prune(net, 0.8)
    assert all(torch.equal(value, expected.params[name]) for name, value in small.params.items())
    assert dict(small.masks).keys() == dict(expected.masks).keys() and small.masks.pruned == expected.masks.pruned
    whole, left = (saved / "digits.safetensors").stat().st_size, (saved / "small.tamis").stat().st_size
    assert f"{left:,} bytes, {left / whole:.0%} of the weights as floats" in finished.stdout


def test_the_files_hold_the_network_that_was_measured(demo, size, net):
    directory, finished = demo
    saved = directory / "out" / "demo"
    files = ["digits.pt2", "digits.safetensors", "report.html", "small.tamis", "tiny.json", "tiny.tamis"]
    assert sorted(path.name for path in saved.iterdir()) == files
    model = digits_cnn(size.width)
    assert sum(value.numel() for value in model.parameters()) == size.parameters
    model.load_state_dict(load_file(saved / "digits.safetensors"))
    images, labels = digits("test")
    with torch.no_grad():
        scores = model.eval()(images)
    right = int((scores.argmax(1) == labels).sum())
    assert f"test accuracy {right / len(labels):.1%}, {right} of 360" in finished.stdout
    torch.testing.assert_close(net(images), scores)


@pytest.mark.slow
@pytest.mark.parametrize("size", [FULL], indirect=True)
def test_the_next_commands_work(demo):
    directory, finished = demo
    commands = re.findall(r"^(?:try next|  +)  tamis (.*?) *$", finished.stdout, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["inspect", "inspect", "verify"]
    for command in commands:
        finished = run_tamis(*command.split(), "--json", cwd=directory)
        assert (finished.returncode, finished.stderr) == (0, "")
        shown = json.loads(finished.stdout)
        assert shown["ok"] if command.startswith("verify") else shown["parameters"] == FULL.parameters


def test_a_directory_that_cannot_be_made_is_said_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "file" / "demo")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: not a directory: ")
