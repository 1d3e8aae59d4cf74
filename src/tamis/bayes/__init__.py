"""Online learning over a union of spaces of networks, with a prior that favours few weights.

Reference: chee2021xnor.
"""

from tamis.bayes.account import BOUND as BOUND
from tamis.bayes.account import GUESS as GUESS
from tamis.bayes.account import LEAST as LEAST
from tamis.bayes.account import account as account
from tamis.bayes.account import called as called
from tamis.bayes.account import curves as curves
from tamis.bayes.account import experts as experts
from tamis.bayes.journal import Journal as Journal
from tamis.bayes.journal import rounds_in as rounds_in
from tamis.bayes.networks import Conv1d as Conv1d
from tamis.bayes.networks import Conv2d as Conv2d
from tamis.bayes.networks import Dense as Dense
from tamis.bayes.networks import Graph as Graph
from tamis.bayes.online import OnlineLearner as OnlineLearner
from tamis.bayes.online import tuned as tuned
from tamis.bayes.posterior import Sampling as Sampling
from tamis.bayes.prior import Prior as Prior
from tamis.bayes.run import JOURNAL as JOURNAL
from tamis.bayes.run import Asked as Asked
from tamis.bayes.run import follow as follow
from tamis.bayes.space import Structure as Structure
from tamis.bayes.streams import named as named
from tamis.bayes.streams import space_for as space_for
from tamis.bayes.xnor import Xnor as Xnor

__all__ = [
    "BOUND",
    "GUESS",
    "JOURNAL",
    "LEAST",
    "Asked",
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
    "account",
    "called",
    "curves",
    "experts",
    "follow",
    "named",
    "rounds_in",
    "space_for",
    "tuned",
]
