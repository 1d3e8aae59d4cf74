"""Runs that are broken off go on to the bit; files of other runs, and damaged ones, are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tamis
from tamis.artifact import Codes
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.graph import Network
from tamis.layerwise.journal import ORIGIN, LayerJournal, LayerOutcome
from tamis.progress import Progress
from tamis.training import Team

TEAM = Team(torch.device("cpu"))
LAYERS = 3


class Stopped(Exception):
    """The run is broken off."""


def model() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU()
    )
    return nn.Sequential(*module, nn.Linear(6, 3)).eval()


@pytest.fixture(scope="module")
def net() -> Network:
    return tamis.trace(model(), torch.zeros(1, 2, 4, 4))


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(40, 2, 4, 4, generator=torch.Generator().manual_seed(1))


Run = Callable[..., tamis.Compressed]


def run_of(kind: str) -> Run:
    """A call that goes layer by layer."""

    def repair(net: Network, x: Tensor, **options: Any) -> tamis.Compressed:
        return tamis.repair(net, tamis.prune(net, 0.5, by="magnitude"), x, **options)

    def prune(net: Network, x: Tensor, **options: Any) -> tamis.Compressed:
        return tamis.prune(net, 0.5, by="obs", calibration=x, **options)

    def quantize(net: Network, x: Tensor, **options: Any) -> tamis.Compressed:
        return tamis.quantize(net, x, levels=3, **options)

    return {"repair": repair, "prune": prune, "quantize": quantize}[kind]


KINDS = ("repair", "prune", "quantize")


def assert_same(found: tamis.Compressed, expected: tamis.Compressed) -> None:
    """Bit for bit, with the same figures."""
    assert found.recipe == expected.recipe
    assert found.masks.keys() == expected.masks.keys() and found.codes.keys() == expected.codes.keys()
    for name, value in expected.params.items():
        assert torch.equal(found.params[name], value), name
    for name, mask in expected.masks.items():
        assert torch.equal(found.masks[name], mask), name
    for name, code in expected.codes.items():
        other = found.codes[name]
        assert torch.equal(other.indices, code.indices) and torch.equal(other.scales, code.scales), name


# -- broken off ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(net: Network, x: Tensor) -> Callable[[str], tamis.Compressed]:
    """What each kind of run gives that is not broken off."""
    return cache(lambda kind: run_of(kind)(net, x, progress=False))


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        *(("repair", after) for after in range(1, LAYERS + 1)),
        *(("prune", 2), ("quantize", 2)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in product(("prune", "quantize"), (1, LAYERS))),
    ],
)
def test_a_run_broken_off_after_any_layer_goes_on_to_the_bit(
    net: Network, x: Tensor, whole: Any, kind: str, after: int, tmp_path: Path
) -> None:
    run = run_of(kind)

    def stop(now: Progress) -> None:
        assert now.total == LAYERS
        if now.done == after:
            raise Stopped

    with pytest.raises(Stopped):
        run(net, x, directory=tmp_path, progress=stop)
    finished = {path: path.read_bytes() for path in tmp_path.glob("layer_*.pt")}
    assert min(after + 1, LAYERS) >= len(finished) >= after
    assert_same(run(net, x, directory=tmp_path, progress=False), whole(kind))
    assert all(path.read_bytes() == content for path, content in finished.items())


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run_is_read_again(
    net: Network, x: Tensor, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(kind)
    expected = run(net, x, directory=tmp_path / "deep" / "er", progress=False)
    monkeypatch.setattr(LayerJournal, "record", None)  # nothing is left to record
    assert_same(run(net, x, directory=str(tmp_path / "deep" / "er"), progress=False), expected)


def test_an_error_within_a_layer_leaves_the_layers_before(
    net: Network, x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing half-written, also where the writing itself fails."""
    run, save, saved = run_of("repair"), torch.save, 0

    def failing(content: Any, file: Any) -> None:
        nonlocal saved
        saved += 1
        if saved == 2:
            file.write(b"half of")
            raise Stopped
        save(content, file)

    monkeypatch.setattr(torch, "save", failing)
    with pytest.raises(Stopped):
        run(net, x, directory=tmp_path, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer_0000.pt", ORIGIN]
    monkeypatch.undo()
    assert_same(run(net, x, directory=tmp_path, progress=False), run(net, x, progress=False))


# -- of another run ------------------------------------------------------------------------------------------------


def test_other_settings_are_refused(net: Network, x: Tensor, tmp_path: Path) -> None:
    small = tamis.prune(net, 0.5, by="magnitude")

    def repair(original: Network = net, start: tamis.Compressed = small, data: Any = x, **options: Any) -> None:
        tamis.repair(original, start, data, directory=tmp_path, progress=False, **options)

    def refused(match: str, **options: Any) -> None:
        with pytest.raises(InvalidInput, match=rf"origin.json' comes from another run: .*{match}.* by directory="):
            repair(**options)

    repair()
    refused("damping was 0.01, now it is 0.5", damping=0.5)
    refused("bias_correction was True, now it is False", bias_correction=False)
    refused(r"include was None, now it is \['0'\]", include="0")
    refused("calibration was", data=x + 1)
    refused("calibration was", data=x[:-1])
    refused("start was", start=tamis.prune(net, 0.4, by="magnitude"))
    refused("original was", original=net.with_params({"0.weight": net.params["0.weight"] + 1}))
    with pytest.raises(InvalidInput, match="step was 'repair', now it is 'quantize'"):
        tamis.quantize(net, x, directory=tmp_path, progress=False)
    with pytest.raises(InvalidInput, match="step was 'repair', now it is 'prune'"):
        tamis.prune(net, 0.5, by="obs", calibration=x, directory=tmp_path, progress=False)
    repair()  # what is refused changes nothing


def test_masks_count_even_where_the_values_are_the_same(x: Tensor, tmp_path: Path) -> None:
    """A zero that is pruned stays one; a zero that is not pruned may be refitted."""
    module = model()
    with torch.no_grad():
        module[4].weight[0].zero_()
    net = tamis.trace(module, x[:1])
    plain = tamis.Compressed(net)
    masked = tamis.prune(net, 16, by="magnitude", include="4")
    assert all(torch.equal(plain.params[name], value) for name, value in masked.params.items())
    tamis.repair(net, plain, x, directory=tmp_path, progress=False)
    with pytest.raises(InvalidInput, match="masks was"):
        tamis.repair(net, masked, x, directory=tmp_path, progress=False)


def test_layers_without_an_origin_are_refused(net: Network, x: Tensor, tmp_path: Path) -> None:
    run_of("repair")(net, x, directory=tmp_path, progress=False)
    (tmp_path / ORIGIN).unlink()
    with pytest.raises(InvalidInput, match=r"has 'layer_0000.pt' but no origin.json; name another place by"):
        run_of("repair")(net, x, directory=tmp_path, progress=False)


# -- damaged -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04", None])
@pytest.mark.parametrize("number", range(LAYERS))
def test_damaged_layers(net: Network, x: Tensor, number: int, content: bytes | None, tmp_path: Path) -> None:
    run = run_of("repair")
    expected = run(net, x, directory=tmp_path, progress=False)
    path = tmp_path / f"layer_{number:04d}.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(
        CorruptArtifact, match=rf"layer_000{number}.pt' is damaged .*; delete it, and the layer is computed again"
    ):
        run(net, x, directory=tmp_path, progress=False)
    path.unlink()
    assert_same(run(net, x, directory=tmp_path, progress=False), expected)


