"""`tamis quantize` as a user calls it: the library's quantization, what it prints, how it goes on, what it refuses."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tamis
from tamis.cli.main import app
from tamis.cli.model_argument import load_network
from tamis.cli.setting_values import parse_c_alpha, parse_levels
from tamis.cli.unfinished import open_parts_directory
from tamis.errors import InvalidInput
from tamis.layerwise.journal import LayerJournal
from tamis.training import join_team, load_data
from tamis.training.models import MODELS

MLP, CNN = "tamis.training.models:mlp", "tamis.training.models:digits_cnn"
SIZES = {"linear1.weight": 64 * 32, "linear2.weight": 32 * 32, "linear3.weight": 32 * 10}
TOTAL = sum(SIZES.values())
FLOATS = 4 * (TOTAL + 32 + 32 + 10)
DATA, TEST = "digits:train[:150]", "digits:test[:100]"
QUICK = ("--calibration", DATA, "-o", "small.tamis")


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["quantize", *map(str, arguments)], catch_exceptions=False)


def run_quantize(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    assert all(line.startswith("quantize ") for line in result.stderr.splitlines())  # how far it is
    return result.stdout


def quantized_as_json(*arguments: object) -> dict[str, Any]:
    return json.loads(run_quantize(*arguments, "--json"))


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    return load_network(MLP).network


@pytest.fixture(scope="module")
def ternary(net: tamis.Network) -> tamis.Compressed:
    return tamis.quantize(net, DATA, levels=3, progress=False)


def assert_same(small: tamis.Compressed, other: tamis.Compressed) -> None:
    assert small.params.keys() == other.params.keys()
    assert all(torch.equal(value, other.params[name]) for name, value in small.params.items())
    assert small.masks.keys() == other.masks.keys() and small.codes.keys() == other.codes.keys()
    assert all(torch.equal(mask, other.masks[name]) for name, mask in small.masks.items())
    assert all(torch.equal(code.indices, other.codes[name].indices) for name, code in small.codes.items())
    assert list(small.recipe) == json.loads(json.dumps(list(other.recipe)))


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "levels"),
    [("3", 3), (" 16 ", 16), ("-1,0,1", [-1.0, 0.0, 1.0]), ("-.5, 1e-3", [-0.5, 0.001]), ("0.5", [0.5])],
)
def test_levels(text: str, levels: Any) -> None:
    assert parse_levels(text) == levels
    assert type(parse_levels(text)) is type(levels)


@pytest.mark.parametrize("text", ["", "three", "1;2", "1,", ",1", "1,,2"])
def test_levels_that_are_none(text: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^--levels must be how many levels \(3\), or a sorted .*; got '{text}'$"):
        parse_levels(text)


def test_multiples() -> None:
    assert parse_c_alpha("2") == 2.0
    assert parse_c_alpha("1,2.5,4") == [1.0, 2.5, 4.0]
    with pytest.raises(InvalidInput, match=r"^--c-alpha must be a positive number \(2\.5\), .*; got 'large'$"):
        parse_c_alpha("large")


# -- what is quantized -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ([], {"levels": 3}),
        (["--levels", "5", "--method", "gpfq", "--c-alpha", "2"], {"levels": 5, "method": "gpfq", "c_alpha": 2.0}),
        (["--bits", "4", "--method", "msq", "--per", "layer"], {"bits": 4, "method": "msq", "per": "layer"}),
        (["--levels", "-0.2,0,0.1"], {"levels": [-0.2, 0.0, 0.1]}),
        (["--c-alpha", "1,2,3", "--order", "natural"], {"c_alpha": [1.0, 2.0, 3.0], "order": "natural"}),
        (["--biases"], {"biases": True}),
        (
            ["--include", "linear1", "--include", "linear2", "--exclude", "*2.*"],
            {"include": ["linear1", "linear2"], "exclude": ["*2.*"]},
        ),
    ],
)
def test_options_are_those_of_the_library(net: tamis.Network, options: list[str], arguments: dict[str, Any]) -> None:
    run_quantize(MLP, *QUICK, *options)
    expected = tamis.quantize(net, DATA, **arguments, progress=False)
    assert_same(tamis.load("small.tamis", MODELS["mlp"]()), expected)


def test_kernels_one_at_a_time() -> None:
    run_quantize(CNN, *QUICK, "--conv", "per_channel", "--include", "first")
    expected = tamis.quantize(load_network(CNN).network, DATA, conv="per_channel", include="first", progress=False)
    assert_same(tamis.load("small.tamis", MODELS["digits_cnn"]()), expected)


def test_the_file_computes_what_was_measured(net: tamis.Network, ternary: tamis.Compressed) -> None:
    shown = quantized_as_json(MLP, *QUICK, "--data", TEST)
    small = tamis.load("small.tamis", MODELS["mlp"]())
    test = load_data(TEST)
    images, labels = test.normalised(), test.labels
    module = small.apply_to(MODELS["mlp"]()).eval()
    with torch.no_grad():
        outputs = module(images)
    torch.testing.assert_close(outputs, ternary.network(images))
    right = {"before": net(images).argmax(1) == labels, "after": outputs.argmax(1) == labels}
    assert shown["accuracy"] == {"data": TEST, **{name: float(each.double().mean()) for name, each in right.items()}}
    for name, code in small.codes.items():  # three values in each row
        assert all(len(row.unique()) <= 3 for row in module.get_parameter(name))
        assert torch.equal(code.levels, torch.tensor([-1.0, 0.0, 1.0]))


def test_pruning_first(net: tamis.Network) -> None:
    text = run_quantize(MLP, *QUICK, "--prune", "60%", "--exclude", "linear3")
    pruned = tamis.prune(net, 0.6, by="magnitude", exclude="linear3")
    expected = tamis.quantize(net, DATA, levels=3, pruned=pruned, exclude="linear3", progress=False)
    small = tamis.load("small.tamis", MODELS["mlp"]())
    assert_same(small, expected)
    assert "linear3.weight" not in small.codes and "linear3.weight" not in small.masks
    assert [step["step"] for step in small.recipe] == ["prune", "quantize"]
    count = round(0.6 * (TOTAL - 320))
    assert small.masks.pruned == count and f"{count:,} of {TOTAL - 320:,} weights" in text


def test_what_a_file_has_pruned_stays_pruned(net: tamis.Network) -> None:
    half = tamis.prune(net, 0.5)
    half.save("half.tamis")
    shown = quantized_as_json(MLP, *QUICK, "--weights", "half.tamis")
    assert shown["weights"] == f"half.tamis, {TOTAL // 2:,} of {TOTAL:,} weights pruned"
    assert_same(tamis.load("small.tamis", MODELS["mlp"]()), tamis.quantize(half, DATA, progress=False))
    again = quantized_as_json(
        MLP, "--calibration", DATA, "-o", "again.tamis", "--weights", "small.tamis", "--prune", "linear1=100"
    )
    assert again["weights"].endswith(f"weights pruned, {TOTAL:,} quantized")
    assert tamis.load("again.tamis", MODELS["mlp"]()).masks.pruned == TOTAL // 2 + 100


def test_a_pt2_file() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    torch.export.save(torch.export.export(model, (torch.zeros(1, 1, 8, 8),)), "m.pt2")
    run_quantize("m.pt2", "--calibration", "digits:train[:1]", "--method", "msq", "-o", "small.tamis")
    expected = tamis.quantize(model, "digits:train[:1]", method="msq", example=torch.zeros(1, 1, 8, 8), progress=False)
    assert_same(tamis.load("small.tamis", model), expected)


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_the_table_and_the_totals(ternary: tamis.Compressed) -> None:
    text = run_quantize(MLP, "--levels", 3, "--calibration", DATA, "--data", TEST, "-o", "out/new/small.tamis")
    rows = {words[0]: words[1:] for words in map(str.split, text.splitlines()) if words}
    zeros = {name: int((ternary.params[name] == 0).sum()) for name in SIZES}
    for name, size in SIZES.items():
        error = ternary.recipe[-1]["layers"][name]["error"]
        assert rows[name] == [f"{size:,}", "3", f"{zeros[name] / size:.1%}", f"{error:.3g}"]
    assert rows["total"] == [f"{TOTAL:,}", f"{sum(zeros.values()) / TOTAL:.1%}"]
    assert f"{TOTAL:,} weights, to 1.58 bits on average" in text
    stored = Path("out/new/small.tamis").stat().st_size
    assert f"{stored:,} on disk, {stored / FLOATS:.1%} of the {FLOATS:,} of its floats" in text
    assert f"on {TEST}, 100 examples" in text
    assert max(map(len, text.splitlines())) <= 100
    assert [path.name for path in Path("out/new").iterdir()] == ["small.tamis"]


def test_json_says_the_same(ternary: tamis.Compressed) -> None:
    shown = quantized_as_json(MLP, *QUICK, "--levels", 3)
    figures = ternary.recipe[-1]["layers"]
    zeros = {name: int((ternary.params[name] == 0).sum()) for name in SIZES}
    assert shown["layers"] == [
        {"name": name, "weights": size, "levels": 3, "zeros": zeros[name], "error": figures[name]["error"]}
        for name, size in SIZES.items()  # as in the model
    ]
    assert shown["total"] == {"weights": TOTAL, "zeros": sum(zeros.values())}
    assert shown["quantized"] == {"weights": TOTAL, "bits": pytest.approx(np.log2(3))}
    assert (shown["bytes"], shown["float_bytes"]) == (Path("small.tamis").stat().st_size, FLOATS)
    assert (shown["model"], shown["file"], shown["accuracy"]) == (MLP, "small.tamis", None)
    assert shown["recipe"] == list(ternary.recipe)


def test_biases_have_rows_without_an_error() -> None:
    shown = quantized_as_json(MLP, *QUICK, "--biases")
    errors = {layer["name"]: layer["error"] for layer in shown["layers"]}
    assert errors["linear1.bias"] is None and errors["linear1.weight"] > 0
    assert shown["quantized"]["weights"] == TOTAL + 32 + 32 + 10


# -- going on ----------------------------------------------------------------------------------------------------------


def record_that_raises(error: BaseException, after: int) -> Any:
    """`LayerJournal.record` that keeps so many layers and then raises."""
    original = LayerJournal.record

    def record(journal: LayerJournal, number: int, *arguments: Any) -> None:
        if number < after:
            original(journal, number, *arguments)
        if number >= after - 1:
            raise error

    return record


def test_a_file_that_is_replaced_is_said_to_be() -> None:
    assert "in place of" not in run_quantize(MLP, *QUICK)
    assert "small.tamis, in place of the one that was there" in run_quantize(MLP, *QUICK)


def test_it_goes_on_where_it_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    run_quantize(MLP, "--calibration", DATA, "-o", "whole.tamis")
    with monkeypatch.context() as patch:
        patch.setattr(LayerJournal, "record", record_that_raises(KeyboardInterrupt(), after=2))
        assert invoke(MLP, *QUICK).exit_code == 130
    finished = sorted(path.name for path in Path("small.tamis.partial").glob("layer_*"))
    assert len(finished) == 2 and not Path("small.tamis").exists()
    result = invoke(MLP, *QUICK, "--json")
    assert result.exit_code == 0
    assert result.stderr.splitlines()[0] == "going on from small.tamis.partial, where 2 layers are finished"
    assert json.loads(result.stdout)["file"] == "small.tamis"
    assert Path("small.tamis").read_bytes() == Path("whole.tamis").read_bytes()
    assert sorted(path.name for path in Path().iterdir()) == ["small.tamis", "whole.tamis"]


@pytest.mark.slow
def test_a_kill_loses_no_finished_layer() -> None:
    script = f"""
