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
    from tamis import bounds as bounds
    from tamis import kronecker as kronecker
    from tamis import l1inf as l1inf
    from tamis import sweeps as sweeps
    from tamis import testing as testing
    from tamis import training as training
    from tamis.artifact import Codes as Codes
    from tamis.artifact import Compressed as Compressed
    from tamis.artifact import Masks as Masks
    from tamis.artifact import load as load
    from tamis.artifact.encodings import register_encoding as register_encoding
    from tamis.certificates import certify as certify
    from tamis.graph import Network as Network
    from tamis.graph import normalize as normalize
    from tamis.graph import rescale as rescale
    from tamis.graph import trace as trace
    from tamis.graph.ops import register_op as register_op
    from tamis.layerwise import repair as repair
    from tamis.paths import Lifting as Lifting
    from tamis.paths import PathCosts as PathCosts
    from tamis.paths import PathNorms as PathNorms
    from tamis.paths import lifting as lifting
    from tamis.paths import path_costs as path_costs
    from tamis.paths import path_metric as path_metric
    from tamis.paths import path_norm as path_norm
    from tamis.paths import path_norms as path_norms
    from tamis.paths import product_norm as product_norm
    from tamis.pruning import prune as prune
    from tamis.quantization import Alphabet as Alphabet
    from tamis.quantization import quantize as quantize
    from tamis.recipes import compress as compress
    from tamis.reports import report as report
    from tamis.verification import Certificate as Certificate
    from tamis.verification import verify as verify

__version__ = "0.1.0"

# Packages whose own names are part of the public face, as `tamis.kronecker.Pattern` is.
_PACKAGES = ("architecture", "bayes", "binary", "bounds", "kronecker", "l1inf", "sweeps", "testing", "training")
# The package that each public name comes from.
_HOMES = {
    "Codes": "artifact",
    "Compressed": "artifact",
    "Masks": "artifact",
    "load": "artifact",
    "register_encoding": "artifact.encodings",
    "certify": "certificates",
    "Network": "graph",
    "normalize": "graph",
    "register_op": "graph.ops",
    "rescale": "graph",
    "trace": "graph",
    "repair": "layerwise",
    "Lifting": "paths",
    "PathCosts": "paths",
    "PathNorms": "paths",
    "lifting": "paths",
    "path_costs": "paths",
    "path_metric": "paths",
    "path_norm": "paths",
    "path_norms": "paths",
    "product_norm": "paths",
    "prune": "pruning",
    "Alphabet": "quantization",
    "quantize": "quantization",
    "compress": "recipes",
    "report": "reports",
    "Certificate": "verification",
    "verify": "verification",
}
__all__ = [*_PACKAGES, *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"tamis.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'tamis' has no attribute '{name}'")
    value = getattr(import_module(f"tamis.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
