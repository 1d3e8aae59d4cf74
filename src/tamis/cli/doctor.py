"""`tamis doctor`: what tamis finds here, and which kernels it will run, in one look."""

from __future__ import annotations

import json
import platform
from importlib.util import find_spec
from typing import Any

import torch

from tamis import __version__
from tamis.cli.display import console, facts
from tamis.errors import InvalidInput
from tamis.kernels import dispatch
from tamis.train.data import data_folder


def doctor(as_json: bool) -> None:
    """The command."""
    found = findings()
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        console().print(facts(_in_words(found)))


def findings() -> dict[str, Any]:
    """What there is to say, as JSON takes it."""
    folder = data_folder()
    return {
        "tamis": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "extension": {"loaded": dispatch.native() is not None, "reason": dispatch.native_reason()},
        "cpu": {"processor": platform.machine(), "features": dispatch.cpu_features()},
        "binary_kernel": _binary_kernel(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "triton": find_spec("triton") is not None,
        "data": {"folder": str(folder), "exists": folder.is_dir()},
    }


def _binary_kernel() -> dict[str, str | None]:
    """The kernel of binary layers and why, or why there is none."""
    try:
        name, reason = dispatch.binary_kernel()
    except InvalidInput as error:
        return {"name": None, "reason": str(error)}
    return {"name": name, "reason": reason}


def _in_words(found: dict[str, Any]) -> dict[str, str]:
    kernel, data = found["binary_kernel"], found["data"]
    features = [name for name, there in found["cpu"]["features"].items() if there]
    return {
        "tamis": f"{found['tamis']}, with Python {found['python']} and torch {found['torch']}",
        "extension": found["extension"]["reason"],
        "processor": f"{found['cpu']['processor']}: {', '.join(features) or 'features unknown'}",
        "binary layers": kernel["reason"] if kernel["name"] else f"cannot run: {kernel['reason']}",
        "threads": str(found["threads"]),
        "gpu": ", ".join(found["gpus"]) or "none that torch can use",
        "triton": "installed" if found["triton"] else "not installed; kernels for GPUs need it",
        "data": f"{data['folder']}{'' if data['exists'] else ', which is not there yet; digits ships with tamis'}",
    }
