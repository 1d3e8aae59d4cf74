"""The experiments of learning online: what is run, what is stored, what is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments import online
from experiments.online import (
    FIXED,
    FULL,
    FULL_GROWTH,
    FULL_MOVES,
    FULL_SPREAD,
    FULL_XNOR,
    PARTS,
    REGRETS,
    ROOT,
    SHORT,
    SHORT_GROWTH,
    SHORT_MOVES,
    SHORT_SPREAD,
    SHORT_XNOR,
    Beside,
    Growth,
    Moves,
    Spread,
    compute_regrets,
    fit_exponent,
    learn,
    main,
    run,
    run_growth,
    run_moves,
    run_spread,
    run_xnor,
)
from tamis.bayes import LEAST_BOUND, RunSettings, find_experts
from tamis.bayes.summary import OFFLINE
from tamis.reports.figures import Panel

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

TINY = RunSettings("graph", "graph", rounds=6, batch=4, particles=6, tau=0.5, layers=(1, 2), filters=(2,))


@pytest.fixture(autouse=True)
def short_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "find_experts", lambda done: find_experts(done, steps=3))


def test_plans() -> None:
    assert list(FULL) == list(SHORT) == ["digits", "mnist", "series", "graph"]
    for part, asked in SHORT.items():
        whole = FULL[part]
        assert asked.rounds < whole.rounds and asked.particles < whole.particles
        few = {"rounds": whole.rounds, "particles": whole.particles, "subsample": whole.subsample}
        assert replace(asked, **few) == whole  # type: ignore[arg-type]
    assert SHORT_GROWTH.rounds[-1] < FULL_GROWTH.rounds[-1] and set(SHORT_XNOR) < set(FULL_XNOR)


@pytest.mark.parametrize("power", [0.5, 1.0, -0.25])
def test_exponents_of_powers(power: float) -> None:
    rows = [{"rounds": rounds, "value": 3 * rounds**power} for rounds in (10, 20, 80)]
    assert fit_exponent(rows, "value") == pytest.approx(power)
    assert fit_exponent([*rows, {"rounds": 100, "value": -1.0}], "value") is None
    assert fit_exponent(rows[:1], "value") is None


@pytest.fixture(scope="module")
def figures() -> dict[str, dict[str, Any]]:
    """Of every part, on a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "find_experts", lambda done: find_experts(done, steps=3))
        found = dict.fromkeys(FULL, learn(TINY, "cpu"))
        found["growth"] = run_growth(Growth(TINY, (3, 6), 2, 1.0, 2.0), "cpu")
        found["moves"] = run_moves(Moves(replace(TINY, rounds=3), (None, 4), seeds=2), "cpu")
        found["spread"] = run_spread({"graph": Spread(replace(TINY, rounds=3), (0.0, 0.5), seeds=2)}, "cpu")
        plan = replace(TINY, data="series", layers=(3,), rounds=3, particles=3, sizes=(3,))
        found["xnor"] = run_xnor({"series": Beside(plan, "conv1d")}, "cpu")
    return found


def test_a_run_has_its_account_and_its_curves(figures: dict[str, dict[str, Any]]) -> None:
    found = figures["graph"]
    assert found["asked"] == asdict(TINY) and found["seconds"] >= 0
    assert found["loss"] == pytest.approx(found["curves"]["losses"]["drawn networks"][-1][1])
    less = compute_regrets(found)
    assert list(less) == list(REGRETS)
    assert less["bound, least"] == found["bounds"][LEAST_BOUND]["value"] - found["loss of the network trained offline"]
    assert less["bound, shifted prior"] >= found["bounds"][OFFLINE]["terms"]["KL/λ"]


def test_growth_has_a_row_for_each_length_and_rule(figures: dict[str, dict[str, Any]]) -> None:
    rows = figures["growth"]["rows"]
    assert [(row["lambda"], row["rounds"]) for row in rows] == [(FIXED, 3), (FIXED, 6), (ROOT, 3), (ROOT, 6)]
    assert [row["lam"] for row in rows] == [1.0, 1.0, pytest.approx(2 / 3**0.5), pytest.approx(2 / 6**0.5)]
    assert all(len(row["architectures"]) == 2 for row in rows)
    means = [
        sum(compute_regrets(learn(replace(TINY, seed=seed), "cpu"))[name] for seed in (0, 1)) / 2 for name in REGRETS
    ]
    assert [rows[1][name] for name in REGRETS] == pytest.approx(means)


def test_moves_have_a_row_for_each_number_of_past_rounds(figures: dict[str, dict[str, Any]]) -> None:
    exact, some = figures["moves"]["rows"]
    assert exact["subsample"] is None and some["subsample"] == 4
    assert exact["expected loss"] == pytest.approx(some["expected loss"])  # three rounds: there are none to leave out


