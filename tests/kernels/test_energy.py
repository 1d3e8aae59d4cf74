"""Energy: what counters say, divided by the runs; None with a reason where there is none."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tamis.errors import InvalidInput
from tamis.kernels import energy
from tamis.kernels.energy import Energy, find_counter, measure_energy


class Clock:
    """A counter whose joules are those of calls that were made, and seconds likewise."""

    name = "counted calls"

    def __init__(self, joules: float, seconds: float) -> None:
        self.joules, self.seconds, self.calls = joules, seconds, 0

    def __call__(self) -> float:
        return 7.0 + self.joules * self.calls

    def run(self) -> None:
        self.calls += 1

    def time(self) -> float:
        return 100.0 + self.seconds * self.calls


@pytest.mark.parametrize("seconds", [1e-6, 0.003, 0.4, 30.0])
def test_joules_are_those_of_one_run(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(joules=2.5, seconds=seconds)
    monkeypatch.setattr(energy.time, "perf_counter", clock.time)
    found = measure_energy(clock.run, seconds=1.0, counter=clock)
    assert found.joules == pytest.approx(2.5) and found.reason == "counted calls"
    assert found.seconds >= 1 - 1e-9 and found.repeats == pytest.approx(math.ceil(1 / seconds), rel=0.01)
    assert str(found) == "2.5 J"


def test_a_counter_that_stands_still_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(joules=0.0, seconds=0.2)
    monkeypatch.setattr(energy.time, "perf_counter", clock.time)
    found = measure_energy(clock.run, seconds=1.0, counter=clock)
    assert found.joules is None and str(found) == "not measured (counted calls did not move in 1.00 s)"


def zone(root: Path, folder: str, name: str, microjoules: int, most: int = 10_000_000) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    for file, value in (("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
        (place / file).write_text(f"{value}\n")
    return place


def test_rapl_sums_packages_and_memory_and_goes_on_where_a_counter_begins_again(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 5_000_000)  # a part of the package
    zone(tmp_path, "intel-rapl:1", "package-1", 2_000_000)
    counter = energy._find_cpu_counter(tmp_path)
    assert not isinstance(counter, str) and counter.name == "RAPL, package-0, dram, package-1"
    assert counter() == pytest.approx(12.0)
    (first / "energy_uj").write_text("500000\n")  # 1.5 J later
    (memory / "energy_uj").write_text("1250000\n")
    assert counter() == pytest.approx(13.75)


def test_where_there_is_no_counter_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    found = measure_energy(lambda: None)
    assert found == Energy(None, f"no counter of a processor under {tmp_path}")
    assert str(found).startswith("not measured (no counter")

    def refuse(self: Path, *_: Any, **__: Any) -> str:
        if self.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(self))
        return "package-0" if self.name == "name" else "1000"

    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    monkeypatch.setattr(Path, "read_text", refuse)
    assert find_counter("cpu") == f"the counters under {tmp_path} cannot be read: permission denied"


class Driver:
    """NVML, as far as it is called."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.readings = fails, itertools.count(5_000, 1_500)

    def _code(self, name: str) -> int:
        return 3 if name == self.fails else 0

    def nvmlInit_v2(self) -> int:
        return self._code("init")

    def nvmlDeviceGetHandleByUUID(self, identity: bytes, handle: Any) -> int:
        assert identity == b"GPU-1234"
        return self._code("handle")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> int:
        value._obj.value = next(self.readings)
        return self._code("energy")


@pytest.fixture
def one_board(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, uuid = "Some Board", "1234"

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)


def test_a_board_is_found_by_its_identity(one_board: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy.ctypes, "CDLL", lambda name: Driver())
    counter = find_counter("cuda:0")
    assert not isinstance(counter, str) and counter.name == "NVML, Some Board"
    assert [counter(), counter()] == [6.5, 8.0]  # one reading was to see whether there is a counter


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        ("init", "NVML does not begin: error 3"),
        ("handle", "NVML does not know Some Board, GPU-1234: error 3"),
        ("energy", "Some Board has no counter of energy: error 3 of NVML"),
    ],
)
def test_what_the_driver_refuses(fails: str, reason: str, one_board: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy.ctypes, "CDLL", lambda name: Driver(fails))
    assert find_counter("cuda") == reason


def test_without_a_board_or_a_driver(one_board: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_counter("cuda:3") == "torch finds 1 CUDA devices here"
    monkeypatch.setattr(energy, "NVML", "libnone-of-that-name.so.1")
    assert find_counter("cuda") == "the driver's library libnone-of-that-name.so.1 is not here"


def test_what_is_no_device_or_no_time_is_refused() -> None:
    with pytest.raises(InvalidInput, match="on cpu or cuda, got 'tpu'"):
        find_counter("tpu")
    with pytest.raises(InvalidInput, match="seconds must be > 0, got 0"):
        measure_energy(lambda: None, seconds=0)
