"""The verifier stands apart: it imports what it judges by, and works where nothing that compresses can be imported."""

import ast
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tamis
from tamis.binary import binarize, pack_network
from tamis.kronecker import monarch, patterns_of, replace
from tamis.training import Data, load_data

SOURCE = Path(tamis.__file__).parent / "verification"
BASE = {"errors", "citations", "progress", "rates", "imports"}
ALLOWED = BASE | {"graph", "paths", "bounds", "artifact", "verification"}


def test_it_imports_what_it_judges_by_and_data_sets_where_they_are_named() -> None:
    lazy = []
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        top = {id(node) for node in tree.body}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tamis."):
                package = (node.module or "").split(".")[1]
                if package == "training" and id(node) not in top:
                    lazy.append(path.name)
                else:
                    assert package in ALLOWED, f"{path} imports {node.module}"
    assert lazy == ["samples.py"]  # one function, which reads a data set by its name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of each kind, with the files, the weights of the original and the data."""
    folder = tmp_path_factory.mktemp("certificates")
    torch.manual_seed(0)
    layers = [nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)]
    model, data = nn.Sequential(nn.Flatten(), *layers).eval(), load_data("digits:test[:40]")
    training: Data = load_data("digits:train[:60]")
    x, net = data.example, tamis.trace(model, data.example)
    torch.save(model, folder / "model.pt")
    (folder / "network.pickle").write_bytes(pickle.dumps(net))
    pairs = [(each.normalised(), each.labels) for each in (data, training)]
    torch.save(pairs, folder / "data.pt")
    inputs, labels = pairs[0]

    tamis.prune(net, 0.5).save(folder / "small.tamis")
    kinds: dict[str, dict[str, Any]] = {
        "labelled": {"labels": labels},
        "unlabelled": {},
        "named": {"inputs": data},
        "boxes": {"labels": labels, "radius": 1e-3, "boxed": 1},
        "generalization": {"labels": labels, "training": pairs[1]},
        "sequential": {"labels": labels, "sequential": True},
    }
    for kind, given in kinds.items():
        tamis.certify(net, folder / "small.tamis", **{"inputs": inputs, **given}).save(folder / f"{kind}.json")

    binary = pack_network(binarize(model, ("first",), x, scale="channel").eval(), x)
    factored = replace(model, {"3": monarch(10, 8, 2)}).eval()
    recipe = [{"step": "kronecker", "layers": patterns_of(factored)}]
    kronecker = tamis.Compressed(tamis.trace(factored, x), recipe=recipe)
    for kind, small in (("binary", binary), ("kronecker", kronecker)):
        small.save(folder / f"{kind}.tamis")
        cert = tamis.certify(net, folder / f"{kind}.tamis", inputs, labels, rebuilt=small.network)
        cert.save(folder / f"{kind}.json")
    return folder


STATISTICAL = ["disagreement", "accuracy_change", "error_rate", "deviation"]
CLAIMS = {
    "labelled": [*STATISTICAL, "path_metric"],
    "unlabelled": ["disagreement", "deviation", "path_metric"],
    "named": [*STATISTICAL, "path_metric"],
    "boxes": [*STATISTICAL, "boxes", "path_metric"],
    "generalization": [*STATISTICAL, "path_metric", "generalization"],
    "sequential": [*STATISTICAL, "path_metric"],
    "binary": STATISTICAL,
    "kronecker": STATISTICAL,
}


@pytest.mark.slow
def test_every_kind_of_certificate_is_verified_where_no_compressor_can_be_imported(folder: Path) -> None:
    script = Path(__file__).with_name("verify_alone.py")
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # What is barred cannot be imported there, so that what follows shows something.
    assert found.pop("barred") == "a verifier imports tamis.quantization"
    assert {kind: each["recomputed"] for kind, each in found.items()} == CLAIMS
    assert all(each["ok"] for each in found.values())
