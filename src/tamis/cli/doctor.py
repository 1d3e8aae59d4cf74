"""`tamis doctor`: what tamis finds here, and which kernels it will run, in one look."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from tamis import __version__
from tamis.cli.display import make_console, make_fact_table
from tamis.errors import InvalidInput
from tamis.kernels import dispatch
from tamis.kronecker import tuned_table
from tamis.training import data_folder


def doctor(as_json: bool) -> None:
    """Run the command."""
    found = collect_findings()
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        make_console().print(make_fact_table(_describe_findings(found)))


def collect_findings() -> dict[str, Any]:
    """Collect the findings as JSON takes them."""
    folder = data_folder()
    return {
        "tamis": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "extension": {"loaded": dispatch.native() is not None, "reason": dispatch.explain_native()},
        "cpu": {"processor": platform.machine(), "features": dispatch.cpu_features()},
        "binary_kernel": _find_kernel(dispatch.binary_kernel),
        "kronecker_kernel": _find_kernel(dispatch.kronecker_kernel),
        "kronecker_tuned": _find_tuned(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "triton": find_spec("triton") is not None,
        "data": {"folder": str(folder), "exists": folder.is_dir()},
    }


def _find_kernel(asked: Callable[[], tuple[str, str]]) -> dict[str, str | None]:
    """Return the kernel of some layers with the reason for it, or the reason why there is none."""
    try:
        name, reason = asked()
    except InvalidInput as error:
        return {"name": None, "reason": str(error)}
    return {"name": name, "reason": reason}


def _find_tuned() -> dict[str, Any]:
    """Return the path of the table of measurements for Kronecker layers, and its numbers of entries."""
    try:
        here, everywhere = tuned_table.entries()
    except InvalidInput:  # TAMIS_KERNEL names none, as is said of the kernel
        here = everywhere = 0
    return {
        "file": str(tuned_table.file()),
        "exists": tuned_table.file().exists(),
        "here": here,
        "everywhere": everywhere,
    }


def _describe_findings(found: dict[str, Any]) -> dict[str, str]:
    data = found["data"]
    features = [name for name, there in found["cpu"]["features"].items() if there]
    return {
        "tamis": f"{found['tamis']}, with Python {found['python']} and torch {found['torch']}",
        "extension": found["extension"]["reason"],
        "processor": f"{found['cpu']['processor']}: {', '.join(features) or 'features unknown'}",
        "binary layers": _describe_kernel(found["binary_kernel"]),
        "Kronecker layers": _describe_kernel(found["kronecker_kernel"]),
        "tuned": _describe_tuned(found["kronecker_tuned"]),
        "threads": str(found["threads"]),
        "gpu": ", ".join(found["gpus"]) or "none that torch can use",
        "triton": "installed" if found["triton"] else "not installed; kernels for GPUs need it",
        "data": f"{data['folder']}{'' if data['exists'] else ', which is not there yet; digits ships with tamis'}",
    }


def _describe_kernel(kernel: dict[str, str | None]) -> str:
    return str(kernel["reason"]) if kernel["name"] else f"cannot run: {kernel['reason']}"


def _describe_tuned(tuned: dict[str, Any]) -> str:
    if not tuned["exists"]:
        return f"nothing yet; tamis kronecker bench --tune writes {tuned['file']}"
    return f"{tuned['here']} entries for this processor, of {tuned['everywhere']} in {tuned['file']}"
