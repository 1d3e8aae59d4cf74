"""A team is the processes that train one model together, started by `torchrun`; one process alone is a team of one."""

from __future__ import annotations

import atexit
import importlib
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tamis.errors import InvalidInput

DEVICES = ("cpu", "cuda")
LOCAL_RANK = "LOCAL_RANK"  # the environment variable in which torchrun numbers the processes of one machine


@dataclass(frozen=True)
class Team:
    """A `Team` is one of `size` processes, the `rank`-th, on its device; `connected` if a process group joins them."""

    device: torch.device
    rank: int = 0
    size: int = 1
    connected: bool = False

    @property
    def leads(self) -> bool:
        """Return whether this process writes files and reports, as one of the team does."""
        return self.rank == 0

    def share(self, batch: Tensor) -> tuple[Tensor, int]:
        """Return this process' part of a batch of indices, and how often each of them counts: once, or not at all.

        A batch smaller than the team leaves some without a part. They take its first example, which does not count:
        every process must take part in every step, and few models take an empty batch.
        """
        # Parts differ by one example at most, and the same rule on every process leaves none out.
        part = batch.tensor_split(self.size)[self.rank]
        return (part, 1) if len(part) else (batch[:1], 0)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap a model so that gradients are averaged over the team, beginning from the first process' weights."""
        if not self.connected:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def summed(self, figures: Tensor) -> Tensor:
        """Return the sum over the team, which is the same in every process."""
        # A copy: all_reduce writes into its argument, and whoever asks may go on summing into theirs.
        total = figures.clone()
        if self.connected:
            dist.all_reduce(total)
        return total

    def extremes(self, number: int) -> tuple[int, int]:
        """Return the least and the greatest of the team's numbers, the same in every process."""
        # One reduction for both: min(x) = −max(−x).
        both = torch.tensor([-number, number], device=self.device)
        if self.connected:
            dist.all_reduce(both, dist.ReduceOp.MAX)
        negated_least, greatest = both.tolist()
        return -negated_least, greatest

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give every process the buffers of the first, whose batch-norm statistics are the ones that are saved."""
        if self.connected:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)

    def wait(self) -> None:
        """Wait until every process of the team has come here."""
        if self.connected:
            # Named, or nccl would guess it by the rank, which may be another process' GPU.
            dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)


def training_device(model: nn.Module, device: str | torch.device | None) -> torch.device:
    """Return the device to join a team with: the requested one, or else the model's.

    Under `torchrun`, every process has its model on the same GPU unless it was told otherwise. So of a model's own
    device only the type counts there, and `join_team` gives each process the GPU of its LOCAL_RANK.
    """
    if device is not None:
        return torch.device(device)
    home = device_of(model)
    return torch.device(home.type) if LOCAL_RANK in os.environ else home


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model's parameters, or the CPU for a model without any."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def join_team(device: torch.device) -> Team:
    """Return the team that this process belongs to.

    A process group that the caller has initialised is used as it is. Otherwise, where `torchrun` has set `WORLD_SIZE`,
    `RANK` and `LOCAL_RANK`, one is initialised, with nccl on CUDA and gloo on CPUs, and stays until the process ends:
    a second training joins the same one.

    Args:
        device: where to train; "cuda" is the GPU numbered LOCAL_RANK, or the current one outside of torchrun.
    """
    if device.type not in DEVICES:
        raise InvalidInput(f"training runs on {' or '.join(DEVICES)}, got device '{device}'")
    if device.type == "cuda" and device.index is None:
        # To ask for the current GPU is to take memory on it, so only where it is the one.
        local_rank = os.environ.get(LOCAL_RANK)
        device = torch.device("cuda", torch.cuda.current_device() if local_rank is None else int(local_rank))
    # Some builds of torch come without it.
    if not dist.is_available():
        return Team(device)
    if not dist.is_initialized():
        if not {"WORLD_SIZE", "RANK", LOCAL_RANK} <= os.environ.keys():
            return Team(device)
        _initialise(device)
    return Team(device, dist.get_rank(), dist.get_world_size(), connected=True)


def _initialise(device: torch.device) -> None:
    # Before the group is there: functions of this module have it as a default argument, and DistributedDataParallel
    # imports it. A group that they keep alive outlives `_leave`, and its threads may abort an interpreter that ends.
    importlib.import_module("torch.distributed.nn")

    if device.type == "cuda":
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    # Only now: to destroy and initialise it again would find what the first group left in the store.
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
