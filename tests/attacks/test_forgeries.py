"""Certificates that a forger changed: every field in turn, with a digest to match, must be refused by who has the data.

What a forger may change is what nobody relies on: who made it, when, and what things are called.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attacks.attack_size import TIMES
from torch import Tensor, nn

import tamis
from tamis.errors import TamisError
from tamis.verification import Certificate
from tamis.verification.certificate import digest_of

CHANGES = 2 * TIMES  # of each field
NAMES = {(part, "name") for part in ("file", "network", "data", "training")}
UNPROVED = {("made_by",), ("date",), ("command",)} | NAMES
Place = tuple[Any, ...]


class Scene:
    """Two networks, data, and a certificate with every kind of claim."""

    def __init__(self, folder: Path) -> None:
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.net = tamis.trace(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), torch.zeros(1, 4))
        self.file = folder / "small.tamis"
        tamis.prune(self.net, 12, by="magnitude").save(self.file)
        inputs, others = torch.randn(300, 4, generator=generator), torch.randn(120, 4, generator=generator)
        labels = self.net(inputs).argmax(1)
        labels[:40] = (labels[:40] + 1) % 3
        self.data: dict[str, Any] = {"inputs": inputs, "labels": labels}
        self.data["training"] = (others, self.net(others).argmax(1))
        options = {"radius": 0.01, "boxed": 2, "max_disagreement": 0.5, "max_accuracy_drop": 0.5}
        self.certificate = tamis.certify(self.net, self.file, **self.data, **options)

    def is_accepted(self, content: dict[str, Any]) -> bool:
        """Whether a verifier with the data takes a certificate with this content; any error must be one of tamis."""
        try:
            forged = Certificate({**content, "digest": digest_of(content)})
            return tamis.verify(forged, self.file, self.net, **self.data).ok
        except TamisError as reason:
            assert str(reason)
            return False


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"))


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every number, text and null of a certificate, and where it stands."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*place, name))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*place, index))
    else:
        yield place, value


def changed(value: Any, draw: random.Random) -> Any:
    """Something else in its stead: a little better, a little worse, or of another kind."""
    others: list[Any] = [None, 0, 1, -1, "", "x", [], {}, True, False, 1e300, 2**60]
    if isinstance(value, bool):
        others = [not value]
    elif isinstance(value, int):
        others += [value - 1, value + 1, value // 2, float(value)]
    elif isinstance(value, float):
        others += [value * 0.999, value * 1.001, value / 2, value - 1e-6, -value]
    elif isinstance(value, str):
        others += [value[::-1], value + " ", value.replace("at most", "at least"), value[:-1] + "0"]
    return draw.choice([other for other in others if (type(other), other) != (type(value), value)])


def with_leaf(content: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """A copy with another value at a place."""
    result = copy.deepcopy(content)
    inner: Any = result
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return result


@pytest.mark.slow
def test_no_change_of_any_field_is_accepted(scene: Scene) -> None:
    draw = random.Random(0)
    content = scene.certificate.content
    assert scene.is_accepted(content)
    accepted = []
    for place, value in leaves(content):
        # Who changes what was required says something else, which is accepted only where it is true.
        if place in UNPROVED or place == ("digest",) or place[-1] == "at_most":
            continue
        for _ in range(CHANGES):
            other = changed(value, draw)
            if scene.is_accepted(with_leaf(content, place, other)):
                accepted.append((place, value, other))
    # A number may differ in its last digits, since libraries do: such a change says the same.
    assert not [each for each in accepted if not is_rounding(*each[1:])]


def is_rounding(value: Any, other: Any) -> bool:
    """Whether two numbers are the same to nine digits."""
    return isinstance(value, float) and isinstance(other, float) and abs(value - other) <= 1e-9 * abs(value)


@pytest.mark.slow
def test_no_other_file_network_or_data_is_accepted(scene: Scene, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    for number in range(10 * TIMES):
        draw = random.Random(number)
        data = dict(scene.data)
        data["inputs"] = nudged(data["inputs"], generator)
        assert_refused(scene, scene.file, scene.net, data)
        labels = scene.data["labels"].clone()
        labels[draw.randrange(len(labels))] += 1
        assert_refused(scene, scene.file, scene.net, {**scene.data, "labels": labels % 3})
        name = draw.choice(sorted(scene.net.params))
        other = scene.net.with_params({name: nudged(scene.net.params[name], generator)})
        assert_refused(scene, scene.file, other, scene.data)
        tamis.prune(other, 12, by="magnitude").save(tmp_path / "other.tamis")
        if (tmp_path / "other.tamis").read_bytes() != scene.file.read_bytes():  # the entry may have been pruned
            assert_refused(scene, tmp_path / "other.tamis", scene.net, scene.data)


def nudged(values: Tensor, generator: torch.Generator) -> Tensor:
    """A copy with one entry moved by one unit in its last place."""
    flat = values.detach().clone().flatten()
    place = int(torch.randint(len(flat), (1,), generator=generator))
    flat[place] = torch.nextafter(flat[place], torch.tensor(torch.inf))
    return flat.view(values.shape)


def assert_refused(scene: Scene, file: Path, net: tamis.Network, data: dict[str, Any]) -> None:
    with pytest.raises(TamisError):
        tamis.verify(scene.certificate, file, net, **data)
