"""The page: whole, self-contained, equal to the certificate, and nothing that does not fit on a screen."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import tamis
from tamis.artifact import sentences
from tamis.binary import binarize, pack_network
from tamis.citations import CITATIONS
from tamis.cli.main import app
from tamis.errors import CorruptArtifact, InvalidInput
from tamis.reports.comparison import make_counted_rows
from tamis.reports.page import Candidate, report
from tamis.training import Settings, load_data, train
from tamis.training.models import MODELS, digits_cnn, example_input

VOID = {"meta", "br", "wbr", "link", "img", "input", "hr", "path", "rect", "circle"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TRIED = [
    Candidate("three levels", 4_000, 0.91, chosen=True),
    Candidate("four levels & <more>", 5_000, 0.94),
    Candidate("pruned", 5_500, 0.90),
]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A certified small network: the original, the folder of the files, and what the certificate says."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("case")
    data = load_data("digits:train[:400]")
    model = train(digits_cnn(8), data, Settings(epochs=3, batch=20, learning_rate=0.05), progress=False).model
    net = tamis.trace(model, example_input("digits_cnn"))
    small = tamis.quantize(tamis.prune(net, 0.5), data, levels=4, progress=False)
    small.save(folder / "small.tamis")
    tamis.certify(net, folder / "small.tamis", "digits:test").save(folder / "small.json")
    return SimpleNamespace(net=net, folder=folder, content=json.loads((folder / "small.json").read_text()))


@pytest.fixture(scope="module")
def page(case: SimpleNamespace) -> Path:
    path = case.folder / "report.html"
    commands = ["tamis compress digits --recipe <four>.yaml"]
    report(case.folder / "small.json", path, original=case.net, tried=TRIED, reproduce=commands)
    return path


class Balanced(HTMLParser):
    """Collects texts by the class of their element, and checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self.identifiers: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.identifiers += [said["id"]] if said.get("id") else []
        self.outside += [name for name in ("src", "href", "action", "data", "srcset") if name in said]
        if tag not in VOID or (tag in ("rect", "circle") and tag):
            self.open.append((tag, said.get("class") or ""))
            kind = said.get("class") or tag
            self.texts.setdefault(kind, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop()[0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open:
            tag, kind = self.open[-1]
            self.texts[kind or tag][-1] += data


def parsed(path: Path) -> Balanced:
    parser = Balanced()
    parser.feed(path.read_text(encoding="utf-8"))
    parser.close()
    assert not parser.open
    return parser


def test_elements_are_closed_and_identifiers_unique(page: Path) -> None:
    identifiers = parsed(page).identifiers
    assert len(set(identifiers)) == len(identifiers)
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>\n<html lang=")


def test_nothing_is_loaded(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert parsed(page).outside == []
    assert not re.search(r"https?:|url\(|@import|<script", text)


def test_claims_equal_the_certificate(case: SimpleNamespace, page: Path) -> None:
    found = parsed(page)
    claims = case.content["claims"]
    informative = [claim["sentence"] for claim in claims if claim["informative"]]
    vacuous = [claim["sentence"] for claim in claims if not claim["informative"]]
    assert informative
    assert vacuous
    assert found.texts["sentence"] == [*informative, *vacuous]
    assert found.texts["mark"] == ["says something"] * len(informative) + ["says nothing"] * len(vacuous)
    assert found.texts["lead"] == [informative[0]]
    assert case.content["digest"] in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("required", "verdict", "kinds"),
    [
        ({}, None, {""}),
        ({"max_disagreement": "100%"}, "PASS", {"", " held"}),
        ({"max_disagreement": "100%", "max_accuracy_drop": 0}, "FAIL", {"", " held", " missed"}),
    ],
)
def test_a_verdict_stands_first_and_nothing_else_is_green_or_red(
    required: dict[str, float], verdict: str | None, kinds: set[str], case: SimpleNamespace, tmp_path: Path
) -> None:
    cert = tamis.certify(case.net, case.folder / "small.tamis", "digits:test", **required)
    report(cert, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    found = re.search(r'<header>\s*<div class="verdict (pass|fail)"><strong>(PASS|FAIL)</strong>', text)
    assert (found and found.groups()) == (verdict and (verdict.lower(), verdict))
    assert set(re.findall(r'class="(?:informative|vacuous)(| held| missed)"', text)) == kinds
    users = [rule for rule in re.findall(r"[^{}]+{[^{}]*var\(--(?:pass|fail)\)[^{}]*}", text)]
    assert {rule.split("{")[0].strip() for rule in users} == {".pass", ".fail", ".claims li.held", ".claims li.missed"}


def test_the_page_names_the_original_the_data_the_command_and_the_sources(
    case: SimpleNamespace, tmp_path: Path
) -> None:
    names = {"called": "my.models:net --weights 'my weights.pt'", "command": "tamis certify my.models:net small.tamis"}
    report(tamis.certify(case.net, case.folder / "small.tamis", "digits:test", **names), tmp_path / "report.html")
    text = html.unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    check = "tamis verify CERTIFICATE.json small.tamis my.models:net --weights 'my weights.pt' --data digits:test"
    for part in (*names.values(), check, "Gonon (2024), Theorem 3.4.1", "S. S. Wilks (1941): Determination of Sample"):
        assert part in text
    assert not [key for key in CITATIONS if key in text]


def test_accuracies_are_those_of_the_networks(case: SimpleNamespace, page: Path) -> None:
    test = load_data("digits:test")
    small = tamis.load(case.folder / "small.tamis", case.net).network
    shares = [float((net(test.normalised()).argmax(1) == test.labels).double().mean()) for net in (case.net, small)]
    row = re.search(r"accuracy</th><td>([\d.]+)%</td><td>([\d.]+)%", page.read_text(encoding="utf-8"))
    assert row is not None
    assert [float(cell) for cell in row.groups()] == pytest.approx([100 * share for share in shares], abs=0.006)


def test_counts_by_hand() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 4)
    net = tamis.trace(layer, torch.zeros(1, 6))
    small = tamis.prune(net, 0.5, by="magnitude")
    parameters, macs, moved = make_counted_rows(net, small, file_bytes=100)
    assert (parameters.before, parameters.after) == ("28", "16")
    assert (macs.before, macs.after) == ("24", "12")
    # 28 floats of weights; 6 floats read and 4 written.
    assert (moved.before, moved.after) == (str(4 * (28 + 10)), str(100 + 40))


def test_layers_take_the_whole_data_of_the_file(case: SimpleNamespace) -> None:
    taken = tamis.artifact.format.stored_bytes(case.folder / "small.tamis", case.net.params)
    assert sum(taken.values()) == len(load_file(case.folder / "small.tamis")["data"])
    assert set(taken) == set(case.net.params)


def test_what_stayed_float_is_listed(case: SimpleNamespace, page: Path) -> None:
    lines = sentences(tamis.load(case.folder / "small.tamis", case.net).untouched)
    assert lines and set(lines) <= {text.strip() for text in parsed(page).texts["li"]}


def test_without_the_original_it_says_what_is_missing(case: SimpleNamespace, tmp_path: Path) -> None:
    tamis.report(case.folder / "small.json", tmp_path / "bare.html")
    text = (tmp_path / "bare.html").read_text(encoding="utf-8")
    parsed(tmp_path / "bare.html")
    assert "made without the original network" in text
    assert "<svg" not in text


def test_names_of_users_are_escaped(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "four levels &amp; &lt;more&gt;" in text
    assert "&lt;four&gt;.yaml" in text


def test_bad_input_is_refused_and_nothing_written(case: SimpleNamespace, tmp_path: Path) -> None:
    source, out = case.folder / "small.json", tmp_path / "report.html"
    with pytest.raises(InvalidInput, match=r"an \.html file, got 'report\.pdf'"):
        report(source, "report.pdf")
    with pytest.raises(InvalidInput, match="batch must be a whole number of at least 1, got 0"):
        report(source, out, original=case.net, batch=0)
    with pytest.raises(InvalidInput, match=r"is not the one that the certificate of 'small\.tamis' is about"):
        report(source, out, original=tamis.rescale(case.net, seed=1))
    tamis.prune(case.net, 1).save(tmp_path / "other.tamis")
    with pytest.raises(InvalidInput, match="its sha256 differs"):
        report(source, out, original=case.net, file=tmp_path / "other.tamis")
    (tmp_path / "text.tamis").write_bytes(b"something else")
    with pytest.raises(CorruptArtifact, match=r"text\.tamis is not a \.tamis file"):
        report(source, out, original=case.net, file=tmp_path / "text.tamis")
    with pytest.raises(InvalidInput, match=r"there is no '.*none.tamis'"):
        report(source, out, original=case.net, file=tmp_path / "none.tamis")
    with pytest.raises(InvalidInput, match="a certificate in memory has no folder"):
        report(tamis.Certificate.load(source), out, original=case.net)
    changed = tmp_path / "small.json"
    changed.write_text(source.read_text().replace("disagreement", "disagreements", 1))
    with pytest.raises(CorruptArtifact):
        report(changed, out)
    assert not out.exists()


def test_command(case: SimpleNamespace, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.html"
    result = CliRunner().invoke(app, ["report", str(case.folder / "small.json"), "-o", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"report": str(out), "bytes": out.stat().st_size}
    refused = CliRunner().invoke(app, ["report", str(case.folder / "small.json"), "-o", str(out), "--shape", "1,8,8"])
    assert isinstance(refused.exception, (InvalidInput, SystemExit))


@pytest.mark.slow
def test_a_large_network_makes_a_small_page(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = tamis.trace(MODELS["resnet50"](), example_input("resnet50", batch=1))
    tamis.prune(net, 0.8, by="magnitude").save(tmp_path / "small.tamis")
    inputs = torch.randn(4, *net.input_shapes[0][1:])
    tamis.certify(net, tmp_path / "small.tamis", inputs).save(tmp_path / "small.json")
    report(tmp_path / "small.json", tmp_path / "report.html", original=net)
    assert (tmp_path / "report.html").stat().st_size <= 300_000


# A page that shows the report in frames as wide as screens are, and says of each by how much it is too wide, and in how
# many lines the longest name of a row is.
FRAMES = """<!DOCTYPE html><html><body>{frames}<script>
const lines = name => {{ const range = document.createRange(); range.selectNodeContents(name);
  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size; }};
addEventListener("load", () => {{ document.title = [...document.querySelectorAll("iframe")].map(frame => {{
  const page = frame.contentDocument.documentElement;
  const names = [...page.querySelectorAll("tbody th")].map(lines);
  return `${{page.scrollWidth - page.clientWidth}},${{Math.max(...names)}}`; }}).join(" "); }});
</script></body></html>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_nothing_overflows(page: Path, tmp_path: Path, scheme: str) -> None:
    widths = (360, 800, 1440)
    shown = "".join(f'<iframe src="{page.as_uri()}" style="width:{width}px;height:900px"></iframe>' for width in widths)
    (tmp_path / "frames.html").write_text(FRAMES.format(frames=shown))
    dark = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    common = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", *dark]
    own = f"--user-data-dir={tmp_path / 'profile'}"
    shot = tmp_path / "page.png"
    for width in widths:
        options = [own, f"--window-size={width},900", f"--screenshot={shot}", page.as_uri()]
        subprocess.run([*common, *options], check=True, capture_output=True, timeout=120)
        assert shot.read_bytes().startswith(b"\x89PNG")
    options = [own, "--dump-dom", "--virtual-time-budget=5000", (tmp_path / "frames.html").as_uri()]
    dom = subprocess.run([*common, *options], check=True, capture_output=True, text=True, timeout=120).stdout
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title is not None, dom[:500]
    for found in title.group(1).split():
        too_wide, lines = map(int, found.split(","))
        assert too_wide == 0 and lines <= 2  # "multiply-accumulates" may break at its hyphen
    assert len(title.group(1).split()) == len(widths)


def test_networks_of_two_graphs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
    example = example_input("digits_cnn")
    net, binary = tamis.trace(model, example), binarize(model, example=example).eval()
    pack_network(binary, example).save(tmp_path / "small.tamis")
    tamis.certify(net, tmp_path / "small.tamis", "digits:test[:40]", rebuilt=binary).save(tmp_path / "small.json")
    report(tmp_path / "small.json", tmp_path / "report.html", original=net, rebuilt=binary)
    assert "Layer by layer" in parsed(tmp_path / "report.html").texts["h3"]