import os, sys
from tamis.cli.main import main
from tamis.layerwise.journal import LayerJournal
original = LayerJournal.record
def record(journal, number, *arguments):
    original(journal, number, *arguments)
    if number == 0:
        os.kill(os.getpid(), {int(signal.SIGKILL)})
LayerJournal.record = record
sys.argv = ["tamis", "quantize", {MLP!r}, *{QUICK!r}]
main()
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    result = invoke(MLP, *QUICK)
    assert "going on from small.tamis.partial, where 1 layer is finished\n" in result.stderr
    run_quantize(MLP, "--calibration", DATA, "-o", "whole.tamis")
    assert Path("small.tamis").read_bytes() == Path("whole.tamis").read_bytes()


def test_another_command_does_not_go_on_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LayerJournal, "record", record_that_raises(KeyboardInterrupt(), after=1))
        assert invoke(MLP, *QUICK).exit_code == 130
    result = invoke(MLP, *QUICK, "--method", "msq")
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert "'small.tamis.partial/origin.json' comes from another run: method was 'optq', now it is 'msq'" in last
    assert last.endswith("delete 'small.tamis.partial', or name another place by -o FILE, to begin anew")
    assert len(list(Path("small.tamis.partial").glob("layer_*"))) == 1  # still there for the first command
    run_quantize(MLP, "--calibration", DATA, "--method", "msq", "-o", "other.tamis")


