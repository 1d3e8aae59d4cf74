"""The thesis' pruning experiment, on a tiny scale: its figures, its tables, what it stores; and what was stored."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

import tamis
from experiments import RESULTS, phi_pruning
from experiments.phi_pruning import (
    FULL,
    LEVELS,
    RESCALED,
    THESIS_ACCURACY,
    THESIS_OVERLAP,
    VARIANTS,
    Job,
    Plan,
    is_invariant,
    main,
    run,
    show,
)
from tamis.training import CHECKPOINT, Settings, evaluate, load_data, load_epoch_weights, train
from tamis.training.models import digits_cnn

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

TINY = Plan(
    Settings(epochs=3, batch=20, learning_rate=0.05),
    rewind=1,
    levels=(0.4, 0.8),
    data="digits:train[:80]",
    test="digits:test[:60]",
    model="digits_cnn",
)
FINAL = "classifier.weight"
Study = dict[str, Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def directory(root: Path) -> Path:
    """Where `main` looks for the trainings of the short plan."""
    return root / "short" / "digits_cnn"


@pytest.fixture(scope="module")
def studied(directory: Path) -> tuple[list[Study], tamis.Network]:
    return run(TINY, directory, "cpu", workers=1, seeds=1)


@pytest.fixture(scope="module")
def study(studied: tuple[list[Study], tamis.Network]) -> Study:
    (only,) = studied[0]
    return only


@pytest.fixture(scope="module")
def net(studied: tuple[list[Study], tamis.Network]) -> tamis.Network:
    return studied[1]


def checkpoints(directory: Path) -> dict[str, int]:
    """When each was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in directory.glob(f"seed_*/*/{CHECKPOINT}")}


# -- the methods, written out --------------------------------------------------------------------------------------


def weights(net: tamis.Network) -> dict[str, Tensor]:
    return {name: net.params[name] for name in sorted(net.params) if net.params[name].dim() > 1}


def smallest(scores: Mapping[str, Tensor], count: int) -> set[tuple[str, int]]:
    """The name and place of the `count` smallest scores."""
    every = [(name, place) for name in sorted(scores) for place in range(scores[name].numel())]
    order = torch.cat([scores[name].flatten() for name in sorted(scores)]).argsort(stable=True)
    return {every[number] for number in order[:count].tolist()}


def pruned_by(method: str, level: float, net: tamis.Network) -> set[tuple[str, int]]:
    """What the thesis prunes: `level` of each layer or of the network, the final layer at half the rate."""
    net = tamis.rescale(net, TINY.settings.seed) if method == RESCALED else net
    by_cost = method.startswith("Φ")
    costs = tamis.path_costs(net).values if by_cost else {}
    scores = {name: costs[name] if by_cost else value.abs() for name, value in weights(net).items()}
    counts = {name: round(scores[name].numel() * (level / 2 if name == FINAL else level)) for name in scores}
    if method == "Φ-GP":
        return smallest(scores, sum(counts.values()))
    return {pruned for name in scores for pruned in smallest({name: scores[name]}, counts[name])}


def as_masks(pruned: set[tuple[str, int]], net: tamis.Network) -> tamis.Masks:
    masks = {name: torch.ones(value.numel(), dtype=torch.bool) for name, value in weights(net).items()}
    for name, place in pruned:
        masks[name][place] = False
    return tamis.Masks({name: mask.view_as(net.params[name]) for name, mask in masks.items()})


# -- figures -------------------------------------------------------------------------------------------------------


def assert_tables(study: Study, plan: Plan) -> None:
    """Every figure of a plan's tables is there, and can be what it says."""
    levels = [str(level) for level in plan.levels]
    assert list(study["retrained"]) == list(study["not retrained"]) == ["MP", "Φ-LP", "Φ-GP", "MP + rescale"]
    for figure in ("retrained", "not retrained"):
        assert all(list(by_level) == levels for by_level in study[figure].values())
        assert all(0 <= accuracy <= 1 for by_level in study[figure].values() for accuracy in by_level.values())
    assert set(study["overlap with MP"]) == {"Φ-GP", "Φ-LP", "MP + rescale"}
    for by_level in study["overlap with MP"].values():
        assert list(by_level) == [str(level) for level in LEVELS]
        assert all(0 < overlap <= 1 for overlap in by_level.values())
    assert study["same Φ-masks after rescaling"] is True
    assert 0 <= study["dense"] <= 1


