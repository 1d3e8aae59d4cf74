"""Pruning sets the weights that matter least to zero; each criterion for that has one file."""

from tamis.pruning.amount import Amount as Amount
from tamis.pruning.criterion import CRITERIA as CRITERIA
from tamis.pruning.criterion import Criterion as Criterion
from tamis.pruning.criterion import criterion_of as criterion_of
from tamis.pruning.iterative_pruning import Rewinding as Rewinding
from tamis.pruning.iterative_pruning import TrainingTask as TrainingTask
from tamis.pruning.iterative_pruning import prune_iteratively as prune_iteratively
from tamis.pruning.prunable_weights import find_candidates as candidates
from tamis.pruning.prune import prune as prune
from tamis.pruning.rank_correlation import rank_correlation as rank_correlation
from tamis.pruning.selection import Sweep as Sweep
from tamis.pruning.selection import Visitor as Visitor

__all__ = [
    "CRITERIA",
    "Amount",
    "Criterion",
    "Rewinding",
    "Sweep",
    "TrainingTask",
    "Visitor",
    "candidates",
    "criterion_of",
    "prune",
    "prune_iteratively",
    "rank_correlation",
]
