"""tamis: make a trained network small, and certify what that cost.

Public names only. They are looked up on first use, so that `import tamis` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tamis import architecture as architecture
    from tamis import bayes as bayes
    from tamis import binary as binary
    from tamis import kronecker as kronecker
    from tamis import l1inf as l1inf
    from tamis.artifact.codes import Codes as Codes
    from tamis.artifact.compressed import Compressed as Compressed
    from tamis.artifact.compressed import load as load
    from tamis.artifact.masks import Masks as Masks
    from tamis.certify import certify as certify
    from tamis.certify.certificate import Certificate as Certificate
    from tamis.certify.rebuilt import rebuilt_for as rebuilt_for
    from tamis.certify.verify import verify as verify
    from tamis.graph.network import Network as Network
    from tamis.graph.rescale import normalize as normalize
    from tamis.graph.rescale import rescale as rescale
    from tamis.graph.trace import trace as trace
    from tamis.layerwise.repair import repair as repair
    from tamis.paths.cost import PathCosts as PathCosts
    from tamis.paths.cost import path_costs as path_costs
    from tamis.paths.lifting import Lifting as Lifting
    from tamis.paths.lifting import lifting as lifting
    from tamis.paths.metric import path_metric as path_metric
    from tamis.paths.norm import PathNorms as PathNorms
    from tamis.paths.norm import path_norm as path_norm
    from tamis.paths.norm import path_norms as path_norms
    from tamis.paths.norm import product_norm as product_norm
    from tamis.prune import prune as prune
    from tamis.quantize import quantize as quantize
    from tamis.quantize.alphabet import Alphabet as Alphabet
    from tamis.recipe.run import compress as compress
    from tamis.report import report as report

__version__ = "0.1.0"

_HOMES = {
    "architecture": "tamis.architecture",
    "bayes": "tamis.bayes",
    "binary": "tamis.binary",
    "kronecker": "tamis.kronecker",
    "l1inf": "tamis.l1inf",
    "Codes": "tamis.artifact.codes",
    "Compressed": "tamis.artifact.compressed",
    "load": "tamis.artifact.compressed",
    "Masks": "tamis.artifact.masks",
    "certify": "tamis.certify",
    "Certificate": "tamis.certify.certificate",
    "rebuilt_for": "tamis.certify.rebuilt",
    "verify": "tamis.certify.verify",
    "Network": "tamis.graph.network",
    "normalize": "tamis.graph.rescale",
    "rescale": "tamis.graph.rescale",
    "trace": "tamis.graph.trace",
    "PathCosts": "tamis.paths.cost",
    "path_costs": "tamis.paths.cost",
    "Lifting": "tamis.paths.lifting",
    "lifting": "tamis.paths.lifting",
    "path_metric": "tamis.paths.metric",
    "PathNorms": "tamis.paths.norm",
    "path_norm": "tamis.paths.norm",
    "path_norms": "tamis.paths.norm",
    "product_norm": "tamis.paths.norm",
    "repair": "tamis.layerwise.repair",
    "prune": "tamis.prune",
    "quantize": "tamis.quantize",
    "Alphabet": "tamis.quantize.alphabet",
    "compress": "tamis.recipe.run",
    "report": "tamis.report",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tamis' has no attribute '{name}'")
    home = import_module(_HOMES[name])
    # A room that is named like its call is callable itself.
    value = home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
