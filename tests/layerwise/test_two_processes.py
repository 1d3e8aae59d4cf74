"""Two processes over gloo against one: the same weights, masks and codes."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torchrun import team_of

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("ddp_layerwise.py")
NAMES = ("repair", "repair from one batch", "prune", "quantize", "gpfq", "with a directory", "and again")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ddp_layerwise", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes has in the end."""
    folder = tmp_path_factory.mktemp("two_processes")
    finished = team_of(2, folder, script=SCRIPT, seconds=200)
    assert finished.returncode == 0, finished.stdout
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.fixture(scope="module")
def alone(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    net = script.network()
    return {name: script.result(run()) for name, run in script.runs(net, tmp_path_factory.mktemp("alone")).items()}


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_do_as_one(together: list[dict[str, Any]], alone: dict[str, Any], name: str) -> None:
    assert list(alone) == list(NAMES)
    expected = alone[name]
    for found in (each[name] for each in together):
        for kind in ("masks", "indices"):
            assert found[kind].keys() == expected[kind].keys()
            for parameter, value in expected[kind].items():
                assert torch.equal(found[kind][parameter], value), parameter
        for parameter, value in expected["params"].items():
            torch.testing.assert_close(found["params"][parameter], value, rtol=1e-8, atol=1e-10, msg=parameter)
        assert found["errors"] == pytest.approx(expected["errors"], rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_both_end_with_the_same(together: list[dict[str, Any]], name: str) -> None:
    first, second = (each[name] for each in together)
    assert first["errors"] == second["errors"]
    for parameter, value in first["params"].items():
        assert torch.equal(value, second["params"][parameter]), parameter