def test_a_single_bit(net: Network, x: Tensor, tmp_path: Path) -> None:
    """torch.load would take it: numbers that nobody computed."""
    run_of("repair")(net, x, directory=tmp_path, progress=False)
    path = tmp_path / "layer_0000.pt"
    weight = torch.load(path)["params"]["0.weight"]
    content = bytearray(path.read_bytes())
    content[content.index(weight.numpy().tobytes()) + 3] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(CorruptArtifact, match=r"layer_0000.pt' is damaged \(the checksum of .* is wrong\)"):
        run_of("repair")(net, x, directory=tmp_path, progress=False)


@pytest.mark.parametrize("content", [{}, [], {"weight": "0.weight"}, {"weight": "0.weight", "codes": {"a": {}}}, 5])
def test_layers_that_say_something_else(net: Network, x: Tensor, content: Any, tmp_path: Path) -> None:
    run_of("repair")(net, x, directory=tmp_path, progress=False)
    torch.save(content, tmp_path / "layer_0000.pt")
    with pytest.raises(CorruptArtifact, match=r"layer_0000.pt' is damaged"):
        run_of("repair")(net, x, directory=tmp_path, progress=False)


def test_layers_that_were_exchanged(net: Network, x: Tensor, tmp_path: Path) -> None:
    run_of("repair")(net, x, directory=tmp_path, progress=False)
    (tmp_path / "layer_0001.pt").replace(tmp_path / "layer_0002.pt")
    with pytest.raises(
        CorruptArtifact, match=r"layer_0002.pt' is damaged \(it holds the layer of '4.weight', not of '6.weight'\)"
    ):
        run_of("repair")(net, x, directory=tmp_path, progress=False)


