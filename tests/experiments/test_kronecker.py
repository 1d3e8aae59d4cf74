"""The benchmark of chapter 5: its patterns, its peers, what is stored and shown, and how it goes on."""

from __future__ import annotations

import ast
import itertools
import json
import math
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments import kronecker, kronecker_peers, kronecker_vit
from experiments.kronecker import SHORT, main
from experiments.kronecker_compile import _find_kernel
from experiments.kronecker_patterns import BATCH, benchmark_patterns, list_energy_patterns, spread
from experiments.kronecker_peers import PEERS, Bench, Row, from_line, write_line
from experiments.kronecker_tables import (
    BEST,
    OF_BMM,
    OF_KERNEL,
    PARTS,
    compute_energy_ratios,
    compute_quartiles,
    make_panels,
    summarise,
)
from experiments.kronecker_vit import DOWN, SQUARE, UP, SeparateAttention, make_sparse_vit, patterns_of, set_backend
from tamis.errors import InvalidInput
from tamis.kernels import Energy
from tamis.kronecker import BACKENDS, KroneckerLinear, Pattern, as_chain
from tamis.kronecker.backends import LAYOUTS, REFERENCE, Backend, as_matrix
from tamis.kronecker.pattern import is_dense
from tamis.training.models.vit import Attention, VisionTransformer

pytestmark = pytest.mark.slow  # experiments are no part of the product, and train networks

PATTERN = Pattern(2, 3, 4, 5)


# -- patterns ----------------------------------------------------------------------------------------------------------


def figure_d_1() -> list[tuple[int, ...]]:
    """The text's code, but for its names."""
    batch, limit, found = 25_088, 2_147_483_647, []
    a_list = d_list1 = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    b_list = c_list = [48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]

    def add(a: int, b: int, c: int, d: int) -> None:
        if batch * a * c * d <= limit and batch * a * b * d <= limit and a * b * c * d <= limit:
            found.append((a, b, c, d))

    for b, c, d in itertools.product(b_list, c_list, d_list1):
        if b == c or b == 4 * c or c == 4 * b:
            add(1, b, c, d)
    skipped = [(1024, 256), (256, 1024), (128, 512), (512, 128), (64, 256), (256, 64)]
    for a, b, c, d in itertools.product(a_list, b_list, c_list, [4, 16, 64]):
        if a != 1 and (b, c) not in skipped and (b == c or b == 4 * c or c == 4 * b):
            add(a, b, c, d)
    return found


def test_patterns_are_those_of_figure_d_1() -> None:
    assert [pattern.shape for pattern in benchmark_patterns()] == figure_d_1()
    assert len(set(benchmark_patterns())) == 627 and BATCH == 25_088


def test_patterns_of_energy() -> None:
    found = list_energy_patterns()
    assert len(set(found)) == len(found) and {pattern.a for pattern in found} == {1, 4, 16, 32, 64}
    assert all(p.b in (p.c, 4 * p.c) or p.c == 4 * p.b for p in found) and Pattern(1, 64, 256, 1) not in found


def test_some_of_them_are_from_all_over_the_list() -> None:
    patterns = benchmark_patterns()
    for count in (1, 7, 40, 626):
        some = spread(patterns, count)
        places = [patterns.index(each) for each in some]
        assert len(set(some)) == count and places == sorted(places)
        assert max(b - a for a, b in itertools.pairwise([0, *places, 626])) <= 627 / count + 1
    assert spread(patterns, None) == spread(patterns, 9999) == patterns
    with pytest.raises(InvalidInput, match="at least one pattern, got 0"):
        spread(patterns, 0)


# -- peers -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A kernel of ours, whatever others there are."""
    made = Backend("ours", lambda *_: "", lambda x, w, p, layout: REFERENCE.apply(x, w, p, layout))
    for module in (kronecker, kronecker_peers):
        monkeypatch.setattr(module, "list_kernel_names", lambda: ["ours"])
    monkeypatch.setitem(BACKENDS, "ours", made)
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", [PATTERN, Pattern(1, 6, 3, 1), Pattern(3, 2, 4, 1), Pattern(1, 2, 5, 4)], ids=str)
def test_all_ways_give_the_same(pattern: Pattern, layout: str, kernel: Backend) -> None:
    bench = Bench(pattern, 7, "float64", "cpu")
    x, matrix = bench.x(layout), as_matrix(bench.weight, pattern)
    expected = x @ matrix.T if layout == "batch_first" else matrix @ x
    runs = {**bench.peers(layout), "dense": bench.dense(layout), **bench.kernels(layout)}
    assert set(runs) == {*PEERS, "ours"}
    for run in runs.values():
        torch.testing.assert_close(run(), expected)
    assert bench.weight.abs().max() <= 1 / math.sqrt(pattern.c)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_has_the_times_of_all_and_the_choice(layout: str, kernel: Backend) -> None:
    row = Bench(PATTERN, 40, "float32", "cpu").make_row(layout, 0.001, 1e-2)
    assert {*PEERS, "ours"} <= row["ms"].keys() and all(ms > 0 for ms in row["ms"].values())
    assert row["error"] < 1e-5 and row["chosen"] in BACKENDS and isinstance(row["bounded"], bool)
    assert from_line(write_line(row))["ms"] == pytest.approx(row["ms"], rel=1e-3)


