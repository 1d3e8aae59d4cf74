"""What each process of a team runs: `train` under the constraint; what it holds after every step goes into a folder.

python ddp_l1inf_constraint.py FOLDER
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from tamis.artifact import Masks
from tamis.l1inf import L1Inf, L1InfConstraint
from tamis.training import Settings, load_data, train
from tamis.training.models import mlp

C = 0.5
SHAPES = {"linear1.weight": (12, 64), "linear3.weight": (10, 8)}
MASKS = Masks(
    {name: torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5 for name, shape in SHAPES.items()}
)


def small_mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return mlp((64, 12, 8, 10))


class Watched(L1InfConstraint):
    """Notes the largest norm of a constrained column, and a digest of all weights, after every step."""

    def __init__(self, c: float) -> None:
        super().__init__(c)
        self.norms: list[float]
        self.digests: list[str]
        object.__setattr__(self, "norms", [])
        object.__setattr__(self, "digests", [])

    def wrap(self, optimizer: Optimizer, model: nn.Module) -> L1Inf:
        wrapped = super().wrap(optimizer, model)
        wrapped.register_step_post_hook(lambda *_: self._note(model))
        return wrapped

    def _note(self, model: nn.Module) -> None:
        self.norms.append(self.statistics(model).c)
        content = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
        self.digests.append(hashlib.sha256(content).hexdigest())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    constraint = Watched(C)
    data, settings = load_data("digits:train[:100]"), Settings(epochs=3, batch=30)
    # Weights of their own, of which those of the first win.
    model = train(small_mlp(rank), data, settings, constraint=constraint, masks=MASKS, progress=False).model
    noted = {"norms": constraint.norms, "digests": constraint.digests}
    torch.save({"weights": dict(model.state_dict()), **noted}, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
