"""An online learner draws networks from a union of spaces, under a prior that favours few weights.

Reference: chee2021xnor.
"""

from tamis.bayes.journal import RoundJournal as RoundJournal
from tamis.bayes.journal import count_rounds as count_rounds
from tamis.bayes.networks import Conv1d as Conv1d
from tamis.bayes.networks import Conv2d as Conv2d
from tamis.bayes.networks import Dense as Dense
from tamis.bayes.networks import Graph as Graph
from tamis.bayes.online import OnlineLearner as OnlineLearner
from tamis.bayes.online import tune as tune
from tamis.bayes.posterior import Sampling as Sampling
from tamis.bayes.prior import Prior as Prior
from tamis.bayes.run import JOURNAL as JOURNAL
from tamis.bayes.run import RunSettings as RunSettings
from tamis.bayes.run import run_online as run_online
from tamis.bayes.space import Structure as Structure
from tamis.bayes.streams import build_space as build_space
from tamis.bayes.streams import load_stream as load_stream
from tamis.bayes.summary import BOUND as BOUND
from tamis.bayes.summary import GUESS as GUESS
from tamis.bayes.summary import LEAST_BOUND as LEAST_BOUND
from tamis.bayes.summary import compute_curves as compute_curves
from tamis.bayes.summary import describe_structure as describe_structure
from tamis.bayes.summary import find_experts as find_experts
from tamis.bayes.summary import summarise_run as summarise_run
from tamis.bayes.xnor import Xnor as Xnor

__all__ = [
    "BOUND",
    "GUESS",
    "JOURNAL",
    "LEAST_BOUND",
    "Conv1d",
    "Conv2d",
    "Dense",
    "Graph",
    "OnlineLearner",
    "Prior",
    "RoundJournal",
    "RunSettings",
    "Sampling",
    "Structure",
    "Xnor",
    "build_space",
    "compute_curves",
    "count_rounds",
    "describe_structure",
    "find_experts",
    "load_stream",
    "run_online",
    "summarise_run",
    "tune",
]
