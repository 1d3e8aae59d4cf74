"""A user's `torch.autocast` changes nothing of what is measured: neither a small network nor a certificate."""

from pathlib import Path

import torch
from torch import nn

import tamis
from tamis.graph.autocast import without_autocast


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def test_it_is_off_within_and_back_after() -> None:
    x, layer = torch.ones(2, 6), mlp()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with without_autocast():
            assert layer(x).dtype is torch.float32
        assert layer(x).dtype is torch.bfloat16


def test_quantize_repair_certify_and_verify_do_without(tmp_path: Path) -> None:
    inputs = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
    net = tamis.trace(mlp(), inputs[:1])

    def made(name: str) -> tuple[bytes, dict[str, object]]:
        file = tmp_path / name
        small = tamis.quantize(
            tamis.prune(net, 0.3, by="magnitude"), inputs[:100], levels=4, c_alpha=2.0, progress=False
        )
        tamis.repair(net, small, inputs[:100], progress=False).save(file)
        cert = tamis.certify(net, file, inputs[100:], radius=0.01, boxed=1)
        assert tamis.verify(cert, file, net, inputs[100:]).ok
        return file.read_bytes(), {claim["claim"]: claim for claim in cert.content["claims"]}

    plain = made("plain.tamis")
    with torch.autocast("cpu", torch.bfloat16):
        assert made("cast.tamis") == plain
