"""`tamis compile` as a user calls it: what it shows, the program that it writes, what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tamis
from tamis.artifact import format
from tamis.binary import BinaryLinear, binarize, compile, pack_network
from tamis.cli.main import app
from tamis.kernels import binary_kernel
from tamis.training.models import digits_cnn, mlp

CNN, MLP = "tamis.training.models:digits_cnn", "tamis.training.models:mlp"
X = torch.zeros(1, 1, 8, 8)


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["compile", *map(str, arguments)], catch_exceptions=False)


def run(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def write(factory: Any, path: str, **how: Any) -> nn.Module:
    """A file as `tamis binarize` writes it; the network that it holds."""
    torch.manual_seed(0)
    how = {"scale": "rank_one", "estimator": "clipped", "keep": ("first", "last"), **how}
    model = binarize(factory(), example=X, **how)
    for _ in range(3):
        model(torch.randn(16, 1, 8, 8))
    pack_network(model, X, [{"step": "binarize", **how, "keep": list(how["keep"])}]).save(path)
    return model.eval()


def test_it_shows_every_layer_its_size_and_the_kernel() -> None:
    model = write(digits_cnn, "small.tamis")
    text = run(CNN, "small.tamis")
    assert re.search(r"^second\.0 +18,432 +[\d,]+ +1/1\d\.\d +floats +floats$", text, re.MULTILINE)
    assert re.search(r"^total +27,648 ", text, re.MULTILINE)
    kernel, reason = binary_kernel()
    assert f"{kernel}: {reason}" in " ".join(text.split())
    assert "equal those of the trained layers bit for bit, on 4 random inputs" in " ".join(text.split())
    compiled = compile(model)
    memory = sum(value.nbytes for value in [*compiled.parameters(), *compiled.buffers()])
    assert f"{memory:,} bytes" in text and max(map(len, text.splitlines())) <= 100
    assert [path.name for path in Path().iterdir()] == ["small.tamis"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"scale": "analytic"}, {"scale": "channel", "estimator": "rsign", "keep": ("last",)}])
def test_it_makes_binary_what_was_made_binary(how: dict[str, Any]) -> None:
    write(lambda: mlp((64, 32, 32, 10)), "small.tamis", **how)
    told = json.loads(run(MLP, "small.tamis", "--json"))
    assert told["largest_difference"] == 0
    layers = {layer["name"]: (layer["input"], layer["output"]) for layer in told["layers"]}
    expected = {"linear2": ("floats", "floats")}
    if "keep" in how:
        expected = {"linear1": ("floats", "bits"), "linear2": ("bits", "floats")}  # a ReLU is between them
    assert layers == expected
    assert told["bytes"]["file"] == Path("small.tamis").stat().st_size
    assert told["bytes"]["compiled"] < told["bytes"]["floats"]
    assert told["kernel"]["name"] == binary_kernel()[0] and told["file"] is None


@pytest.mark.slow
def test_the_program_that_it_writes_computes_the_same() -> None:
    model = write(digits_cnn, "small.tamis")
    assert "saved new/compiled.pt2, " in run(CNN, "small.tamis", "-o", "new/compiled.pt2")
    program = torch.export.load("new/compiled.pt2").module()
    for batch in (1, 5):
        x = torch.randn(batch, 1, 8, 8)
        with torch.no_grad():
            assert torch.equal(program(x), model(x))


def test_a_factory_whose_layers_are_binary_already() -> None:
    Path("mine.py").write_text(
        "from torch import nn\nfrom tamis.binary import BinaryLinear\n"
        "def net(): return nn.Sequential(nn.Linear(6, 9), BinaryLinear(9, 9), BinaryLinear(9, 2))\n"
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), BinaryLinear(9, 9), BinaryLinear(9, 2))
    pack_network(model, torch.zeros(1, 6)).save("small.tamis")
    told = json.loads(run("mine:net", "small.tamis", "--json"))
    assert [(layer["name"], layer["input"]) for layer in told["layers"]] == [("1", "floats"), ("2", "bits")]


def test_a_compiled_network_that_differs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    write(mlp, "small.tamis")
    monkeypatch.setattr("tamis.cli.compile.compile_module", lambda _: mlp().eval())
    result = invoke(MLP, "small.tamis", "-o", "compiled.pt2")
    assert result.exit_code == 2 and "the compiled network differs by" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["small.tamis"]


@pytest.fixture(scope="module")
def wrong_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A sound file, and others that are not."""
    folder = tmp_path_factory.mktemp("files")
    write(digits_cnn, str(folder / "small.tamis"))
    tamis.prune(digits_cnn(), 0.5, by="magnitude", example=X).save(folder / "pruned.tamis")
    format.write(folder / "bare.tamis", {"fc.weight": torch.ones(2)}, {}, {})
    small, pruned, bare = ((folder / name).read_bytes() for name in ("small.tamis", "pruned.tamis", "bare.tamis"))
    damaged, forged = small[:-1] + bytes([small[-1] ^ 1]), (2**40).to_bytes(8, "little") + small[8:]
    contents = {
        "small": small,
        "pruned": pruned,
        "bare": bare,
        "damaged": damaged,
        "forged": forged,
        "text": b"no such",
    }
    return {f"{name}.tamis": content for name, content in contents.items()}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ((CNN, "none.tamis"), "no such file or directory: none.tamis"),
        ((CNN, "text.tamis"), "text.tamis is not a .tamis file, or one whose beginning was changed"),
        ((CNN, "forged.tamis"), "forged.tamis is truncated or was changed"),
        ((CNN, "bare.tamis"), "bare.tamis was made for another model than this one: it lacks 'first.0.weight'"),
        ((CNN, "damaged.tamis"), "damaged.tamis is truncated or was changed"),
        (
            (CNN, "pruned.tamis"),
            "'pruned.tamis' is not of `tamis binarize`, and tamis.training.models:digits_cnn()",
        ),
        ((MLP, "small.tamis"), "small.tamis"),
        (("m.pt2", "small.tamis"), "compile needs package.module:factory; 'm.pt2' is a program"),
        ((CNN, "small.tamis", "-o", "compiled.onnx"), "-o must end in .pt2, got 'compiled.onnx'"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], part: str, wrong_files: dict[str, bytes]) -> None:
    for name, content in wrong_files.items():
        Path(name).write_bytes(content)
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1 and part in result.stderr
