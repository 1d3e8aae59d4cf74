"""`report` writes one page about a certificate, for people to look at, in one file that needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tamis.artifact import Compressed, File, replace_file, sentences
from tamis.citations import cite, reference
from tamis.errors import InvalidInput, UnsupportedOp
from tamis.graph import Network
from tamis.paths import path_costs
from tamis.pruning import candidates, rank_correlation
from tamis.reports.comparison import make_certified_rows, make_counted_rows, measure_rows
from tamis.reports.drawing import Bars, Point, draw_bar_strips, draw_cloud, draw_named_points
from tamis.reports.figures import choose_points
from tamis.reports.layers import Layer, list_layers
from tamis.reports.pareto import on_pareto_front
from tamis.verification import (
    Certificate,
    as_network,
    describe_requirement,
    format_rate,
    format_share,
    load_small,
    network_facts,
    verdict,
)

MOST_POINTS = 2_000  # of the cloud, so that the page stays small


@dataclass(frozen=True)
class Candidate:
    """A candidate is a small network that was tried on the way to the one in the report.

    Attributes:
        name: how it was made, in a few words.
        nbytes: of its file.
        quality: on the data of the search, as a fraction: its accuracy, or what `report` calls it.
        chosen: whether the report is about it.
    """

    name: str
    nbytes: int
    quality: float
    chosen: bool = False


def report(
    certificate: str | Path | Certificate,
    path: str | Path,
    *,
    original: Network | nn.Module | None = None,
    file: str | Path | None = None,
    rebuilt: Network | nn.Module | None = None,
    example: Tensor | tuple[Tensor, ...] | None = None,
    batch: int = 1,
    tried: Sequence[Candidate] = (),
    tried_by: str = "accuracy",
    reproduce: Sequence[str] = (),
) -> None:
    """Write a page about a certificate: what it claims, what became of the network, and how to check it.

    Args:
        certificate: the certificate or its file.
        path: the `.html` file to write, whole or not at all. It loads nothing from anywhere.
        original: the network before, or its module. With it, the page shows layers, costs and latencies.
        file: the `.tamis` file that the certificate is about; by default the one of its name beside the certificate.
        rebuilt: as `certify` takes it.
        example: an input to trace a module with.
        batch: how many inputs at once to measure the latency with.
        tried: all networks of a search, for a picture of bytes against quality.
        tried_by: what their quality is called.
        reproduce: commands that lead to the file again.

    Raises:
        CorruptArtifact: the certificate was changed.
        InvalidInput: the network or the file are not those that the certificate is about.

    Example:
        >>> net = tamis.trace(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(1, 4))
        >>> tamis.prune(net, 0.5).save("small.tamis")
        >>> tamis.certify(net, "small.tamis", torch.randn(200, 4)).save("small.json")
        >>> tamis.report("small.json", "report.html", original=net)
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(f"a report is an .html file, got '{path}'")
    if batch < 1:
        raise InvalidInput(f"batch must be a whole number of at least 1, got {batch!r}")
    cert = certificate if isinstance(certificate, Certificate) else Certificate.load(certificate)
    # A page must not show, in large letters, what somebody has changed in the file.
    cert.check()
    content = cert.content
    # Every name that the template knows, so that a page without the networks only lacks parts.
    parts: dict[str, Any] = {"rows": make_certified_rows(content), "more_rows": [], "figures": []}
    parts |= {"layers": (), "steps": (), "stayed_float": ()}
    parts["check"] = _format_check_command(content, certificate, file)
    if original is not None:
        net = as_network(original, example, None, "report")
        # Before anything is drawn or measured, which takes long.
        _check_same_network(content, net)
        small_file = _read_file(certificate, content, file)
        parts |= _describe_networks(net, load_small(small_file, net, original, rebuilt), small_file, batch)
    if tried:
        parts["figures"].append(_draw_front(tried, tried_by))
    # All of it is made before the file is touched.
    text = _render(content, parts, reproduce)
    with replace_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


# -- what is on it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A figure is a drawing with its title and its caption."""

    title: str
    svg: str
    caption: str


