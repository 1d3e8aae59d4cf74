"""Figures: whole files of each kind, the correlation that stands in them, and nothing written where one fails."""

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import tamis
from tamis.errors import InvalidInput
from tamis.pruning import rank_correlation
from tamis.reports import figures
from tamis.reports.figures import Panel, line_panels, magnitude_against_cost, training_curves
from tamis.training import Settings, load_data, train
from tamis.training.models import digits_cnn, example_input, mlp

CURVES = {"dense": [(1, 0.2), (2, 0.5), (3, 0.9)], "pruned 80%": [(2, 0.3), (3, 0.4)]}
PANELS = (
    Panel(
        {"GPFQ": [(64, 0.4), (256, 0.2)], "bound": [(64, 0.4), (256, 0.3)]}, "N₀", "error", "m = 8", ("bound",), True
    ),
    Panel({"by hand": [(1, -2), (2, 5), (3, 4)]}, "layers", "height", points=True),
)
BEGINNINGS = {"svg": b"<?xml", "png": b"\x89PNG\r\n", "pdf": b"%PDF-"}
KINDS = tuple(BEGINNINGS)


@pytest.fixture(scope="module")
def net() -> tamis.Network:
    """A small network that was trained, so that magnitude and Φ-cost have much in common."""
    torch.manual_seed(0)
    settings = Settings(epochs=5, batch=20, learning_rate=0.05)
    trained = train(digits_cnn(8), load_data("digits:train[:300]"), settings, progress=False)
    return tamis.trace(trained.model, example_input("digits_cnn"))


@pytest.fixture
def scattered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """The points of each scatter plot that is drawn."""
    points: list[tuple[Tensor, Tensor]] = []
    original = Axes.scatter

    def scatter(self: Axes, x: Tensor, y: Tensor, **options: Any) -> Any:
        points.append((x, y))
        return original(self, x, y, **options)

    monkeypatch.setattr(Axes, "scatter", scatter)
    return points


def drawn(net: tamis.Network) -> dict[str, Callable[[Path], object]]:
    return {
        "scatter": lambda path: magnitude_against_cost({"as trained": net, "rescaled": tamis.rescale(net)}, path),
        "curves": lambda path: training_curves(CURVES, path, dashed=("pruned 80%",)),
        "panels": lambda path: line_panels(PANELS, path),
    }


def weights(net: tamis.Network) -> dict[str, Tensor]:
    return {name: net.params[name] for name in net.params if net.params[name].dim() > 1}


def magnitudes(net: tamis.Network) -> dict[str, Tensor]:
    return {name: value.abs() for name, value in weights(net).items()}


