"""The list beside a file names all samples, belongs to that file alone, and cannot hide what the file knows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tamis
from tamis.architecture import Architecture
from tamis.artifact import Compressed, save_weights, seen_filter, seen_in
from tamis.artifact.seen_list import list_path
from tamis.errors import CorruptArtifact
from tamis.graph import SeenSamples, remember

SEEN = SeenSamples.of(np.random.default_rng(0).integers(0, 2**64, 500, dtype=np.uint64), "calibration")


@pytest.fixture(scope="module")
def small() -> Compressed:
    torch.manual_seed(0)
    return Compressed(tamis.trace(nn.Linear(40, 40), torch.zeros(1, 40))).having_seen(SEEN)


def cells(seen: SeenSamples) -> list[int]:
    return seen.cells.tolist()


def test_all_three_kinds_of_files_have_one(small: Compressed, tmp_path: Path) -> None:
    model = nn.Linear(40, 40)
    remember(model, SEEN)
    small.save(tmp_path / "small.tamis")
    save_weights(model, tmp_path / "model.safetensors")
    Architecture({"weight": torch.ones(40, 40, dtype=torch.bool)}, SEEN).save(tmp_path / "a.architecture")

    def read_all() -> list[SeenSamples]:
        return [
            tamis.load(tmp_path / "small.tamis", model).seen,
            seen_in(tmp_path / "model.safetensors"),
            Architecture.load(tmp_path / "a.architecture").seen,
        ]

    assert [cells(seen) for seen in read_all()] == [cells(SEEN)] * 3
    for name in ("small.tamis", "model.safetensors", "a.architecture"):
        list_path(tmp_path / name).unlink()
    assert all(len(seen.cells) < 500 for seen in read_all())


def test_a_file_that_needs_none_has_none_and_removes_that_of_before(small: Compressed, tmp_path: Path) -> None:
    path = tmp_path / "small.tamis"
    small.save(path)
    assert list_path(path).name == "small.tamis.seen" and list_path(path).exists()
    Compressed(small.network.replace(seen=SEEN.first(2))).save(path)
    assert not list_path(path).exists()


def test_the_list_of_another_file_is_left_alone(small: Compressed, tmp_path: Path) -> None:
    small.save(tmp_path / "small.tamis")
    other = Compressed(tamis.trace(nn.Linear(40, 40), torch.zeros(1, 40)))
    other.save(tmp_path / "other.tamis")
    list_path(tmp_path / "small.tamis").rename(list_path(tmp_path / "other.tamis"))
    assert not tamis.load(tmp_path / "other.tamis", other.network).seen


def test_a_link_leads_to_the_list_as_well(small: Compressed, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    small.save(tmp_path / "far" / "small.tamis")
    (tmp_path / "link.tamis").symlink_to(tmp_path / "far" / "small.tamis")
    assert cells(tamis.load(tmp_path / "link.tamis", small.network).seen) == cells(SEEN)
    small.save(tmp_path / "link.tamis")
    assert not list_path(tmp_path / "link.tamis").with_name("link.tamis.seen").exists()


def test_a_name_with_no_room_for_a_suffix_has_no_list(small: Compressed, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 249 + ".tamis")
    small.save(path)
    assert len(tamis.load(path, small.network).seen.cells) < 500 and [*tmp_path.iterdir()] == [path]


def forget(said: dict[str, str]) -> str:
    """Name one sample only, which the file does not have."""
    return json.dumps(said | {"seen": seen_filter.encode(SeenSamples(np.array([5]), purposes=("search",)))})


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (forget, "does not name all samples that"),
        (lambda said: json.dumps(said | {"seen": "AAAA"}), "does not say what its network has seen"),
        (lambda said: json.dumps(said)[:-4], "is damaged: it is not JSON"),
        (lambda said: "[1]", "is damaged: it holds"),
        (lambda said: json.dumps(said) + " " * 2**20, "is larger than any list of samples"),
    ],
)
def test_a_forged_list_is_refused_by_its_name(small: Compressed, tmp_path: Path, forge, message: str) -> None:
    path = tmp_path / "small.tamis"
    small.save(path)
    list_path(path).write_text(forge(json.loads(list_path(path).read_text())))
    with pytest.raises(CorruptArtifact, match=f"small\\.tamis\\.seen'? {message}"):
        tamis.load(path, small.network)