def test_what_finished_no_layer_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LayerJournal, "record", record_that_raises(KeyboardInterrupt(), after=0))
        assert invoke(MLP, *QUICK).exit_code == 130
    assert list(Path().iterdir()) == []
    Path("small.tamis.partial").mkdir()
    Path("small.tamis.partial/origin.json").write_text("{}")  # of a kill
    run_quantize(MLP, *QUICK, "--method", "msq")


def test_an_error_on_the_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LayerJournal, "record", record_that_raises(InvalidInput("not finite"), after=2))
    assert invoke(MLP, *QUICK).stderr.endswith("error: not finite\n")
    assert list(Path().iterdir()) == []


def test_a_directory_of_somebody_elses_is_left_alone() -> None:
    Path("small.tamis.partial").mkdir()
    Path("small.tamis.partial/notes.txt").write_text("mine")
    result = invoke(MLP, *QUICK)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'small.tamis.partial' is where finished layers would go, but there is something else" in result.stderr
    assert Path("small.tamis.partial/notes.txt").read_text() == "mine"


# Names that are nearly those of the journal.
NOT_OURS = ["thesis.txt", "layer_best.pt", "layer_0000.pt.bak", ".layer_0000.pt.part", "origin.json5"]
# What kills leave behind.
OURS = ["origin.json", ".origin.json.12.0a1b2c3d.part", ".layer_0001.pt.12.0a1b2c3d.part"]