def words_in(svg: Path) -> str:
    """The comments of an .svg file, where matplotlib repeats each text that it draws as shapes."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.parse(svg, parser)
    return "\n".join(element.text or "" for element in tree.iter() if element.tag is ElementTree.Comment)


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figure", "kind"),
    [
        *(("curves", kind) for kind in KINDS),
        ("scatter", "svg"),
        ("panels", "svg"),
        # Each kind of file is written by one function, whatever is drawn.
        pytest.param("scatter", "png", marks=pytest.mark.slow),
        pytest.param("panels", "pdf", marks=pytest.mark.slow),
    ],
)
def test_files_of_each_kind_are_written_whole_and_twice_the_same(
    figure: str, kind: str, net: tamis.Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{number}.{kind}" for number in (1, 2)]
    for number, path in enumerate(paths):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(10**number))  # matplotlib's clock, if it wants to know the day
        drawn(net)[figure](path)
    contents = [path.read_bytes() for path in paths]
    assert contents[0].startswith(BEGINNINGS[kind]) and len(contents[0]) > 2000
    assert contents[0] == contents[1]
    assert sorted(tmp_path.iterdir()) == paths


def test_the_suffix_may_be_in_capitals_and_the_path_a_string(tmp_path: Path) -> None:
    training_curves(CURVES, str(tmp_path / "curves.PNG"))
    assert (tmp_path / "curves.PNG").read_bytes().startswith(BEGINNINGS["png"])


@pytest.mark.parametrize("figure", ["scatter", "curves", "panels"])
@pytest.mark.parametrize("name", ["figure.gif7", "figure", "figure.svg.part"])
def test_an_unknown_suffix_is_refused_and_nothing_written(
    name: str, figure: str, net: tamis.Network, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=rf"such as \.svg, \.png or \.pdf, got '.*{name}'"):
        drawn(net)[figure](tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("figure", ["scatter", "curves", "panels"])
def test_without_matplotlib_the_message_says_how_to_get_it(
    figure: str, net: tamis.Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)  # makes importing it raise
    with pytest.raises(InvalidInput, match=r"figures need matplotlib: pip install 'tamis\[plots\]'"):
        drawn(net)[figure](tmp_path / "figure.svg")
    assert not list(tmp_path.iterdir())


def test_a_figure_that_breaks_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(figure: Any, path: Path, **_: Any) -> None:
        Path(path).write_text("half a")
        raise OSError("the disk is full")

    path = tmp_path / "curves.svg"
    training_curves(CURVES, path)
    before = path.read_bytes()
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", half)
    with pytest.raises(OSError, match="full"):
        training_curves({"other": [(1, 0.5)]}, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("curves", [{}, {"dense": [(1, 0.5)], "empty": []}], ids=["no curve", "no point"])
def test_nothing_to_draw_is_refused(curves: Mapping[str, list[tuple[int, float]]], tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nothing to draw: every curve needs a point, got \{"):
        training_curves(curves, tmp_path / "curves.svg")
    with pytest.raises(InvalidInput, match="nothing to draw: no networks"):
        magnitude_against_cost({}, tmp_path / "scatter.svg")
    with pytest.raises(InvalidInput, match=r"nothing to draw: every curve needs a point, got \{"):
        line_panels([*PANELS, Panel(curves, "x", "y")], tmp_path / "panels.svg")
    with pytest.raises(InvalidInput, match="nothing to draw: no panels"):
        line_panels([], tmp_path / "panels.svg")
    assert not list(tmp_path.iterdir())


# -- magnitude against Φ-cost --------------------------------------------------------------------------------------


def test_the_correlation_is_that_of_the_weights_and_falls_by_rescaling(net: tamis.Network, tmp_path: Path) -> None:
    rescaled = tamis.rescale(net)
    correlations = magnitude_against_cost({"as trained": net, "rescaled": rescaled}, tmp_path / "scatter.svg")
    assert correlations == {
        "as trained": rank_correlation(magnitudes(net), tamis.path_costs(net).values),
        "rescaled": rank_correlation(magnitudes(rescaled), tamis.path_costs(rescaled).values),
    }
    assert correlations["rescaled"] < correlations["as trained"] - 0.2
    words = words_in(tmp_path / "scatter.svg")
    for title, correlation in correlations.items():
        assert title in words and f"rank correlation {correlation:.2f}" in words


def test_a_point_is_a_weight(net: tamis.Network, tmp_path: Path, scattered: list[tuple[Tensor, Tensor]]) -> None:
    magnitude_against_cost({"as trained": net}, tmp_path / "scatter.png")
    costs = tamis.path_costs(net)
    expected = [
        (magnitude.log10(), cost.log10() + costs.log_scale / torch.tensor(10.0).double().log())
        for name, weight in weights(net).items()
        for magnitude, cost in zip(weight.double().abs().flatten(), costs.values[name].flatten(), strict=True)
    ]
    ((x, y),) = scattered
    assert len(x) == len(expected) == sum(value.numel() for value in weights(net).values())
    got = sorted(zip(x.tolist(), y.tolist(), strict=True))
    wanted = sorted((float(magnitude), float(cost)) for magnitude, cost in expected)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted))


@pytest.mark.parametrize("share", [1.0, 1.5, 3.2])
def test_of_many_weights_an_even_choice_is_drawn(
    share: float,
    net: tamis.Network,
    tmp_path: Path,
    scattered: list[tuple[Tensor, Tensor]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = sum(value.numel() for value in weights(net).values())
    most = int(size / share)
    monkeypatch.setattr(figures, "MOST_POINTS", most)
    magnitude_against_cost({"as trained": net}, tmp_path / "scatter.png")
    ((x, _),) = scattered
    assert most / 2 <= len(x) <= most


@pytest.mark.parametrize("by", ["magnitude", "phi"])
def test_a_pruned_network_has_points_for_the_weights_that_are_left(
    by: Any, net: tamis.Network, tmp_path: Path, scattered: list[tuple[Tensor, Tensor]]
) -> None:
    small = tamis.prune(net, 0.9, by=by).network
    correlations = magnitude_against_cost({"pruned": small}, tmp_path / "scatter.svg")
    costs = tamis.path_costs(small).values
    ((x, y),) = scattered
    left = sum(int(((value != 0) & (costs[name] > 0)).sum()) for name, value in weights(small).items())
    assert 0 < len(x) == len(y) == left
    assert x.isfinite().all() and y.isfinite().all()
    assert 0 < correlations["pruned"] <= 1


def test_weights_behind_a_dead_neuron_cost_nothing_and_are_not_drawn(
    tmp_path: Path, scattered: list[tuple[Tensor, Tensor]]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[2].weight[0, 0] = 0
    magnitude_against_cost({"dead": tamis.trace(model, torch.zeros(1, 3))}, tmp_path / "scatter.svg")
    ((x, _),) = scattered
    assert len(x) == 3 + 1  # what leads to the other neuron, and out of it


def test_costs_beyond_all_numbers_are_drawn_by_their_logarithm(
    tmp_path: Path, scattered: list[tuple[Tensor, Tensor]]
) -> None:
    """Twelve layers of weights times 2¹⁰⁰ cost 2¹²⁰⁰ times as much, which is no float64."""
    torch.manual_seed(0)
    net = tamis.trace(mlp((3,) * 13, bias=False), torch.zeros(1, 3))
    large = net.with_params({name: value * 2.0**100 for name, value in net.params.items()})
    correlations = magnitude_against_cost({"small": net, "large": large}, tmp_path / "scatter.svg")
    (x, y), (large_x, large_y) = scattered
    torch.testing.assert_close(large_x, x + 100 * math.log10(2))
    torch.testing.assert_close(large_y, y + 1200 * math.log10(2))
    assert correlations["large"] == correlations["small"]


# -- training curves -----------------------------------------------------------------------------------------------


def test_a_curve_is_drawn_in_per_cent_and_dashed_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[tuple[Any, ...], list[float], str, str]] = []
    original = Axes.plot

    def plot(self: Axes, x: Any, y: Any, style: str, **options: Any) -> Any:
        lines.append((tuple(x), list(y), style, options["label"]))
        return original(self, x, y, style, **options)

    monkeypatch.setattr(Axes, "plot", plot)
    training_curves(CURVES, tmp_path / "curves.svg", dashed=("pruned 80%",))
    assert lines == [
        ((1, 2, 3), pytest.approx([20, 50, 90]), "-", "dense"),
        ((2, 3), pytest.approx([30, 40]), "--", "pruned 80%"),
    ]
    words = words_in(tmp_path / "curves.svg")
    assert "dense" in words and "pruned 80%" in words and "accuracy, %" in words


# -- panels of lines -----------------------------------------------------------------------------------------------


def test_a_panel_has_its_own_lines_axes_and_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(figures, "_write", lambda figure, path: written.append(figure))
    line_panels(PANELS, tmp_path / "panels.svg")
    left, right = written[0].axes
    assert [(axis.get_xscale(), axis.get_yscale()) for axis in (left, right)] == [("log", "log"), ("linear", "linear")]
    assert (left.get_title(), left.get_xlabel(), left.get_ylabel()) == ("m = 8", "N₀", "error")
    assert [(line.get_label(), line.get_linestyle()) for line in left.lines] == [("GPFQ", "-"), ("bound", "--")]
    assert left.lines[1].get_xydata().tolist() == [[64, 0.4], [256, 0.3]]
    assert left.lines[0].get_marker() == "None" and right.lines[0].get_marker() == "."
    assert right.lines[0].get_xydata().tolist() == [[1, -2], [2, 5], [3, 4]]
