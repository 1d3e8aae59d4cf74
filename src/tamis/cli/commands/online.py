"""The options of `tamis online`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.options import Json
from tamis.cli.registration import command


@command
def online(
    data: Annotated[
        str,
        typer.Option(
            metavar="DATA", help="The stream: images by a name or a path, as mnist:train, or series, or graph."
        ),
    ],
    space: Annotated[str, typer.Option(metavar="dense|conv1d|conv2d|graph|xnor", help="Which networks to learn with.")],
    rounds: Annotated[int, typer.Option(metavar="N", help="How many; with more, a run that is over goes on.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="Where to keep rounds and results.")] = Path(
        "out/online"
    ),
    batch: Annotated[int, typer.Option(metavar="N", help="Examples in a round.")] = 16,
    particles: Annotated[int, typer.Option(metavar="N", help="How many networks stand for the posterior.")] = 100,
    lam: Annotated[float, typer.Option(metavar="LAMBDA", help="How much a round counts; 1 or less.")] = 1.0,
    tau: Annotated[float, typer.Option(metavar="TAU", help="The scale of the weights' prior.")] = 0.3,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the order of the examples and of all draws.")] = 0,
    layers: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Of the union of networks, as 1,2,3.")] = None,
    filters: Annotated[str | None, typer.Option(metavar="NUMBERS", help="In a layer, as 2,4.")] = None,
    sizes: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Of filters, as 3,5.")] = None,
    pool: Annotated[int, typer.Option(metavar="N", help="Take the mean of N x N pixels for one.")] = 1,
    subsample: Annotated[
        int,
        typer.Option(metavar="N", help="How many past rounds a move of particles sees; 0 for all, exact and slower."),
    ] = 32,
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Where to compute networks.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Learn from a stream round by round, over networks of several architectures, beside a bound of what that costs.

    After Ctrl-C or a kill, the same command goes on from the last round, to the same result.
    """
    from tamis.cli.online import online

    stream = {"data": data, "pool": pool, "rounds": rounds, "batch": batch, "seed": seed}
    union = {"space": space, "layers": layers, "filters": filters, "sizes": sizes}
    online(out, device, as_json, **stream, **union, particles=particles, lam=lam, tau=tau, subsample=subsample)
