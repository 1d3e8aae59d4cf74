"""What it costs a file to remember its samples, and how few of them it finds again.

    python benchmarks/seen_samples.py [--store]

ResNet-20 on 3 levels, calibrated on 5,000 images of CIFAR-10: bytes of the file with and without what it remembers;
and, of 10,000 held-out samples, with which probability so many that it has seen are noticed. All samples of calibration
are as likely to be remembered, so these probabilities are binomial ones, from the number of hits on that rules out
chance.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
from measure import store
from safetensors.torch import load_file

import tamis
from tamis.bounds import log_upper_tail
from tamis.graph import NOTHING_SEEN, SeenSamples
from tamis.training import load_data
from tamis.training.models import resnet20
from tamis.verification.unseen import CHANCE

PRETRAINED = Path(__file__).parents[1].parent / "shared" / "models" / "resnet20_cifar10.safetensors"
CALIBRATION, HELD_OUT, LEVELS = "cifar10:train[:5000]", 10_000, 3
OVERLAPS = (1, 10, 20, 50, 100, 200, 1000)


def fewest_hits(seen: SeenSamples) -> int:
    """From how many on held-out samples are refused."""
    return next(
        hits for hits in range(1, HELD_OUT) if log_upper_tail(hits, HELD_OUT, seen.chance).value <= math.log(CHANCE)
    )


def figures() -> dict[str, Any]:
    """Bytes, samples and probabilities."""
    model = resnet20()
    model.load_state_dict(load_file(PRETRAINED))
    data = load_data(CALIBRATION)
    net = tamis.trace(model.eval(), torch.zeros(1, 3, 32, 32))
    small = tamis.quantize(net, data, levels=LEVELS)
    plain = tamis.Compressed(small.network.replace(seen=NOTHING_SEEN), small.masks, small.recipe, small.codes)
    with tempfile.TemporaryDirectory() as folder:
        small.save(Path(folder) / "small.tamis")
        seen = tamis.load(Path(folder) / "small.tamis", net).seen
    hits = fewest_hits(seen)
    found = {
        str(shared): math.exp(log_upper_tail(hits, shared, seen.share).value) if shared >= hits else 0.0
        for shared in OVERLAPS
    }
    return {
        "calibration": CALIBRATION,
        "levels": LEVELS,
        "bytes": {"without": plain.nbytes, "with": small.nbytes, "part": 1 - plain.nbytes / small.nbytes},
        "samples": {"seen": len(data), "remembered": len(seen.cells), "found_again": seen.count(data.sample_digests)},
        "new_samples_hit": seen.count(load_data("cifar10:test").sample_digests),
        "refused_from": hits,
        "probability_that_so_many_of_10000_are_noticed": found,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="write docs/results/seen_samples.json")
    arguments = parser.parse_args()
    measured = figures()
    for name, value in measured.items():
        print(f"{name}: {value}")
    if arguments.store:
        print(store("seen_samples", measured))
