"""What each process of a team runs: the same certificate, saved by each."""

import os
import sys
from pathlib import Path

import tamis
from tamis.training import load_data
from tamis.training.models import mlp

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    data = load_data("digits:test")
    net = tamis.load(folder / "original.tamis", mlp()).network
    cert = tamis.certify(net, folder / "small.tamis", data, training=load_data("digits:train[:600]"))
    cert.save(folder / f"by_{os.environ.get('RANK', 'one')}.json")
