import json
import math
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune
from typer.testing import CliRunner

import tamis
import tamis.cli.inspect
from tamis.cli.inspect import Inspection, inspect_network
from tamis.cli.main import app
from tamis.cli.model_argument import load_network
from tamis.graph import operations_of
from tamis.graph.ops import Capability
from tamis.training.models import MODELS, example_input

SHARED_MODELS = Path(__file__).parents[2].parent / "shared" / "models"
RESNET20, CNN = "tamis.training.models:resnet20", "tamis.training.models:digits_cnn"


@pytest.fixture(scope="module", autouse=True)
def networks_are_inspected_once():
    """A network's path-norms take a while, and it is immutable: what was found of it is found of it again."""
    found = {}

    def inspect_once(net):
        if id(net) not in found:  # what is found keeps the network, so that no other has its id
            found[id(net)] = inspect_network(net)
        return found[id(net)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tamis.cli.inspect, "inspect_network", inspect_once)
        yield


@pytest.fixture(scope="module")
def weights() -> Path:
    path = SHARED_MODELS / "resnet20_cifar10.safetensors"
    if not path.exists() and not os.environ.get("CI"):
        pytest.skip(f"{path} is not there")
    return path


def run_inspect(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


@pytest.fixture(scope="module")
def resnet20(weights) -> dict:
    return json.loads(run_inspect(RESNET20, "--weights", weights, "--json"))


@pytest.mark.slow
def test_a_published_network(weights):
    text = run_inspect(RESNET20, "--weights", weights)
    for part in ("(batch, 3, 32, 32)", "(batch, 10)", "269,722", "40.7 M per sample", "homogeneous", "10^"):
        assert part in text
    assert "layer2.0.conv1" not in text and "… 37 more" in text
    assert max(map(len, text.splitlines())) <= 100
    text = run_inspect(RESNET20, "--weights", weights, "--all")
    assert "layer2.0.conv1" in text and "--all" not in text


# Three convolutions, and so many steps between them that not all rows are shown.
LONG = """
from collections import OrderedDict
from torch import nn

example_shape = (3, 8, 8)


def net():
    steps = [("first", nn.Conv2d(3, 4, 3, bias=False)), ("norm", nn.BatchNorm2d(4))]
    steps += [(f"early{number}", nn.ReLU()) for number in range(24)]
    steps += [("middle", nn.Conv2d(4, 4, 1))]
    steps += [(f"late{number}", nn.ReLU()) for number in range(17)]
    return nn.Sequential(OrderedDict([*steps, ("last", nn.Conv2d(4, 2, 1))]))
"""


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Arguments that name a network of 45 operations in a module of the user's, and a file with its weights."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "long_net.py").write_text(LONG)
    made = {}
    exec(LONG, made)
    torch.manual_seed(7)
    save_file(made["net"]().state_dict(), folder / "long.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.chdir(folder)
        yield ["long_net:net", "--weights", str(folder / "long.safetensors")]
    sys.modules.pop("long_net", None)


def test_a_factory_with_weights(long):
    text = run_inspect(*long)
    for part in ("(batch, 3, 8, 8)", "(batch, 2, 6, 6)", "4.90 k per sample", "homogeneous", "long.safetensors"):
        assert part in text
    assert "middle" not in text and "early21" in text and "late4" in text and "… 7 more" in text
    assert max(map(len, text.splitlines())) <= 100
    text = run_inspect(*long, "--all")
    assert all(each in text for each in ("middle", "early23", "late3")) and "--all" not in text


def test_json_holds_the_path_norms():
    net, norms = load_network(CNN).network, json.loads(run_inspect(CNN, "--json"))["path_norms"]
    assert len(norms) == 4
    assert {(norm["q"], norm["r"], norm["fold"]) for norm in norms} == {
        (1, 1, True),
        (2, 2, True),
        (1, "inf", True),
        (1, 1, False),
    }
    for norm in norms:
        q, r = norm["q"], math.inf if norm["r"] == "inf" else norm["r"]
        for part in ("all", "input", "hidden"):
            expected = tamis.path_norm(net, q, r, fold=norm["fold"], part=part)
            assert norm["value"][part] == pytest.approx(expected, rel=1e-12)
            assert norm["log"][part] == pytest.approx(math.log(expected), rel=1e-12)


def test_json_holds_the_operations(long):
    found = json.loads(run_inspect(*long, "--json"))
    assert found["parameters"] == 108 + 8 + 20 + 10 == sum(row["parameter_count"] for row in found["operations"])
    # Three convolutions, and a multiplication for each number that is normalised.
    assert found["macs"] == (108 + 4 + 16 + 8) * 6 * 6 == sum(row["macs"] for row in found["operations"])
    assert found["nodes"] == len(found["operations"]) == 45
    assert (found["capability"], found["limited_by"], found["refusal"]) == ("homogeneous", None, None)
    assert [each["shape"] for each in found["inputs"]] == [[1, 3, 8, 8]]
    assert found["operations"][0] | {"name": ""} == {
        "name": "",
        "module": "first",
        "op": "aten.conv2d.default",
        "shape": [1, 4, 6, 6],
        "parameters": ["first.weight"],
        "parameter_count": 108,
        "macs": 108 * 6 * 6,
        "capability": "homogeneous",
    }


@pytest.mark.slow
def test_json_holds_the_operations_of_a_published_network(resnet20):
    found = resnet20
    assert found["parameters"] == 269_722 == sum(row["parameter_count"] for row in found["operations"])
    assert found["macs"] == sum(row["macs"] for row in found["operations"])
    assert found["nodes"] == len(found["operations"]) == 75
    assert (found["capability"], found["limited_by"], found["refusal"]) == ("homogeneous", None, None)
    assert found["inputs"] == [{"name": "x", "shape": [1, 3, 32, 32]}]
    assert found["operations"][0] | {"name": ""} == {
        "name": "",
        "module": "conv1",
        "op": "aten.conv2d.default",
        "shape": [1, 16, 32, 32],
        "parameters": ["conv1.weight"],
        "parameter_count": 432,
        "macs": 432 * 32 * 32,
        "capability": "homogeneous",
    }


def test_a_pt2_file(tmp_path):
    model = MODELS["mlp"]().eval()
    batch = {0: torch.export.Dim.AUTO}
    torch.export.save(
        torch.export.export(model, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=(batch,)), tmp_path / "m.pt2"
    )
    found = json.loads(run_inspect(tmp_path / "m.pt2", "--json"))
    net = tamis.trace(model, torch.zeros(1, 1, 8, 8))
    assert found["inputs"][0]["shape"] == [1, 1, 8, 8]
    assert found["path_norms"][0]["value"]["all"] == pytest.approx(tamis.path_norm(net), rel=1e-12)
    assert "(batch, 1, 8, 8)" in run_inspect(tmp_path / "m.pt2")


def test_weights_of_a_tamis_file(tmp_path):
    small = tamis.prune(load_network("tamis.training.models:mlp").network, 0.5)
    small.save(tmp_path / "small.tamis")
    found = json.loads(run_inspect("tamis.training.models:mlp", "--weights", tmp_path / "small.tamis", "--json"))
    assert found["weights"] == f"{tmp_path / 'small.tamis'}, 1,696 of 3,392 weights pruned"
    assert found["path_norms"][0]["value"]["all"] == pytest.approx(tamis.path_norm(small.network), rel=1e-12)


def test_a_network_that_is_not_homogeneous_says_which_operation_refuses():
    text = run_inspect("tamis.training.models:vit_tiny_test")
    assert "opaque, limited first by layer_norm at blocks.0.norm1" in text
    assert "path_norm needs a homogeneous network: 'aten.layer_norm' at blocks.0.norm1 is not" in text
    assert "all paths" not in text
    found = json.loads(run_inspect("tamis.training.models:vit_tiny_test", "--json"))
    assert found["path_norms"] is None
    assert (found["refusal"]["op"], found["refusal"]["module"]) == ("aten.layer_norm", "blocks.0.norm1")
    assert found["limited_by"] == {"op": "aten.layer_norm.default", "module": "blocks.0.norm1"}
    assert "aten.scaled_dot_product_attention.default" in found["macs_not_counted"]


def test_the_network_is_as_capable_as_its_least_capable_operation():
    net = tamis.trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.ReLU()), torch.zeros(1, 3))
    found = inspect_network(net)
    assert found.capability is Capability.LIPSCHITZ
    assert found.weakest is not None and found.weakest.module == "1"