def test_a_kernel_that_is_wrong_or_fails_has_no_time(
    kernel: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(x: Any, w: Any, p: Any, layout: str) -> Any:
        y = REFERENCE.apply(x, w, p, layout)
        y[-1] = 0  # the last vector of a batch
        return y

    monkeypatch.setitem(BACKENDS, "ours", Backend("ours", lambda *_: "", wrong))
    row = Bench(PATTERN, 40, "float32", "cpu").make_row("batch_first", 0.001, 1e-2)
    assert "ours" not in row["ms"] and row["error"] > 0.1 and summarise([row])["by dtype"]["float32"]["wrong"]

    def failing(*_: Any) -> Any:
        raise RuntimeError("out of shared memory")

    monkeypatch.setitem(BACKENDS, "ours", Backend("ours", lambda *_: "", failing))
    row = Bench(PATTERN, 40, "float32", "cpu").make_row("batch_first", 0.001, 1e-2)
    assert "ours" not in row["ms"] and row["error"] is None
    assert "ours failed at (2, 3, 4, 5), float32, batch_first" in capsys.readouterr().err


def test_dense_is_not_run_where_it_cannot_be_fastest(kernel: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kronecker_peers, "_measure_rate", lambda dtype, device: 1.0)
    row = Bench(PATTERN, 8, "float32", "cpu").make_row("batch_last", 0.001, 1e-2)
    assert row["bounded"] and row["ms"]["dense"] == pytest.approx(1e3 * 2 * 8 * PATTERN.rows * PATTERN.columns)
    assert "dense>" in write_line(row) and from_line(write_line(row))["bounded"]


# -- what rows say -----------------------------------------------------------------------------------------------------


def row_of(pattern: tuple[int, ...], layout: str, **ms: float) -> Row:
    rest = {"dtype": "float32", "layout": layout, "chosen": "bmm", "error": None, "bounded": False}
    return {"pattern": Pattern(*pattern), **rest, "ms": ms}


ROWS = [
    row_of((1, 2, 2, 2), "batch_first", bmm=4.0, einsum=5.0, dense=16.0, ours=8.0),
    row_of((1, 2, 2, 2), "batch_last", bmm=4.0, einsum=5.0, dense=16.0, ours=2.0),
    row_of((1, 4, 4, 2), "batch_first", bmm=6.0, einsum=3.0, dense=24.0, ours=2.0),
    row_of((1, 4, 4, 2), "batch_last", bmm=6.0, einsum=3.0, dense=24.0, ours=1.0),
    row_of((1, 8, 8, 2), "batch_first", bmm=1.0, einsum=3.0, dense=0.5, ours=2.0),
    row_of((1, 8, 8, 2), "batch_last", bmm=1.0, einsum=3.0, dense=0.5),
    row_of((1, 9, 9, 2), "batch_first", bmm=1.0, einsum=3.0, dense=0.5, ours=2.0),  # in one layout alone
]


def test_shares_and_factors_are_those_of_tables_5_3_and_5_4() -> None:
    found = summarise(ROWS)["by dtype"]["float32"]
    assert found["patterns"] == 3
    best, bmm, ours = (found["table 5.3"][name] for name in (BEST, OF_BMM, OF_KERNEL))
    assert best == {"share": 2 / 3, "median factor where faster": 16.0, "median factor": 8.0}  # 8, 24 and 1/2
    assert bmm == {"share": 1 / 3, "median factor where faster": 1.25, "median factor": 0.5}  # 5/4, 1/2, 1/2
    assert ours == {"share": 2 / 3, "median factor where faster": 2.5, "median factor": 2.0}  # 2, 3, 1/4
    first, last = (found["table 5.4"][layout] for layout in LAYOUTS)
    assert first["share"] == 1 / 4 and first["median factor where faster"] == 1.5
    assert last["share"] == 2 / 3 and last["median factor where faster"] == 2.5
    choice = found["chosen"]["batch_last"]
    assert choice["backends"] == {"bmm": 3} and choice["worst"] == 6.0 and choice["within 5 % of the fastest"] == 0


def test_without_kernels_nothing_is_said_of_them() -> None:
    rows = [{**row, "ms": {name: ms for name, ms in row["ms"].items() if name != "ours"}} for row in ROWS]
    nothing = {"share": None, "median factor where faster": None, "median factor": None}
    assert summarise(rows)["by dtype"]["float32"]["table 5.3"][OF_KERNEL] == nothing


def test_a_choice_has_its_own_time_where_it_was_measured() -> None:
    row = row_of((1, 2, 2, 2), "batch_first", bmm=4.0, einsum=5.0, dense=16.0, chosen=6.0)
    choice = summarise([row])["by dtype"]["float32"]["chosen"]["batch_first"]
    assert choice["worst"] == 1.5


def test_pictures() -> None:
    (panel,) = make_panels("multiply", {"rows": [write_line(row) for row in ROWS]})
    assert panel.curves["median"] == [(0.25, 0.5), (0.5, 3.0), (1.0, 2.0)] and panel.title == "float32"
    assert compute_quartiles([(1, 1.0), (1, 2.0), (1, 3.0), (2, 5.0)])["first quartile"] == [(1, 1.5), (2, 5.0)]
    figures = {"rows": [{"pattern": [1, 2, 2, 3], "joules": {"bmm": 2.0, "einsum": 4.0, "ours": 1.0}}]}
    assert compute_energy_ratios(figures) == [(3.0, 0.5)] and make_panels("vit", {}) == []
    (panel,) = make_panels("energy", figures)
    assert panel.curves == {"kernel over the least of the others": [(3.0, 0.5)]}
    assert make_panels("energy", {"rows": []}) == []


# -- the vision transformer --------------------------------------------------------------------------------------------


def test_the_patterns_of_section_5_5_are_dense_and_fit() -> None:
    for chain, size in ((SQUARE, (384, 384)), (UP, (1536, 384)), (DOWN, (384, 1536))):
        as_chain(chain)
        assert (chain[0].rows, chain[-1].columns) == size and is_dense(chain) and patterns_of(*size) == chain
    assert patterns_of(1000, 384) is None


def test_separate_attention_is_the_same_function() -> None:
    torch.manual_seed(0)
    joint, x = Attention(24, 3), torch.randn(2, 5, 24)
    torch.testing.assert_close(SeparateAttention(joint)(x), joint(x))


def small_vit() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(image=32, patch=16, dim=384, depth=1, heads=6, num_classes=10)


def test_layers_are_replaced_as_the_text_does() -> None:
    dense = small_vit()
    model = make_sparse_vit(dense)
    products = [name for name, module in model.named_modules() if isinstance(module, KroneckerLinear)]
    assert products == [f"blocks.0.{name}" for name in ("attn.query", "attn.key", "attn.value", "mlp.fc1", "mlp.fc2")]
    assert isinstance(dense.blocks[0].attn, Attention) and isinstance(model.blocks[0].attn.proj, nn.Linear)
    x = torch.randn(2, 3, 32, 32)
    by_bmm = set_backend(model, "bmm")(x)
    torch.testing.assert_close(set_backend(model, "reference")(x), by_bmm, rtol=1e-4, atol=1e-4)


# -- the program -------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(kernel: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A few small patterns, a small transformer, and a counter that counts."""
    patterns = [Pattern(1, 2 * b, b, d) for b in (2, 4) for d in (1, 3)]
    monkeypatch.setattr(kronecker, "benchmark_patterns", lambda batch: patterns)
    monkeypatch.setattr(kronecker, "list_energy_patterns", lambda batch: patterns)
    monkeypatch.setattr(kronecker_vit, "vit_s16", small_vit)
    monkeypatch.setattr(kronecker_vit, "IMAGE", 32)
    monkeypatch.setattr(kronecker_vit, "TOKENS", 4)
    monkeypatch.setattr(kronecker, "SHORT", replace(SHORT, batch=8, patterns=None, cell=0.0, row=0.0, images=1))
    monkeypatch.setattr(kronecker, "find_counter", lambda device: type("Counter", (), {"name": "RAPL"}))
    monkeypatch.setattr(kronecker, "measure_energy", lambda run, *_: Energy(2.0, "RAPL", 3, 0.1))
    monkeypatch.setattr(kronecker_peers, "_measure_rate", lambda dtype, device: 1e15)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def program(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["kronecker.py", *arguments])
    main()


@pytest.mark.usefixtures("unrendered_pictures")
def test_the_program_measures_stores_and_shows(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program(monkeypatch, "--results", "results")
    shown = capsys.readouterr().out
    for part in ("Table 5.5", "0.82)", "Tables 5.3 and 5.4", "88.10 (×1.39)", "72 %", "short mode", "training step"):
        assert part in shown
    figures = json.loads((quick / "results/kronecker_short.json").read_text())["figures"]
    assert tuple(figures) == PARTS and all("environment" in part for part in figures.values())
    assert len(figures["multiply"]["rows"]) == 8 and figures["multiply"]["patterns"] == 4
    assert [row["part"] for row in figures["vit"]["by dtype"]["float32"]][-1] == "training step"
    assert figures["energy"]["reason"] == "RAPL" and len(figures["energy"]["rows"]) == 4
    names = {path.name for path in (quick / "results").iterdir()}
    assert names == {"kronecker_short.json", "kronecker_short_multiply.svg", "kronecker_short_energy.svg"}
    program(monkeypatch, "--results", "results", "--show", "--only", "multiply")
    again = capsys.readouterr().out
    assert again[again.index("Tables 5.3") :] == shown[shown.index("Tables 5.3") :]


@pytest.mark.usefixtures("unrendered_pictures")
def test_it_goes_on_where_it_ended(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Pattern] = []
    original = Bench.make_row

    def counted(bench: Bench, *arguments: Any) -> Row:
        asked.append(bench.pattern)
        if len(asked) == 5:  # within the third pattern
            raise KeyboardInterrupt
        return original(bench, *arguments)

    monkeypatch.setattr(Bench, "make_row", counted)
    monkeypatch.setattr(kronecker, "SECONDS_BETWEEN_STORES", -1.0)
    with pytest.raises(KeyboardInterrupt):
        program(monkeypatch, "--results", "results", "--only", "multiply")
    program(monkeypatch, "--results", "results", "--only", "multiply")
    path = quick / "results/kronecker_short.json"
    rows = [from_line(line) for line in json.loads(path.read_text())["figures"]["multiply"]["rows"]]
    assert len(rows) == 8 and len({(row["pattern"], row["layout"]) for row in rows}) == 8
    assert len(asked) == 5 + 4
    stored = json.loads(path.read_text())
    stored["figures"]["multiply"]["environment"]["torch"] = "another"
    path.write_text(json.dumps(stored))
    program(monkeypatch, "--results", "results", "--only", "multiply")
    assert len(asked) == 9 + 8


def test_time_that_is_up_leaves_a_whole_sample(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, "--results", "results", "--only", "multiply", "--seconds", "0")
    figures = json.loads((quick / "results/kronecker_short.json").read_text())["figures"]["multiply"]
    assert figures["rows"] == [] and figures["by dtype"] == {}


def test_energy_that_cannot_be_measured_is_said_to_be(
    quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kronecker, "find_counter", lambda device: "no counter here")
    program(monkeypatch, "--only", "energy")
    assert "Energy: not measured (no counter here)" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--patterns", "0"], ["--batch", "0"], ["--show"]])
def test_what_cannot_be_is_refused(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        program(monkeypatch, *arguments)
    assert ended.value.code == 2


NOT_NEEDED = ("typer", "rich", "scipy", "matplotlib", "constriction", "tamis._native")


def imports_of(name: str, seen: dict[str, set[str]]) -> dict[str, set[str]]:
    """What each module of ours imports as it is imported itself, from this one on."""
    spec = find_spec(name)
    if name in seen or spec is None or not str(spec.origin).endswith(".py"):
        return seen
    found: set[str] = set()
    for node in ast.parse(Path(str(spec.origin)).read_text()).body:  # neither in functions nor in conditions
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    seen[name] = found
    for other in found:
        if other.partition(".")[0] in ("tamis", "experiments"):
            with suppress(ModuleNotFoundError):  # a name in a module
                imports_of(other, seen)
    return seen


def test_it_imports_neither_typer_nor_rich_nor_scipy_nor_the_extension() -> None:
    found = imports_of("experiments.kronecker", {})
    assert {"experiments.kronecker", "tamis.kronecker", "tamis.kernels"} <= set(found)
    used = {f"{each}." for names in found.values() for each in names}
    assert not [each for each in used if each.startswith(tuple(f"{hidden}." for hidden in NOT_NEEDED))]


@pytest.mark.slow  # it starts a process of its own
def test_it_needs_neither_typer_nor_rich_nor_scipy_nor_the_extension() -> None:
    script = f"import sys; sys.modules.update(dict.fromkeys({NOT_NEEDED!r})); import experiments.kronecker"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_kernels_are_compiled_once_for_all_that_share_them() -> None:
    def kernel(*sizes: int, dtype: torch.dtype = torch.float32, batch: int = 2048) -> tuple[Any, ...]:
        return _find_kernel(Pattern(*sizes), dtype, "batch_last", batch)

    assert kernel(4, 64, 48, 3) == kernel(6, 64, 48, 5)
    others = [(4, 50, 48, 3), (4, 64, 50, 3), (1, 64, 48, 3), (4, 64, 48, 1), (16, 64, 48, 3), (4, 8, 8, 3)]
    kinds = [kernel(4, 64, 48, 3), *(kernel(*sizes) for sizes in others)]
    kinds += [kernel(4, 64, 48, 3, dtype=torch.float16), kernel(4, 64, 48, 3, batch=1000)]
    assert len({*kinds}) == len(kinds)
