"""Two processes under torchrun issue the certificate that one issues, byte for byte."""

from pathlib import Path

import pytest
import torch
from torchrun import team_of

import tamis
from tamis.training import load_data
from tamis.training.models import mlp

SCRIPT = Path(__file__).with_name("ddp_certify.py")


@pytest.mark.slow
def test_two_processes_issue_the_same_certificate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = load_data("digits:test")
    net = tamis.trace(mlp(), data.example)
    tamis.Compressed(net).save(tmp_path / "original.tamis")
    tamis.prune(net, 0.4, by="magnitude").save(tmp_path / "small.tamis")
    finished = team_of(2, tmp_path, script=SCRIPT, seconds=200)
    assert finished.returncode == 0, finished.stdout
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each of the processes has
    try:
        alone = tamis.certify(net, tmp_path / "small.tamis", data, training=load_data("digits:train[:600]"))
    finally:
        torch.set_num_threads(threads)
    alone.save(tmp_path / "alone.json")
    assert alone["disagreement"].measured["different"] > 0
    for rank in (0, 1):
        assert (tmp_path / f"by_{rank}.json").read_bytes() == (tmp_path / "alone.json").read_bytes()
