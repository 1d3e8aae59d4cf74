"""--device on the command line: the processor, or a GPU that is there."""

from __future__ import annotations

import torch

from tamis.errors import InvalidInput
from tamis.training import DEVICES, Team, join_team


def parse_device(text: str) -> torch.device:
    """Read a device, and raise InvalidInput unless this computer has it."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in DEVICES:
        raise InvalidInput(f"--device must be cpu or cuda, got '{text}'")
    if device.type == "cuda" and (device.index or 0) >= (found := torch.cuda.device_count()):
        there = f"torch {torch.__version__} finds {found or 'none'} here"
        raise InvalidInput(f"--device {text} needs a GPU, and {there}: leave it out to compute on the processor")
    return device


def join_team_exactly(text: str) -> Team:
    """Join the team of this process on a device, whose convolutions do not round to the ten bits of TF32.

    torch lets cuDNN do so on GPUs. What is certified should be what float32 computes, here and wherever it is verified.
    """
    team = join_team(parse_device(text))
    if team.device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return team