def test_a_path_norm_of_zero_and_one_beyond_float64_are_valid_json(tmp_path):
    model = nn.Sequential(*[nn.Linear(1, 1, bias=False) for _ in range(12)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1e30)
    torch.export.save(torch.export.export(model, (torch.zeros(1, 1),)), tmp_path / "huge.pt2")
    norm = json.loads(run_inspect(tmp_path / "huge.pt2", "--json"))["path_norms"][0]
    assert norm["value"] == {"all": None, "input": None, "hidden": 0.0}
    assert norm["log"]["hidden"] is None
    assert norm["log"]["all"] == pytest.approx(math.log(float(torch.tensor(1e30))) * 12)
    assert "10^360.01" in run_inspect(tmp_path / "huge.pt2")


@pytest.mark.parametrize("name", ["vit_tiny_test", "gcn", "unet_small"])
def test_every_parameter_belongs_to_an_operation(name):
    net = tamis.trace(MODELS[name](), example_input(name, batch=1))
    found = Inspection(net, operations_of(net), (), None)
    assert {parameter for row in found.operations for parameter in row.parameters} == found.network.trainable
    assert sum(row.parameter_count for row in found.operations) == found.parameters


def test_parameters_behind_a_mask_are_found():
    layer = nn.Linear(4, 2)
    prune.l1_unstructured(layer, "weight", amount=0.5)
    found = inspect_network(tamis.trace(layer, torch.zeros(1, 4)))
    assert [set(row.parameters) for row in found.operations] == [{"weight_orig", "bias"}]
    assert (found.parameters, found.buffers) == (10, 8)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["none.pt2"], "no such file or directory: none.pt2"),
        (["tamis.training.models:mlp", "--weights", "none.safetensors"], "no such file or directory: none.safetensors"),
        (["no_such_module:f"], "no module 'no_such_module'"),
        (["torch.nn:ReLU"], "--shape"),
        (["mlp"], "tamis.training.models:mlp"),
    ],
)
def test_errors_are_one_line(arguments, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["inspect", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert part in result.stderr