def assert_complete(study: Study, plan: Plan) -> None:
    """Every figure of a plan is there, and curves end where the tables say."""
    assert_tables(study, plan)
    levels = [str(level) for level in plan.levels]
    assert study["dense"] == study["curves"]["dense"][-1][1]
    assert [epoch for epoch, _ in study["curves"]["dense"]] == list(range(1, plan.settings.epochs + 1))
    assert len(study["curves"]) == 1 + len(VARIANTS) * len(levels)
    for method in VARIANTS:
        for level in plan.levels:
            curve = study["curves"][f"{method} {level:.0%}"]
            assert [epoch for epoch, _ in curve] == list(range(plan.rewind + 1, plan.settings.epochs + 1))
            assert curve[-1][1] == study["retrained"][method][str(level)]


def test_all_figures_are_there(study: Study) -> None:
    assert_complete(study, TINY)
    assert study["dense"] > 0.2  # ten classes: it has learnt something


@pytest.mark.parametrize("method", ["Φ-GP", "Φ-LP", RESCALED])
def test_overlaps_are_those_of_the_sets(method: str, study: Study, net: tamis.Network) -> None:
    for level in (0.1, 0.4, 0.8):
        by_magnitude, other = pruned_by("MP", level, net), pruned_by(method, level, net)
        wanted = len(by_magnitude & other) / len(by_magnitude)
        assert study["overlap with MP"][method][str(level)] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", VARIANTS)
def test_accuracies_are_those_of_pruning_rewinding_and_retraining_by_hand(
    method: str, study: Study, net: tamis.Network, directory: Path
) -> None:
    level, test = 0.8, load_data(TINY.test)
    masks = as_masks(pruned_by(method, level, net), net)
    model = digits_cnn()
    source = tamis.rescale(net, TINY.settings.seed) if method == RESCALED else net
    model.load_state_dict(masks.zeroed(source.state_dict()))
    assert study["not retrained"][method][str(level)] == evaluate(model, test)
    model.load_state_dict(load_epoch_weights(directory / "seed_0" / "dense", TINY.rewind))
    options: dict[str, Any] = {"test": test, "masks": masks, "first_epoch": TINY.rewind, "progress": False}
    again = train(model, load_data(TINY.data), TINY.settings, **options)
    curve = [(epoch.epoch, epoch.test_accuracy) for epoch in again.history]
    assert study["curves"][f"{method} {level:.0%}"] == curve


