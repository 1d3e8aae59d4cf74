"""What each process of a team runs: a search by the library, what it finds into a folder; then one by the command.

python ddp_search.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch

from tamis.architecture import search
from tamis.cli.main import app
from tamis.cli.model_argument import load_module
from tamis.training import Settings, load_data

MLP, DATA = "tamis.training.models:mlp", "digits:train[:150]"


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    found = search(load_module(MLP).module, load_data(DATA), 0.8, Settings(epochs=6, batch=30), progress=False)
    found.save(folder / f"{rank}.architecture")
    how = ["--data", DATA, "--sparsity", "0.8", "--epochs", "6", "--batch", "30"]
    app(["search", MLP, *how, "-o", str(folder / "written.architecture")], standalone_mode=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
