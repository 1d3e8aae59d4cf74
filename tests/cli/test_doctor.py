"""`tamis doctor`: what is here, which kernel runs and why, and a choice that cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tamis
from tamis.cli.main import app
from tamis.kernels import dispatch


def run(*arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["doctor", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return str(result.stdout)


def told() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("--json"))
    return found


def test_it_says_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_DATA", str(tmp_path))
    monkeypatch.delenv("TAMIS_KERNEL", raising=False)
    found, text = told(), " ".join(run().split())
    assert (found["tamis"], found["torch"]) == (tamis.__version__, torch.__version__)
    assert found["extension"]["loaded"] == (dispatch.native() is not None)
    assert found["cpu"]["features"] == dispatch.cpu_features()
    name, reason = dispatch.binary_kernel()
    assert found["binary_kernel"] == {"name": name, "reason": reason} and reason in text
    assert found["threads"] == torch.get_num_threads() and len(found["gpus"]) == torch.cuda.device_count()
    assert found["data"] == {"folder": str(tmp_path), "exists": True}
    for word in ("extension", "processor", "binary layers", "threads", "gpu", "triton", "data"):
        assert word in text


def test_without_the_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAMIS_KERNEL", raising=False)
    monkeypatch.setattr(dispatch, "_load", lambda: (None, "native kernels are not used: it is not built"))
    found = told()
    assert found["extension"] == {"loaded": False, "reason": "native kernels are not used: it is not built"}
    assert found["binary_kernel"]["name"] == "torch" and "it is not built" in run()


def test_a_kernel_that_cannot_run_is_said_and_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_KERNEL", "abacus")
    assert told()["binary_kernel"]["name"] is None
    assert "cannot run: TAMIS_KERNEL=abacus" in " ".join(run().split())


def test_a_data_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_DATA", str(tmp_path / "none"))
    assert told()["data"]["exists"] is False
    assert "which is not there yet; digits ships with tamis" in " ".join(run().split())
