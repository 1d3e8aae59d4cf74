"""L1,∞ weight normalization bounds the ℓ1-norm of each neuron's incoming weights, which makes networks sparse.

Reference: yang2021l1inf.
"""

from tamis.l1inf.constraint import L1InfConstraint as L1InfConstraint
from tamis.l1inf.optimizer import L1Inf as L1Inf
from tamis.l1inf.projection import project as project
from tamis.l1inf.select_c import Selection as Selection
from tamis.l1inf.select_c import select_c as select_c
from tamis.l1inf.statistics import Statistics as Statistics
from tamis.l1inf.statistics import statistics as statistics

__all__ = [
    "L1Inf",
    "L1InfConstraint",
    "Selection",
    "Statistics",
    "project",
    "select_c",
    "statistics",
]
