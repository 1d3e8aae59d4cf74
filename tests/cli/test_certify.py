"""`tamis certify` and `tamis verify` as a user calls them: what they print, what they write, and how they end."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from typer.testing import CliRunner

import tamis
from tamis.binary import binarize, pack_network
from tamis.cli.main import app
from tamis.cli.model_argument import draws_weights, load_network
from tamis.kronecker import monarch, patterns_of, replace
from tamis.training import load_data
from tamis.training.models import example_input, mlp

MLP = "tamis.training.models:mlp"
DATA = "digits:test[:300]"
CERTIFY = ("certify", MLP, "small.tamis", "--data", DATA, "-o", "small.json")
VERIFY = ("verify", "small.json", "small.tamis", MLP)


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, [*map(str, arguments)], catch_exceptions=False)


def run(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    return load_network(MLP).network


@pytest.fixture(scope="module")
def half(net: tamis.Network) -> tamis.Compressed:
    return tamis.prune(net, 0.5, by="magnitude")


@pytest.fixture(autouse=True)
def in_a_directory_with_a_small_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: tamis.Compressed
) -> None:
    monkeypatch.chdir(tmp_path)
    half.save("small.tamis")


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory, half: tamis.Compressed) -> tuple[Any, bytes]:
    """What `tamis certify` printed, and the certificate that it wrote."""
    folder = tmp_path_factory.mktemp("certified")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        half.save("small.tamis")
        result = invoke(*CERTIFY)
    assert result.exit_code == 0, result.stderr
    return result, (folder / "small.json").read_bytes()


@pytest.fixture
def certified(issued: tuple[Any, bytes]) -> Any:
    """The certificate beside the small network, as if `tamis certify` had just been run; what it printed."""
    Path("small.json").write_bytes(issued[1])
    return issued[0]


def test_the_certificate_is_the_librarys(net: tamis.Network, certified: Any) -> None:
    printed = certified.stdout
    cert = tamis.Certificate.load("small.json")
    names = {"called": MLP, "data_called": DATA, "command": shlex.join(["tamis", *CERTIFY])}
    names |= {"just_initialised": True}
    assert cert.content == tamis.certify(net, "small.tamis", load_data(DATA), **names).content
    assert " ".join(cert["disagreement"].sentence.split()) in " ".join(printed.split())


def test_sentences_fill_the_terminal_and_the_command_can_be_pasted() -> None:
    printed = CliRunner(env={"COLUMNS": "60"}).invoke(app, [*CERTIFY, "--coverage", "0.9"]).stdout
    cert = tamis.Certificate.load("small.json")
    assert f"\nissued by: {cert.content['command']}\n" in printed and len(cert.content["command"]) > 60
    assert cert.as_text(60) in printed
    for first, second in pairwise(printed[printed.index("•") : printed.index("This rests")].splitlines()):
        if second.startswith("  "):  # the line before was full
            assert len(first) <= 60 < len(first) + 1 + len(second.split()[0])


def test_weights_that_were_just_drawn_are_said_to_be_so(net: tamis.Network, certified: Any) -> None:
    result = certified
    warning = f"warning: the weights of '{MLP}' were just initialised at random; pass --weights for trained ones"
    assert warning in result.stderr and "! The weights of the original network were just initialised" in result.stdout
    assert tamis.Certificate.load("small.json").notes[0].startswith("The weights of the original network were just")
    safetensors.torch.save_file(net.state_dict(), "mlp.safetensors")
    result = invoke(*CERTIFY, "--weights", "mlp.safetensors")
    assert "initialised" not in result.stderr + result.stdout


def test_a_factory_that_brings_its_weights_is_not_said_to_draw_them() -> None:
    Path("fixed_weights.py").write_text(
        "import torch\n\n\ndef net():\n    model = torch.nn.Linear(64, 10)\n"
        "    torch.nn.init.ones_(model.weight)\n    torch.nn.init.zeros_(model.bias)\n    return model\n"
    )
    assert not draws_weights("fixed_weights:net", None)


@pytest.mark.slow
def test_what_was_trained_on_is_refused_after_any_number_of_commands() -> None:
    """The samples of training go with the weights, and from there into the file."""
    trained = ("train", MLP, "--data", "digits:train[:64]", "--epochs", 1, "-o", "dense.safetensors")
    run(*trained, "--directory", "run")
    run("quantize", MLP, "--weights", "dense.safetensors", "--calibration", "digits:train[64:96]", "-o", "q.tamis")
    for data, purposes in (("digits:train[:64]", "training and calibration"), ("digits:train[64:96]", "calibration")):
        result = invoke("certify", MLP, "q.tamis", "--weights", "dense.safetensors", "--data", data, "-o", "q.json")
        assert result.exit_code == 2 and "held-out samples were used to make 'q.tamis'" in result.stderr
        assert purposes in " ".join(result.stderr.split())
    run("certify", MLP, "q.tamis", "--weights", "dense.safetensors", "--data", "digits:train[96:160]", "-o", "q.json")


def test_json_is_the_certificate(certified: Any) -> None:
    assert "in place of" not in certified.stdout
    assert json.loads(run(*CERTIFY, "--json")) == tamis.Certificate.load("small.json").content
    assert "small.json, in place of the one that was there" in run(*CERTIFY)


def test_options_reach_the_library() -> None:
    run(*CERTIFY, "--delta", 0.1, "--candidates", 3, "--coverage", 0.9, "--radius", 0.01, "--boxed", 2, "--sequential")
    settings = tamis.Certificate.load("small.json").content["settings"]
    asked = {"delta": 0.1, "candidates": 3, "coverage": 0.9, "radius": 0.01, "boxed": 2, "sequential": True}
    assert settings == asked
    assert "verified" in run(*VERIFY, "--data", DATA)


@pytest.mark.parametrize(("rate", "code", "word"), [("100%", 0, "PASS"), ("0.01pt", 3, "FAIL")])
def test_what_is_required_decides_the_first_line_and_the_exit_code(rate: str, code: int, word: str) -> None:
    result = invoke(*CERTIFY, "--max-accuracy-drop", "100%", "--max-disagreement", rate)
    assert result.exit_code == code and result.stdout.startswith(f"{word}\n")
    cert = tamis.Certificate.load("small.json")
    assert cert.passed is (code == 0)
    assert [each["claim"] for each in cert.content["requirements"]] == ["accuracy_change", "disagreement"]


def test_training_data_gives_the_bound_from_the_code_length() -> None:
    run(*CERTIFY, "--training", "digits:train[:200]")
    assert tamis.Certificate.load("small.json")["generalization"].measured["samples"] == 200
    assert "verified" in run(*VERIFY, "--data", DATA, "--training", "digits:train[:200]")


def test_data_without_labels() -> None:
    np.savez("inputs.npz", x=load_data(DATA).normalised().numpy())
    run("certify", MLP, "small.tamis", "--data", "inputs.npz", "-o", "small.json")
    names = [claim.name for claim in tamis.Certificate.load("small.json").claims]
    assert names == ["disagreement", "deviation", "path_metric"]
    assert "verified" in run(*VERIFY, "--data", "inputs.npz")
    required = ("--data", "inputs.npz", "--max-accuracy-drop", "1pt")
    result = invoke("certify", MLP, "small.tamis", *required, "-o", "other.json")
    assert result.exit_code == 2
    assert result.stderr.endswith("error: 'inputs.npz' has no labels, which --max-accuracy-drop 1pt needs\n")


def test_wrong_labels_are_said_of_their_data() -> None:
    np.savez("far.npz", x=load_data(DATA).normalised().numpy(), y=np.full(len(load_data(DATA)), 14))
    result = invoke("certify", MLP, "small.tamis", "--data", "far.npz", "-o", "other.json")
    assert result.exit_code == 2 and "error: 'far.npz': labels go from 14 to 14, the network has" in result.stderr


def test_verify_recomputes_and_says_so(certified: Any) -> None:
    printed = run(*VERIFY, "--data", DATA)
    assert "recomputed, and the same: disagreement, accuracy_change" in printed and "\nverified" in printed
    found = json.loads(run(*VERIFY, "--data", DATA, "--json"))
    assert found["ok"] and found["unchecked"] == [] and found["signed_by"] is None


def test_verify_without_data_is_no_success(certified: Any) -> None:
    result = invoke(*VERIFY)
    assert result.exit_code == 1 and "NOT verified" in result.stdout


def test_verify_fails_on_other_data_and_on_a_changed_file(certified: Any) -> None:
    result = invoke(*VERIFY, "--data", "digits:test[:299]")
    assert result.exit_code == 2 and "not the data of the certificate" in result.stderr
    content = bytearray(Path("small.tamis").read_bytes())
    content[-1] ^= 1
    Path("small.tamis").write_bytes(content)
    result = invoke(*VERIFY, "--data", DATA)
    assert result.exit_code == 2 and "'small.tamis' is not the file of the certificate" in result.stderr


def make_keys(name: str) -> None:
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", f"{name}.pem"], check=True)
    subprocess.run(["openssl", "pkey", "-in", f"{name}.pem", "-pubout", "-out", f"{name}.pub"], check=True)


def test_signed_certificates() -> None:
    make_keys("key")
    run(*CERTIFY, "--sign", "key.pem")
    assert "vouched for by the signature only" in run(*VERIFY, "--signed-by", "key.pub")


def plant(name: str, code: str = "") -> None:
    """A module in the current folder that leaves a mark when it is imported."""
    Path(f"{name}.py").write_text(f"open('{name} was imported', 'w').close()\n{code}")


@pytest.mark.slow
@pytest.mark.parametrize("tamis_command", [["-m", "tamis"], [str(Path(sys.executable).with_name("tamis"))]])
def test_verify_imports_nothing_of_the_current_folder_but_the_model(tamis_command: list[str]) -> None:
    make_keys("key")
    run(*CERTIFY, "--sign", "key.pem")
    plant("my_model", "from tamis.training.models import mlp as net")
    for name in ("cryptography", "torch", "numpy", "safetensors", "_cffi_backend"):
        plant(name)
    arguments = ["verify", "small.json", "small.tamis", "my_model:net", "--signed-by", "key.pub"]
    command = [sys.executable, *tamis_command, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "vouched for by the signature only" in finished.stdout
    assert [path.name for path in Path().glob("* was imported")] == ["my_model was imported"]


def test_verify_runs_no_model_before_the_signature_is_known_to_be_right() -> None:
    """Where cryptography is not installed, a file of that name beside the model would be taken for it afterwards."""
    make_keys("ours")
    make_keys("theirs")
    run(*CERTIFY, "--sign", "theirs.pem")
    plant("unsigned_model", "from tamis.training.models import mlp as net")
    arguments = ("verify", "small.json", "small.tamis", "unsigned_model:net", "--signed-by", "ours.pub")
    result = invoke(*arguments)
    assert result.exit_code == 2 and "the certificate was signed by the key" in result.stderr
    assert not Path("unsigned_model was imported").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"-o": "small.txt"}, "-o must end in .json, got 'small.txt'"),
        ({"--data": "nowhere"}, "there is no dataset 'nowhere:train'"),
        ({"--max-disagreement": "few"}, "--max-disagreement must be a rate from 0 to 1, as 0.01, 1% or 1pt; got 'few'"),
        ({"--delta": "2"}, "delta must be a number between 0 and 1"),
        ({"--sign": "nowhere.pem"}, "no such file or directory: nowhere.pem"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(changes: dict[str, str], message: str) -> None:
    options = {"--data": DATA, "-o": "small.json"} | changes
    result = invoke("certify", MLP, "small.tamis", *(part for pair in options.items() for part in pair))
    assert result.exit_code == 2 and message in result.stderr
    assert not Path("small.json").exists()


def write_binary() -> None:
    model = mlp().eval()
    pack_network(binarize(model, example=example_input("mlp")).eval(), example_input("mlp")).save("small.tamis")


def write_factors() -> None:
    made = replace(mlp(), {"linear1": monarch(32, 64, 4)}, begin="scratch").eval()
    step = {"step": "kronecker", "layers": patterns_of(made)}
    tamis.Compressed(tamis.trace(made, example_input("mlp")), recipe=[step]).save("small.tamis")


@pytest.mark.parametrize("write", [write_factors, pytest.param(write_binary, marks=pytest.mark.slow)])
def test_a_file_with_rebuilt_layers_needs_the_original_alone(write: Callable[[], None]) -> None:
    write()
    run(*CERTIFY)
    assert run(*VERIFY, "--data", DATA).endswith("verified\n")
    run("report", "small.json", "--model", MLP, "-o", "report.html")
    assert "small.tamis" in run("inspect", MLP, "--weights", "small.tamis")
