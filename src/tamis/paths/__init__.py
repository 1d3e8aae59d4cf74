"""This package computes what can be known of a network's path-lifting Φ without ever enumerating paths."""

from tamis.paths.cost import PathCosts as PathCosts
from tamis.paths.cost import each_path_cost as each_path_cost
from tamis.paths.cost import log_cost_above as log_cost_above
from tamis.paths.cost import path_costs as path_costs
from tamis.paths.lifting import Lifting as Lifting
from tamis.paths.lifting import lifting as lifting
from tamis.paths.metric import path_metric as path_metric
from tamis.paths.norm import Part as Part
from tamis.paths.norm import PathNorms as PathNorms
from tamis.paths.norm import log_norm_above as log_norm_above
from tamis.paths.norm import log_product_above as log_product_above
from tamis.paths.norm import path_norm as path_norm
from tamis.paths.norm import path_norms as path_norms
from tamis.paths.norm import product_norm as product_norm
from tamis.paths.scaled import is_weight as is_weight
from tamis.paths.weights import Weights as Weights
from tamis.paths.weights import stored_sources as stored_sources

__all__ = [
    "Lifting",
    "Part",
    "PathCosts",
    "PathNorms",
    "Weights",
    "each_path_cost",
    "is_weight",
    "lifting",
    "log_cost_above",
    "log_norm_above",
    "log_product_above",
    "path_costs",
    "path_metric",
    "path_norm",
    "path_norms",
    "product_norm",
    "stored_sources",
]