def _check_same_network(content: Mapping[str, Any], net: Network) -> None:
    # By what identifies a network: what it is called may differ.
    if not network_facts(net).items() <= content["network"].items():
        raise InvalidInput(
            f"the network is not the one that the certificate of '{content['file']['name']}' is about: its graph or "
            "its weights differ; pass the original as it was certified"
        )


def _read_file(certificate: str | Path | Certificate, content: Mapping[str, Any], file: str | Path | None) -> File:
    """Read the small network's file, or raise InvalidInput if it is not the one that was certified."""
    name = content["file"]["name"]
    if file is None:
        if isinstance(certificate, Certificate):
            raise InvalidInput(f"pass file=, where '{name}' is: a certificate in memory has no folder to look in")
        file = Path(certificate).with_name(name)
    if not Path(file).exists():
        raise InvalidInput(f"there is no '{file}', which the certificate is about: pass file=, where it is")
    if (small_file := File.read(file)).sha256 != content["file"]["sha256"]:
        raise InvalidInput(f"'{file}' is not the file that the certificate is about: its sha256 differs")
    return small_file


def _describe_networks(net: Network, small: Compressed, file: File, batch: int) -> dict[str, Any]:
    """Collect everything that the page says only where the networks themselves are given."""
    layers = list_layers(small, file)
    return {
        "more_rows": [*make_counted_rows(net, small, file.nbytes), *measure_rows(net, small, batch)],
        "layers": layers,
        "figures": [*([_draw_layer_figure(layers)] if layers else []), *_draw_cost_figure(net)],
        "steps": [_format_step(step) for step in small.recipe],
        "stayed_float": sentences(small.untouched),
    }


def _draw_layer_figure(layers: Sequence[Layer]) -> Figure:
    names = [layer.name for layer in layers]
    strips = [
        Bars(
            "bytes, before in grey",
            [layer.after for layer in layers],
            [f"{layer.after:,} bytes, before {layer.before:,}" for layer in layers],
            [layer.before for layer in layers],
        ),
        Bars("bits for each weight", [layer.bits for layer in layers], [f"{layer.bits:.2f} bits" for layer in layers]),
        Bars(
            "zeros, %",
            [100 * layer.sparsity for layer in layers],
            [f"{layer.sparsity:.1%} zeros" for layer in layers],
        ),
    ]
    if any(layer.error is not None for layer in layers):
        written = ["" if layer.error is None else f"error {layer.error:.3g}" for layer in layers]
        strips.append(Bars("relative error of the outputs", [layer.error for layer in layers], written))
    largest = max(layers, key=lambda layer: layer.after)
    summary = f"{len(layers)} layers; the largest in the file is {largest.name} with {largest.after:,} bytes"
    return Figure("Layer by layer", draw_bar_strips(names, strips, "Layer by layer", summary), f"{summary}.")


def _draw_cost_figure(net: Network) -> list[Figure]:
    """Draw magnitudes against Φ-costs, where the network has path-norms and prunable weights."""
    title = "Magnitude against Φ-cost"
    try:
        names = candidates(net).names
        costs = path_costs(net)
    except UnsupportedOp:
        # Without path-norms, as with attention, the page is still worth having.
        return []
    magnitudes = {name: net.params[name].abs() for name in names}
    x, y = choose_points(magnitudes, costs.values, MOST_POINTS)
    # A correlation needs two points.
    if len(x) < 2:
        return []
    # As parts of the largest, which float64 holds: only where points lie beside each other matters.
    relative = torch.exp(y.log() - y.log().max())
    summary = f"Spearman's rank correlation of those shown is {rank_correlation({'': x}, {'': y}):.2f}"
    svg = draw_cloud(x.tolist(), relative.tolist(), "magnitude", "Φ-cost, of the largest", title, summary)
    weights = sum(value.numel() for value in magnitudes.values())
    caption = (
        f"Every point is a weight of the network before, {len(x):,} of {weights:,} shown. {summary}. What pruning by "
        "Φ-cost removes first lies at the bottom, what pruning by magnitude removes first at the left."
    )
    return [Figure(title, svg, caption)]