@pytest.mark.parametrize("content", ["", "{", "[1", "\x00", "[]", "5", "null", "[" * 9_999], ids=range(8))
def test_damaged_origins(net: Network, x: Tensor, content: str, tmp_path: Path) -> None:
    (tmp_path / ORIGIN).write_text(content)
    with pytest.raises(CorruptArtifact, match=r"origin.json is damaged: .*; delete its directory to begin anew"):
        run_of("repair")(net, x, directory=tmp_path, progress=False)


@pytest.mark.parametrize("content", ["{}", '{"step": "repair"}'])
def test_origins_that_say_something_else(net: Network, x: Tensor, content: str, tmp_path: Path) -> None:
    (tmp_path / ORIGIN).write_text(content)
    with pytest.raises(InvalidInput, match=r"origin.json' comes from another run"):
        run_of("repair")(net, x, directory=tmp_path, progress=False)


# -- the journal itself --------------------------------------------------------------------------------------------


def test_outcomes_come_back_whole(tmp_path: Path) -> None:
    codes = Codes(torch.ones(2, 3, dtype=torch.uint8), torch.tensor([-1.0, 1.0]), torch.tensor([[0.5]]))
    outcome = LayerOutcome(
        {"w": torch.randn(2, 3), "b": torch.randn(2)}, {"w": codes}, {"w": torch.ones(2, 3) > 0}, {"zeros": 0.5}
    )
    journal = LayerJournal(tmp_path, {"step": "test"}, TEAM)
    journal.begin("data")
    assert journal.read(0, "w") is None
    journal.record(0, "w", outcome)
    found = LayerJournal(tmp_path, {"step": "test"}, TEAM).read(0, "w")
    assert found is not None and found.figures == outcome.figures
    assert all(torch.equal(found.params[name], value) for name, value in outcome.params.items())
    assert torch.equal(found.masks["w"], outcome.masks["w"])
    for part in ("indices", "levels", "scales"):
        assert torch.equal(getattr(found.codes["w"], part), getattr(codes, part))
    assert json.loads((tmp_path / ORIGIN).read_text()) == {"step": "test", "calibration": "data"}


def test_without_a_directory_nothing_is_kept() -> None:
    journal = LayerJournal(None, {"step": "test"}, TEAM)
    journal.begin("data")
    journal.record(0, "w", LayerOutcome({}))
    assert journal.read(0, "w") is None
