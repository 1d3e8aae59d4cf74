"""What MODEL, --weights and --shape may be, and what is said when they are not."""

import io
import os
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn
from typer.testing import CliRunner

import tamis
from tamis.cli.main import app
from tamis.cli.model_argument import load_module, load_network
from tamis.errors import CorruptArtifact, InvalidInput, InvalidParameters, TraceError
from tamis.training.models import MODELS


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Writes a Python module into the current directory, forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = []

    def write(name: str, source: str) -> None:
        (tmp_path / f"{name}.py").write_text("from torch import nn\n" + textwrap.dedent(source))
        names.append(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_factory_in_the_current_directory_with_a_shape(write_module):
    write_module("mine_plain", "def model():\n    return nn.Linear(3, 2)")
    loaded = load_network("mine_plain:model", shape="3")
    assert loaded.network.input_shapes == ((1, 3),)
    assert "seed" in loaded.weights


@pytest.mark.parametrize(
    "source",
    [
        "example_shape = (3,)\ndef model():\n    return nn.Linear(3, 2)",
        "def model():\n    return nn.Linear(3, 2)\nmodel.example_shape = [3]",
        "class model(nn.Linear):\n    example_shape = (3,)\n    def __init__(self):\n        super().__init__(3, 2)",
    ],
)
def test_the_shape_may_stand_beside_the_factory(write_module, source):
    write_module("mine_shaped", source)
    assert load_network("mine_shaped:model").network.input_shapes == ((1, 3),)


def test_the_option_goes_before_the_default_shape(write_module):
    write_module("mine_sized", "example_shape = (3, 9, 9)\ndef model():\n    return nn.Conv2d(3, 2, 3)")
    assert load_network("mine_sized:model", shape="3,5,4").network.input_shapes == ((1, 3, 5, 4),)


def test_untrained_weights_are_the_same_each_time_and_leave_the_generator_alone():
    state = torch.get_rng_state()
    one, two = (load_network("tamis.training.models:mlp").network for _ in range(2))
    assert all(torch.equal(value, two.params[name]) for name, value in one.params.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_weights_are_loaded(tmp_path):
    torch.manual_seed(7)
    model = MODELS["mlp"]()
    save_file(model.state_dict(), tmp_path / "mlp.safetensors")
    loaded = load_network("tamis.training.models:mlp", tmp_path / "mlp.safetensors")
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.network.params[name], value)


def test_of_tied_weights_the_file_needs_only_one(write_module, tmp_path):
    write_module(
        "mine_tied",
        """
        def model():
            made = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
            made[2].weight = made[0].weight
            return made
        """,
    )
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    save_model(model, str(tmp_path / "tied.safetensors"))
    loaded = load_network("mine_tied:model", tmp_path / "tied.safetensors", "3")
    assert torch.equal(loaded.network.state_dict()["2.weight"], model[0].weight)
    save_file({name: value.clone() for name, value in model.state_dict().items()}, tmp_path / "both.safetensors")
    loaded = load_network("mine_tied:model", tmp_path / "both.safetensors", "3")
    assert torch.equal(loaded.network.state_dict()["2.weight"], model[0].weight)


def test_weights_that_do_not_fit_are_named(tmp_path):
    state = MODELS["mlp"]().state_dict()
    first, second, *_ = state
    wrong = {**state, second: torch.zeros(2, 5), "extra": torch.zeros(1)}
    del wrong[first]
    save_file(wrong, tmp_path / "wrong.safetensors")
    with pytest.raises(InvalidParameters) as caught:
        load_network("tamis.training.models:mlp", tmp_path / "wrong.safetensors")
    for part in ("wrong.safetensors", f"missing: {first}", "unexpected: extra", f"{second} is (2, 5) instead of"):
        assert part in str(caught.value)


def test_missing_and_unexpected_weights_are_named_where_shapes_fit(tmp_path):
    state = MODELS["mlp"]().state_dict()
    first = next(iter(state))
    renamed = {("other" if name == first else name): value for name, value in state.items()}
    save_file(renamed, tmp_path / "renamed.safetensors")
    with pytest.raises(InvalidParameters, match=f"missing: {first}; unexpected: other"):
        load_network("tamis.training.models:mlp", tmp_path / "renamed.safetensors")


def saved_model() -> nn.Module:
    torch.manual_seed(7)
    return MODELS["mlp"]()


WRAPPED = {
    "a state_dict": (lambda state: state, []),
    "under a key": (lambda state: {"state_dict": state, "epoch": 3}, ["under 'state_dict'"]),
    "of DataParallel": (lambda state: {f"module.{k}": v for k, v in state.items()}, ["names without 'module.'"]),
    "of Lightning": (
        lambda state: {"state_dict": {f"model.{k}": v for k, v in state.items()}, "hyper_parameters": {"lr": 0.1}},
        ["under 'state_dict'", "names without 'model.'"],
    ),
    "under two keys, compiled, in parallel": (
        lambda state: {"model_state_dict": {"model": {f"module._orig_mod.{k}": v for k, v in state.items()}}},
        ["under 'model_state_dict'", "under 'model'", "names without 'module.'", "names without '_orig_mod.'"],
    ),
}


@pytest.mark.parametrize("form", WRAPPED)
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_state_dicts_as_training_scripts_save_them(form, suffix, tmp_path, capsys):
    wrap, steps = WRAPPED[form]
    state = saved_model().state_dict()
    torch.save(wrap(state), tmp_path / f"mlp{suffix}")
    loaded = load_module("tamis.training.models:mlp", tmp_path / f"mlp{suffix}")
    assert all(torch.equal(value, loaded.module.state_dict()[name]) for name, value in state.items())
    assert loaded.weights == ", ".join([str(tmp_path / f"mlp{suffix}"), *steps])
    assert capsys.readouterr().err == (f"weights: {loaded.weights}\n" if steps else "")


def test_files_of_torch_that_are_no_state_dict(tmp_path):
    path, model = tmp_path / "mlp.pt", "tamis.training.models:mlp"
    state = saved_model().state_dict()
    wrong = {
        "holds no state_dict but the keys epoch, optimizer": {"epoch": 3, "optimizer": {"lr": 0.1}},
        "holds no state_dict but a list": [1, 2],
        "it must hold tensors alone.* can run code": saved_model(),
        "does not fit Sequential; missing: linear1.weight": {k: v for k, v in state.items() if k != "linear1.weight"},
        "does not fit Sequential; unexpected: more": {**state, "more": torch.zeros(1)},
        r"linear1.weight is \(1, 2\) instead of": {**state, "linear1.weight": torch.zeros(1, 2)},
    }
    for message, content in wrong.items():
        torch.save(content, path)
        with pytest.raises(InvalidParameters, match=message):
            load_module(model, path)
    path.write_bytes(b"nothing of torch")
    with pytest.raises(InvalidParameters, match="it must hold tensors alone"):
        load_module(model, path)
    with pytest.raises(FileNotFoundError):
        load_module(model, tmp_path / "gone.pth")
    with pytest.raises(InvalidInput, match=r"got 'mlp.pt': weights alone go to --weights mlp.pt, beside what makes"):
        load_module("mlp.pt")


def test_the_seed_of_a_module_is_that_of_its_weights():
    drawn = [load_module("tamis.training.models:mlp", seed=seed).module.state_dict() for seed in (0, 0, 7)]
    torch.manual_seed(7)
    expected = MODELS["mlp"]().state_dict()
    for name, value in drawn[0].items():
        assert torch.equal(drawn[1][name], value)
        assert torch.equal(drawn[2][name], expected[name])
    assert not torch.equal(drawn[0]["linear1.weight"], drawn[2]["linear1.weight"])


# -- .tamis files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half():
    """A pruned network of other weights than the factory's."""
    torch.manual_seed(7)
    return tamis.prune(MODELS["mlp"](), 0.5, example=torch.zeros(1, 1, 8, 8))


@pytest.fixture
def small(half, tmp_path):
    """The same, in small.tamis."""
    half.save(tmp_path / "small.tamis")
    return half


def test_weights_of_a_tamis_file(small, tmp_path):
    loaded = load_network("tamis.training.models:mlp", tmp_path / "small.tamis")
    module = load_module("tamis.training.models:mlp", tmp_path / "small.tamis")
    for name, value in small.params.items():
        assert torch.equal(loaded.network.params[name], value)
        assert torch.equal(module.module.state_dict()[name], value)
    for each in (loaded, module):
        assert each.compressed.recipe == small.recipe
        assert all(torch.equal(mask, small.masks[name]) for name, mask in each.compressed.masks.items())
        assert each.weights == f"{tmp_path / 'small.tamis'}, 1,696 of 3,392 weights pruned"


def test_a_tamis_file_of_a_pt2_file(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
    torch.export.save(torch.export.export(model, (torch.zeros(1, 3),)), tmp_path / "m.pt2")
    small = tamis.prune(load_network(str(tmp_path / "m.pt2")).network, 4)
    small.save(tmp_path / "small.tamis")
    loaded = load_network(str(tmp_path / "m.pt2"), tmp_path / "small.tamis")
    assert loaded.compressed is not None and loaded.compressed.masks.pruned == 4
    assert torch.equal(loaded.network.params["0.weight"], small.params["0.weight"])


def test_a_tamis_file_knows_its_shape(write_module, tmp_path):
    write_module("mine_unshaped", "def model():\n    return nn.Linear(3, 2)")
    torch.manual_seed(0)
    tamis.prune(nn.Linear(3, 2), 2, example=torch.zeros(1, 3)).save(tmp_path / "small.tamis")
    assert load_network("mine_unshaped:model", tmp_path / "small.tamis").network.input_shapes == ((1, 3),)
    with pytest.raises(InvalidInput, match=r"--shape goes with other weights; '.*small\.tamis' has its own shape"):
        load_network("mine_unshaped:model", tmp_path / "small.tamis", "3")


def test_a_tamis_file_that_is_none_or_of_another_model(small, tmp_path):
    (tmp_path / "text.tamis").write_text("not a network")
    with pytest.raises(CorruptArtifact, match=r"text\.tamis"):
        load_network("tamis.training.models:mlp", tmp_path / "text.tamis")
    with pytest.raises(InvalidParameters, match=r"small\.tamis"):
        load_network("tamis.training.models:digits_cnn", tmp_path / "small.tamis")
    with pytest.raises(FileNotFoundError):
        load_network("tamis.training.models:mlp", tmp_path / "none.tamis")


# -- .pt2 files --------------------------------------------------------------------------------------------------------


class Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.fixture(scope="module")
def forgery(tmp_path_factory):
    """The content of a `.pt2` file with a pickled weight that makes the folder `mark` where it is loaded."""
    folder = tmp_path_factory.mktemp("forgery")
    torch.export.save(torch.export.export(nn.Linear(3, 2), (torch.zeros(1, 3),)), folder / "m.pt2")
    with zipfile.ZipFile(folder / "m.pt2") as stored, zipfile.ZipFile(folder / "forged.pt2", "w") as made:
        for name in stored.namelist():
            content = stored.read(name)
            if name.endswith("model_weights_config.json"):
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true')
            elif "/data/weights/weight_" in name:
                attack = io.BytesIO()
                torch.save(Attack("mark"), attack)
                content = attack.getvalue()
            made.writestr(name, content)
    return (folder / "forged.pt2").read_bytes()


@pytest.fixture
def forged(forgery, tmp_path):
    """The file, in a folder of its own."""
    (tmp_path / "forged.pt2").write_bytes(forgery)
    return tmp_path / "forged.pt2"


SWEEP = """recipe:
  steps:
    - {step: quantize, method: msq, c_alpha: 2.0, levels: {choices: [3, 8]}}
objectives: [bytes]
trials: 2
"""
CERTIFICATE = Path(__file__).parents[2] / "docs/results/certificate/resnet32.json"
COMMANDS = {
    "inspect": ["inspect", "MODEL"],
    "prune": ["prune", "MODEL", "--amount", "0.5", "-o", "o.tamis"],
    "quantize": ["quantize", "MODEL", "--calibration", "digits", "-o", "o.tamis"],
    "repair": ["repair", "MODEL", "s.tamis", "--calibration", "digits", "-o", "o.tamis"],
    "certify": ["certify", "MODEL", "s.tamis", "--data", "digits:test", "-o", "o.json"],
    "verify": ["verify", "c.json", "s.tamis", "MODEL"],
    "report": ["report", "c.json", "-o", "o.html", "--model", "MODEL"],
    "compress": ["compress", "MODEL", "--target-bytes", "1KB", "--data", "digits", "-o", "o"],
    "sweep": ["sweep", "SPEC", "-o", "o"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_what_a_file_brings(forged, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(f"model: {forged}\ndata: digits\n{SWEEP}")
    (tmp_path / "c.json").write_bytes(CERTIFICATE.read_bytes())  # verify reads it before the model
    words = {"MODEL": str(forged), "SPEC": "sweep.yaml"}
    arguments = [words.get(word, word) for word in COMMANDS[command]]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2, result.output
    [line] = result.stderr.strip().splitlines()[-1:]
    for part in ("error:", str(forged), "is pickled", "--trust"):
        assert part in line
    assert not (tmp_path / "mark").exists()
    CliRunner().invoke(app, [*arguments, "--trust"])
    assert (tmp_path / "mark").exists()


# -- what is said of everything else -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("resnet20", r"got 'resnet20'; did you mean tamis\.training\.models:resnet20\?"),
        ("weights.pth", r"must be a \.pt2 file or package\.module:factory, got 'weights\.pth'"),
        (":factory", "got ':factory'"),
        ("no_such_package.models:factory", "no module 'no_such_package' in"),
        ("tamis.training.models:resnet21", "has no 'resnet21'; did you mean resnet"),
        ("tamis.training.models:EXAMPLE_SHAPES", "is not callable but dict"),
        ("torch:get_num_threads", r"torch:get_num_threads\(\) must return a torch\.nn\.Module, got int"),
        ("torch.nn:Linear", r"torch\.nn:Linear\(\) failed: TypeError: .*in_features"),
    ],
)
def test_a_model_that_is_none(model, message):
    with pytest.raises(InvalidInput, match=message):
        load_network(model, shape="3")


def test_a_module_that_fails_to_import(write_module):
    write_module("mine_broken", "import no_such_dependency")
    with pytest.raises(InvalidInput, match="importing 'mine_broken' failed: No module named 'no_such_dependency'"):
        load_network("mine_broken:model", shape="3")
    write_module("mine_raising", "1 / 0")
    with pytest.raises(InvalidInput, match="importing 'mine_raising' failed: ZeroDivisionError"):
        load_network("mine_raising:model", shape="3")


def test_the_current_directory_comes_last(write_module, tmp_path):
    """What lies in it under the name of an installed package is not imported, before or after a module of one's own."""
    for name in ("numpy", "colorsys", "tamis"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('planted')")
    sys.modules.pop("colorsys", None)
    with pytest.raises(InvalidInput, match=r"module 'colorsys' \(.*colorsys\.py\) has no 'model'"):
        load_network("colorsys:model", shape="3")
    assert str(tmp_path) not in sys.path
    write_module("mine_last", "import colorsys, numpy\ndef model():\n    return nn.Linear(3, 2)")
    load_network("mine_last:model", shape="3")
    assert sys.path[-1] == str(tmp_path) and sys.path.count(str(tmp_path)) == 1
    write_module("mine_again", "def model():\n    import mine_last\n    return nn.Linear(3, 2)")
    load_network("mine_again:model", shape="3")
    assert sys.path.count(str(tmp_path)) == 1


def test_a_shape_that_nobody_knows():
    with pytest.raises(InvalidInput, match=r"the input shape of 'torch\.nn:ReLU' is unknown: .* --shape 3,32,32"):
        load_network("torch.nn:ReLU")


@pytest.mark.parametrize("shape", ["", "3,", "3x32", "-1", "0", "3,a"])
def test_a_shape_that_is_none(shape):
    with pytest.raises(InvalidInput, match=f"got '{shape}'"):
        load_network("torch.nn:ReLU", shape=shape)


def test_an_example_shape_that_is_none(write_module):
    write_module("mine_misshaped", "example_shape = '3,32'\ndef model():\n    return nn.ReLU()")
    with pytest.raises(InvalidInput, match=r"example_shape of 'mine_misshaped:model' .* got '3,32'"):
        load_network("mine_misshaped:model")


def test_a_shape_the_model_does_not_take():
    with pytest.raises(TraceError, match=r"DigitsCNN with an example of shape \(1, 3, 8, 8\)"):
        load_network("tamis.training.models:digits_cnn", shape="3,8,8")


def test_files_that_are_not_there(tmp_path):
    for model, weights in [
        (str(tmp_path / "none.pt2"), None),
        ("tamis.training.models:mlp", tmp_path / "none.safetensors"),
    ]:
        with pytest.raises(FileNotFoundError) as caught:
            load_network(model, weights)
        assert str(tmp_path / "none") in str(caught.value.filename)


def test_files_that_are_something_else(tmp_path, capfd):
    (tmp_path / "text.pt2").write_text("not an archive")
    (tmp_path / "text.safetensors").write_text("not tensors")
    with pytest.raises(InvalidInput, match=r"text\.pt2' is not a file that torch\.export\.save"):
        load_network(str(tmp_path / "text.pt2"))
    with pytest.raises(InvalidParameters, match=r"text\.safetensors' is not a safetensors file"):
        load_network("tamis.training.models:mlp", tmp_path / "text.safetensors")
    assert capfd.readouterr() == ("", "")  # torch would log a traceback


def test_a_pt2_file_takes_neither_weights_nor_shape(tmp_path):
    with pytest.raises(InvalidInput, match=r"--weights goes with package\.module:factory"):
        load_network("x.pt2", weights=tmp_path / "x.safetensors")
    with pytest.raises(InvalidInput, match=r"--shape goes with package\.module:factory"):
        load_network("x.pt2", shape="3")