def _draw_front(tried: Sequence[Candidate], by: str) -> Figure:
    """Draw bytes against quality of all candidates that were tried."""
    title = "What was tried"
    # Less is better in all costs, and so quality is negative here.
    best = on_pareto_front([(each.nbytes, -each.quality) for each in tried])
    points = [
        Point(
            each.nbytes,
            100 * each.quality,
            f"{each.name}: {each.nbytes:,} bytes, {each.quality:.2%}",
            " ".join(["point", *(["front"] * front), *(["chosen"] * each.chosen)]),
        )
        for each, front in zip(tried, best, strict=True)
    ]
    summary = f"{len(tried):,} networks, of which {sum(best):,} are on the front"
    svg = draw_named_points(points, "bytes", f"{by}, %", title, summary, logarithmic_x=True)
    return Figure(title, svg, f"{summary}: no other one has fewer bytes and a higher {by} there.")


def _format_step(step: Mapping[str, Any]) -> str:
    """Write a step of the recipe in one line, without what it says of each layer: that is in the chart."""
    # Tables of layers would fill pages, and the chart shows them.
    settings = {name: value for name, value in step.items() if name not in ("step", "layers")}
    return ", ".join([str(step.get("step")), *(f"{name} {_format_value(value)}" for name, value in settings.items())])


def _format_value(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    # One line each: a list of levels, say, may have thousands of characters.
    return text if len(text) <= 80 else text[:77] + "…"


def headline(content: Mapping[str, Any]) -> str:
    """Say in words how much smaller the file is."""
    before, after = content["network"]["bytes"], content["file"]["bytes"]
    if after > before:
        return f"{after:,} bytes: more than the {before:,} before"
    return f"{after:,} bytes: {before / after:.1f} times fewer than before"


def _format_check_command(
    content: Mapping[str, Any], certificate: str | Path | Certificate, file: str | Path | None
) -> str:
    """Write the command that checks the certificate, with the names of the issuing command, if there was one."""
    stated, small = Path("CERTIFICATE.json"), Path(content["file"]["name"])
    if not isinstance(certificate, Certificate):
        stated = Path(certificate)
        small = stated.with_name(small.name)
    files = shlex.join([str(stated), str(small if file is None else file)])
    model, data, training = "MODEL", "DATA", "TRAINING"
    if content.get("command") is not None:  # then the name is the argument, and the options that go with it
        model, data = content["network"]["name"], shlex.quote(content["data"]["name"])
        training = shlex.quote((content["training"] or {}).get("name", ""))
    trained = "" if content["training"] is None else f" --training {training}"
    return f"tamis verify {files} {model} --data {data}{trained}"


def _render(content: Mapping[str, Any], parts: Mapping[str, Any], reproduce: Sequence[str]) -> str:
    from jinja2 import Environment  # only a page needs it

    source = resources.files("tamis.reports").joinpath("templates", "report.html").read_text(encoding="utf-8")
    claims = sorted(content["claims"], key=lambda claim: not claim["informative"])  # stable: informative ones first
    informative = [claim for claim in claims if claim["informative"]]
    requirements = content.get("requirements", ())
    # Once each, in the order in which claims name them.
    assumptions = dict.fromkeys(text for claim in informative for text in claim["assumptions"])
    return (
        # With escapes: names of networks, files and data are the user's, and may hold anything.
        Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        .from_string(source)
        .render(
            content=content,
            claims=claims,
            assumptions=list(assumptions),
            first=informative[0]["sentence"] if informative else "",
            headline=headline(content),
            passed=verdict(requirements),
            required=[(each["holds"], describe_requirement(each, claims)) for each in requirements],
            holds={each["claim"]: each["holds"] for each in requirements},
            # In decimal, in which 1 − 0.05 is 0.95 and nothing else.
            confidence=format_share(1 - Decimal(repr(content["settings"]["delta"]))),
            references=list(dict.fromkeys(reference(claim["source"].split(",")[0]) for claim in claims)),
            cite=cite,
            # Rounded up, so that a bound on the page is one as well.
            percent=format_rate,
            reproduce=list(reproduce),
            **parts,
        )
    )