def test_invariance_is_measured(study: Study, net: tamis.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    assert study["same Φ-masks after rescaling"] is True
    monkeypatch.setitem(phi_pruning.METHODS, "Φ-LP", phi_pruning.METHODS["MP"])
    assert not is_invariant(net, TINY)


@pytest.mark.slow
def test_workers_change_nothing_and_seeds_begin_elsewhere(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    studies, net = run(TINY, tmp_path, "cpu", workers=2, seeds=2)
    assert studies[0] == study
    assert_complete(studies[1], TINY)
    assert studies[1]["overlap with MP"] != study["overlap with MP"]
    other = replace(TINY, settings=replace(TINY.settings, seed=1))
    last = Job(other, tmp_path / "seed_1", "cpu").run().model.state_dict()
    assert all(torch.equal(value, last[name]) for name, value in net.params.items())
    show(studies, TINY)
    dense = 100 * torch.tensor([each["dense"] for each in studies], dtype=torch.float64)
    assert f"dense: {dense.mean():.1f} ± {dense.std():.1f} (67.7)\n" in capsys.readouterr().out


# -- tables --------------------------------------------------------------------------------------------------------

# As the thesis prints them, at 10%, 20%, 40%, 60% and 80%.
TABLE_3_1 = {"Φ-GP": "70% 74% 76% 80% 86%", "Φ-LP": "87% 82% 90% 94% 96%"}
TABLE_3_2 = {
    "MP (+ Random Rescale)": "69.0 (68.8) 69.0 (68.7) 68.8 (63.1) 68.2 (57.5) 66.5 (15.8)",
    "Φ-LP": "68.8 68.9 68.7 68.1 66.1",
    "Φ-GP": "68.6 68.8 68.6 67.9 66.0",
}


def numbers(row: str) -> tuple[float, ...]:
    return tuple(float(number.strip("()%")) for number in row.split())


def test_the_thesis_numbers_are_those_of_its_tables() -> None:
    assert {name: numbers(row) for name, row in TABLE_3_1.items()} == THESIS_OVERLAP
    magnitude = numbers(TABLE_3_2["MP (+ Random Rescale)"])
    assert {
        "MP": magnitude[::2],
        RESCALED: magnitude[1::2],
        "Φ-LP": numbers(TABLE_3_2["Φ-LP"]),
        "Φ-GP": numbers(TABLE_3_2["Φ-GP"]),
    } == THESIS_ACCURACY
    assert LEVELS == (0.1, 0.2, 0.4, 0.6, 0.8)


def row_of(table: str, name: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"{name:14}")]
    return line.removeprefix(name).split()


def in_per_cent(ours: Mapping[str, float], theirs: Sequence[float] = ()) -> list[str]:
    """One of our rows as it must be printed, with the thesis' numbers for its levels."""
    by_level = dict(zip(map(str, LEVELS), theirs, strict=False))
    cells = [[f"{100 * value:.1f}", *([f"({by_level[level]:.1f})"] if theirs else [])] for level, value in ours.items()]
    return [part for cell in cells for part in cell]


def test_the_tables_show_the_thesis_beside_ours(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    show([study], TINY)
    about, overlaps, retrained, at_once, verdict = capsys.readouterr().out.strip().split("\n\n")
    assert about == "In parentheses: the thesis, ResNet-18 on ImageNet. Ours: digits_cnn on digits:train[:80]."
    assert overlaps.splitlines()[1].split() == ["10%", "20%", "40%", "60%", "80%"]
    for name, ours in study["overlap with MP"].items():
        assert row_of(overlaps, name) == in_per_cent(ours, THESIS_OVERLAP.get(name, ()))
    assert retrained.splitlines()[0].endswith(f"dense: {100 * study['dense']:.1f} (67.7)")
    assert retrained.splitlines()[1].split() == at_once.splitlines()[1].split() == ["40%", "80%"]
    for name in VARIANTS:
        assert row_of(retrained, name) == in_per_cent(study["retrained"][name], THESIS_ACCURACY[name])
        assert row_of(at_once, name) == in_per_cent(study["not retrained"][name])
    assert verdict == "Φ-pruning chose the same weights after a random rescaling, at all levels."


def test_other_masks_after_a_rescaling_are_not_hidden(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    show([study, study | {"same Φ-masks after rescaling": False}], TINY)
    assert "Φ-pruning chose OTHER weights" in capsys.readouterr().out


# -- the program ---------------------------------------------------------------------------------------------------


@pytest.fixture
def program(root: Path, study: Study, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The program with the tiny plan for a short one, and its trainings done."""
    monkeypatch.setattr(phi_pruning, "SHORT", TINY)
    monkeypatch.setattr(phi_pruning, "CIFAR_RESNETS", ("digits_cnn",))

    def started(*arguments: object) -> None:
        argv = ["phi_pruning.py", "--model", "digits_cnn", "--directory", root, *arguments]
        monkeypatch.setattr(sys, "argv", [str(argument) for argument in argv])
        main()

    return started


@pytest.fixture
def read_at_once(studied: tuple[list[Study], tamis.Network], monkeypatch: pytest.MonkeyPatch) -> None:
    """To read nine trainings takes seconds; one test of the program does."""
    monkeypatch.setattr(phi_pruning, "run", lambda *_: studied)


@pytest.mark.slow
def test_the_program_reads_what_was_trained_stores_its_figures_and_draws_them(
    program: Callable[..., None], study: Study, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = checkpoints(directory)
    program("--results", tmp_path / "results")
    assert checkpoints(directory) == written and len(written) == 1 + len(VARIANTS) * len(TINY.levels)
    shown = capsys.readouterr()
    assert "Table 3.2" in shown.out and "pruned networks 8/8   level 0.8   accuracy" in shown.err
    names = ["phi_pruning_short.json", "phi_pruning_short_curves.svg", "phi_pruning_short_scatter.svg"]
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == names
    stored = json.loads((tmp_path / "results" / names[0]).read_text())
    assert f"--results {tmp_path / 'results'}" in stored["environment"]["command"]
    tables = {name: found for name, found in study.items() if name != "curves"}  # which are in the picture
    assert stored["figures"] == json.loads(json.dumps({"plan": asdict(TINY), "studies": [tables]}))
    for name in names[1:]:
        assert ElementTree.parse(tmp_path / "results" / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.usefixtures("read_at_once")
def test_the_figures_are_those_of_the_highest_level(
    program: Callable[..., None], study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(phi_pruning, "draw", lambda drawing, path: drawing(path))
    monkeypatch.setattr(
        phi_pruning, "training_curves", lambda curves, path, dashed: drawn.update(curves=curves, dashed=dashed)
    )
    monkeypatch.setattr(phi_pruning, "magnitude_against_cost", lambda networks, path: drawn.update(networks=networks))
    program("--results", tmp_path)
    names = ("dense", "MP 80%", "Φ-LP 80%", "Φ-GP 80%", "MP + rescale 80%")
    assert drawn["curves"] == {name: study["curves"][name] for name in names}
    assert drawn["dashed"] == ("MP + rescale 80%",)
    trained, rescaled = drawn["networks"]["as trained"], drawn["networks"]["randomly rescaled"]
    x = load_data(TINY.test).normalised()
    assert torch.equal(rescaled(x), trained(x))
    assert any(not torch.equal(value, trained.params[name]) for name, value in weights(rescaled).items())


@pytest.mark.usefixtures("read_at_once")
def test_without_matplotlib_the_figures_are_stored_all_the_same(
    program: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"] or ["matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # makes importing it raise
    program("--results", tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "no picture was drawn: figures need matplotlib: pip install 'tamis[plots]'"
    assert [path.name for path in tmp_path.iterdir()] == ["phi_pruning_short.json"]
    assert json.loads((tmp_path / "phi_pruning_short.json").read_text())["figures"]["studies"]


@pytest.mark.usefixtures("read_at_once")
def test_without_a_place_for_results_nothing_is_stored(
    program: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program()
    assert "Table 3.1" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--seeds", "0"), "--workers and --seeds must be at least 1"),
        (("--workers", "-2"), "--workers and --seeds must be at least 1"),
        (("--model", "vit_s16"), "invalid choice: 'vit_s16'"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(
    wrong: tuple[str, str], message: str, program: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        program(*wrong)
    assert message in capsys.readouterr().err


def test_missing_data_ends_the_program_with_one_line(failing_program: Callable[..., tuple[object, str, str]]) -> None:
    status, _, said = failing_program("phi-pruning")
    assert status == 1
    assert said.startswith("error: there is no dataset 'cifar10:train'") and said.count("\n") == 1


# -- what was stored -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / "phi_pruning.json").read_text())
    return content


def test_the_stored_figures_are_those_of_the_full_plan_on_a_gpu(stored: dict[str, Any]) -> None:
    assert stored["figures"]["plan"] == json.loads(json.dumps(asdict(FULL)))
    assert "experiments phi-pruning --full" in stored["environment"]["command"]
    assert stored["environment"]["gpu"] is not None
    assert stored["figures"]["studies"]
    for study in stored["figures"]["studies"]:
        assert_tables(study, FULL)


def test_the_stored_figures_say_what_the_thesis_says(stored: dict[str, Any]) -> None:
    for study in stored["figures"]["studies"]:
        accuracy, overlap = study["retrained"], study["overlap with MP"]
        for level in map(str, LEVELS):
            assert abs(accuracy["Φ-LP"][level] - accuracy["MP"][level]) < 0.03
            assert overlap["Φ-LP"][level] > overlap["Φ-GP"][level] > overlap[RESCALED][level]
        assert accuracy["MP"]["0.8"] - accuracy[RESCALED]["0.8"] > 0.5  # thesis: 66.5 against 15.8


@pytest.mark.parametrize("name", ["phi_pruning_curves.svg", "phi_pruning_scatter.svg"])
def test_the_stored_figures_are_drawn(name: str) -> None:
    assert ElementTree.parse(RESULTS / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"