def contents(directory: str) -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(directory).iterdir()}


@pytest.mark.parametrize("name", ["thesis.txt", ".layer_0000.pt.part"])
def test_what_a_journal_did_not_write_outlives_it(name: str) -> None:
    Path("small.tamis.partial").mkdir()
    Path("small.tamis.partial/origin.json").write_text("{}")
    Path("small.tamis.partial", name).write_text("mine")
    Path("small.tamis.partial/figures").mkdir()
    Path("small.tamis.partial/figures/layer_0000.pt").write_text("mine")
    run_quantize(MLP, *QUICK)
    assert contents("small.tamis.partial/figures") == {"layer_0000.pt": "mine"}
    assert sorted(path.name for path in Path("small.tamis.partial").iterdir()) == sorted([name, "figures"])
    assert Path("small.tamis.partial", name).read_text() == "mine"


def test_it_outlives_a_run_that_goes_on_and_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(LayerJournal, "record", record_that_raises(KeyboardInterrupt(), after=1))
        assert invoke(MLP, *QUICK).exit_code == 130
    Path("small.tamis.partial/thesis.txt").write_text("mine")
    assert "where 1 layer is finished" in invoke(MLP, *QUICK).stderr and Path("small.tamis").exists()
    assert contents("small.tamis.partial") == {"thesis.txt": "mine"}
    Path("small.tamis.partial/origin.json").write_text("{}")
    monkeypatch.setattr(LayerJournal, "record", record_that_raises(InvalidInput("not finite"), after=1))
    assert invoke(MLP, *QUICK).stderr.endswith("error: not finite\n")
    assert contents("small.tamis.partial") == {"thesis.txt": "mine"}


def test_only_names_of_the_journal_are_removed() -> None:
    Path("small.tamis.partial").mkdir()
    for name in [*OURS, *NOT_OURS]:
        Path("small.tamis.partial", name).write_text("")
    with open_parts_directory(Path("small.tamis"), join_team(torch.device("cpu"))) as directory:
        (directory / "layer_0000.pt").write_text("")
        (directory / "layer_12345.pt").write_text("")
    assert sorted(contents("small.tamis.partial")) == sorted(NOT_OURS)


def test_parts_of_a_kill_are_no_obstacle() -> None:
    Path("small.tamis.partial").mkdir()
    Path("small.tamis.partial", OURS[1]).write_text("{")
    run_quantize(MLP, *QUICK)
    assert [path.name for path in Path().iterdir()] == ["small.tamis"]


def test_the_directory_may_be_a_link_to_another_disk() -> None:
    Path("scratch").mkdir()
    Path("small.tamis.partial").symlink_to("scratch")
    run_quantize(MLP, *QUICK)
    assert Path("small.tamis.partial").is_symlink() and contents("scratch") == {}


