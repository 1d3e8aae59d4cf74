"""What each process of a team runs: training under a wrapped optimizer, its weights and norms into a folder.

python ddp_l1inf.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tamis.l1inf import L1Inf, statistics

C, STEPS = 0.3, 12


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)  # weights of their own, of which those of the first win
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 3)))
    optimizer = L1Inf(torch.optim.Adam(model.parameters(), lr=0.05), model, C)
    norms = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 20)), torch.randint(3, (8,))).backward()
        optimizer.step()
        norms.append(statistics(model).c)
    torch.save({"weights": model.module.state_dict(), "norms": norms}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    assert os.environ["WORLD_SIZE"] == "2"
    main(Path(sys.argv[1]))
