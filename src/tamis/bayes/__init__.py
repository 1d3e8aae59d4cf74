"""Online learning over a union of spaces of networks, with a prior that favours few weights.

Reference: chee2021xnor.
"""

from tamis.bayes.journal import Journal as Journal
from tamis.bayes.networks import Conv1d as Conv1d
from tamis.bayes.networks import Conv2d as Conv2d
from tamis.bayes.networks import Dense as Dense
from tamis.bayes.networks import Graph as Graph
from tamis.bayes.online import OnlineLearner as OnlineLearner
from tamis.bayes.online import tuned as tuned
from tamis.bayes.posterior import Sampling as Sampling
from tamis.bayes.prior import Prior as Prior
from tamis.bayes.space import Structure as Structure
from tamis.bayes.xnor import Xnor as Xnor

__all__ = [
    "Conv1d",
    "Conv2d",
    "Dense",
    "Graph",
    "Journal",
    "OnlineLearner",
    "Prior",
    "Sampling",
    "Structure",
    "Xnor",
    "tuned",
]