@pytest.mark.slow
def test_two_processes_write_one_file(ternary: tamis.Compressed) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tamis"]
    environment = {**os.environ, "PYTHONPATH": str(Path(tamis.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [*command, "quantize", MLP, *QUICK, "--data", TEST],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("relative error") == 1
    assert [path.name for path in Path().iterdir()] == ["small.tamis"]
    small = tamis.load("small.tamis", MODELS["mlp"]())
    for name, figures in ternary.recipe[-1]["layers"].items():
        assert small.recipe[-1]["layers"][name]["error"] == pytest.approx(figures["error"], rel=0.05)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "part"),
    [
        (MLP, {"-o": "s.safetensors"}, "-o must end in .tamis, got 's.safetensors'"),
        (MLP, {"-o": "taken.tamis"}, "is a directory: taken.tamis"),
        (
            MLP,
            {"-o": "blocked.tamis"},
            "'blocked.tamis.partial' is a file, but a directory of that name is to keep finished layers until "
            "'blocked.tamis' is whole: move it, or write to another file with -o",
        ),
        (MLP, {"--levels": "1"}, "--levels 1 must be a whole number from 2 to 65536"),
        (MLP, {"--levels": "0.5"}, "an alphabet has 2 to 65536 levels, got 1: (0.5,)"),
        (MLP, {"--levels": "few"}, "--levels must be how many levels (3), or a sorted list of them"),
        (MLP, {"--levels": "3", "--bits": "2"}, "give either levels or bits, got --levels 3 and --bits 2"),
        (MLP, {"--method": "adaround"}, "--method adaround is not a quantizer; these are: msq, gpfq, optq"),
        (MLP, {"--conv": "both"}, "conv must be 'joint' or 'per_channel', got 'both'"),
        (MLP, {"--c-alpha": "-1"}, "--c-alpha -1.0 must be a positive number"),
        (MLP, {"--prune": "most"}, "--prune must be a fraction (0.8), a percentage (80%)"),
        (MLP, {"--include": "conv"}, "'conv' matches no"),
        (MLP, {"--calibration": "no_such_data"}, "there is no dataset 'no_such_data:train'"),
        (MLP, {"--calibration": "bad.npz"}, "x in 'bad.npz' has values that are not finite"),
        (MLP, {"--data": "many.npz"}, "a score for each class of 'many.npz'"),
        (MLP, {"--weights": "none.tamis"}, "no such file or directory: none.tamis"),
        (
            MLP,
            {"--calibration": "large.npz"},
            f"{MLP} takes inputs of shape (batch, 1, 8, 8); those of 'large.npz' have shape (batch, 1, 9, 9)",
        ),
        ("mlp", {}, "did you mean tamis.training.models:mlp?"),
        ("torch.nn:Identity", {"--shape": "1,8,8"}, "has no linear or convolution layer with a weight"),
    ],
)
def test_errors_are_one_line_and_leave_no_file(model: str, options: dict[str, str], part: str) -> None:
    Path("taken.tamis").mkdir()
    Path("blocked.tamis.partial").write_text("")
    np.savez("many.npz", x=np.zeros((12, 8, 8), np.uint8), y=np.arange(12))
    np.savez("large.npz", x=np.zeros((9, 9, 9), np.uint8), y=np.arange(9))
    np.savez("bad.npz", x=np.full((1, 1, 8, 8), np.nan, np.float32), y=[0])
    before = sorted(path.name for path in Path().iterdir())
    given = {"--calibration": DATA, "-o": "small.tamis", **options}
    result = invoke(model, *(word for option in given.items() for word in option))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == before


RECURRENT = """
class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.memory = nn.Embedding(11, 8), nn.LSTM(8, 6, batch_first=True)
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, input_ids):
        return self.head(torch.relu(self.first(self.memory(self.words(input_ids))[0][:, -1])))
"""
PLAIN = """
example_shape = (7,)


def Words():
    return nn.Sequential(nn.Embedding(11, 8), nn.Flatten(), nn.Linear(56, 8), nn.ReLU(), nn.Linear(8, 3))
"""
WORDS = """
words = torch.randint(11, (300, 7), generator=torch.Generator().manual_seed(0))
read = [{'input_ids': row, 'labels': row.sum() % 3} for row in words]
calibration, held_out = (torch.utils.data.DataLoader(part, 32) for part in (read[:100], read[100:]))
"""


@pytest.mark.parametrize(
    ("model", "kept"),
    [(PLAIN, ["an embedding"]), (RECURRENT, ["an embedding", "an LSTM"])],
    ids=["shape", "shape of the data"],
)
def test_networks_of_words_and_batches_that_are_mappings(
    model: str, kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"words_{len(kept)}"
    (tmp_path / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n{model}{WORDS}")
    monkeypatch.syspath_prepend(tmp_path)
    text = run_quantize(f"{name}:Words", "--calibration", f"{name}:calibration", "-o", "small.tamis")
    assert all(each in text for each in kept)
    arguments = ["certify", f"{name}:Words", "small.tamis", "--data", f"{name}:held_out", "-o", "small.json"]
    certified = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert certified.exit_code == 0, certified.stderr
    assert json.loads(Path("small.json").read_text())["data"]["given"] == 200