def test_spreads_have_a_row_for_each_seed(figures: dict[str, dict[str, Any]]) -> None:
    rows = figures["spread"]["rows"]
    assert {row["stream"] for row in rows} == {"graph"}
    assert [(row["spread"], row["seed"]) for row in rows] == [(0.0, 0), (0.0, 1), (0.5, 0), (0.5, 1)]
    assert all(sum(row["architectures"].values()) == pytest.approx(1) for row in rows)


def test_xnor_networks_stand_beside_real_ones(figures: dict[str, dict[str, Any]]) -> None:
    rows = figures["xnor"]["rows"]
    assert list(rows) == ["series, xnor", "series, conv1d"]
    binary, real = rows.values()
    assert binary["sparsity"]["signs"] == pytest.approx(2 * 2 * 3)  # a mean, by weights that sum to 1 but for rounding
    assert real["sparsity"]["signs"] == 0
    assert any("Theorem 3.2" in name for name in binary["bounds"])


def test_every_part_is_run_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("learn", "run_growth", "run_moves", "run_spread", "run_xnor"):
        monkeypatch.setattr(online, name, lambda plan, device, name=name: {"ran": name, "plan": plan})
    assert run("mnist", False, "cpu") == {"ran": "learn", "plan": SHORT["mnist"]}
    assert run("mnist", True, "cpu")["plan"] == FULL["mnist"]
    assert run("growth", False, "cpu")["plan"] == SHORT_GROWTH and run("growth", True, "cpu")["plan"] == FULL_GROWTH
    assert run("moves", False, "cpu")["plan"] == SHORT_MOVES and run("moves", True, "cpu")["plan"] == FULL_MOVES
    assert run("spread", False, "cpu")["plan"] == SHORT_SPREAD and run("spread", True, "cpu")["plan"] == FULL_SPREAD
    assert run("xnor", False, "cpu")["plan"] == SHORT_XNOR and run("xnor", True, "cpu")["plan"] == FULL_XNOR


@pytest.fixture
def program(figures: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The program with its parts done."""
    monkeypatch.setattr(online, "run", lambda part, *_: figures[part])

    def started(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["online.py", *map(str, arguments)])
        main()

    return started


def test_parts_are_shown_stored_and_drawn(
    program: Callable[..., None],
    figures: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: dict[Path, Sequence[Panel]] = {}
    monkeypatch.setattr(online, "draw_panels", lambda panels, path: drawn.update({path: panels}))
    program("--results", tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("\nThis is the short mode")
    for part in ("networks drawn", "bound, least over all laws", "λ ∝ 1/√T, exponent", "series, xnor: 3 rounds"):
        assert part in shown
    stored = json.loads((tmp_path / "online_short.json").read_text())["figures"]
    assert list(stored) == list(PARTS)
    assert stored["graph"]["bounds"] == json.loads(json.dumps(figures["graph"]["bounds"]))
    assert "curves" not in stored["graph"]  # they would be most of the file, and are in the pictures
    assert list(drawn) == [tmp_path / f"online_short_{part}.svg" for part in ("digits", "growth")]
    assert all(panel.curves and all(panel.curves.values()) for panels in drawn.values() for panel in panels)


def test_one_part_of_the_full_mode(program: Callable[..., None], tmp_path: Path) -> None:
    program("--full", "--only", "growth", "--results", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["online.json", "online_growth.svg"]
    assert ElementTree.parse(tmp_path / "online_growth.svg").getroot().tag.endswith("svg")


def test_without_matplotlib_figures_are_stored_all_the_same(
    program: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # makes importing it raise
    program("--only", "digits", "--results", tmp_path)
    assert "no picture was drawn: figures need matplotlib" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["online_short.json"]


def test_missing_data_end_the_program_with_one_line(failing_program: Callable[..., tuple[object, str, str]]) -> None:
    status, _, said = failing_program("online", "--only", "mnist")
    assert status == 1
    assert said.startswith("error: ") and said.count("\n") == 1


@pytest.mark.slow
def test_the_graph_is_learnt_below_its_bounds() -> None:
    found = learn(replace(SHORT["graph"], rounds=200), "cpu")
    assert found["expected loss"] < 0.6 * found["loss of a uniform guess"]
    assert found["expected loss"] <= found["bounds"][LEAST_BOUND]["value"] < found["loss of a uniform guess"]
    assert all(found["expected loss"] <= bound["value"] for bound in found["bounds"].values())
    assert found["error of the averaged prediction"] < 0.2
