"""One of two processes that train a held model together; run by test_masks.py as `ddp_hold.py RANK RENDEZVOUS`."""

import sys

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tamis.artifact.masks import Masks


def main(rank: int, rendezvous: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    masks = Masks({"0.weight": torch.rand(5, 6) < 0.5, "2.weight": torch.rand(3, 5) < 0.5})
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)
    before = {name: value.clone() for name, value in inner.state_dict().items()}
    masks.hold(model, optimizer)
    torch.manual_seed(1 + rank)  # other data on each
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().sum().backward()
        for name, mask in masks.items():
            gradient = inner.get_parameter(name).grad
            assert gradient is not None and not gradient[~mask].any() and gradient[mask].any()
        optimizer.step()
        for name, mask in masks.items():
            assert not inner.get_parameter(name)[~mask].any()
    for name, mask in masks.items():
        value = inner.get_parameter(name).detach()
        assert (value[mask] != before[name][mask]).any()
        both = [torch.empty_like(value) for _ in range(2)]
        torch.distributed.all_gather(both, value)
        assert torch.equal(*both), "the processes have drifted apart"
    torch.distributed.destroy_process_group()
    print("held")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
