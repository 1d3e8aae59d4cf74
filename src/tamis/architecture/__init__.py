"""An architecture is found apart from its weights: search for the connections a network needs, then train them anew.

Reference: colombo2021architecture.
"""

from tamis.architecture.architecture import Architecture as Architecture
from tamis.architecture.baselines import magnitude_architecture as magnitude_architecture
from tamis.architecture.baselines import random_architecture as random_architecture
from tamis.architecture.reshuffle import reshuffle as reshuffle
from tamis.architecture.search import RESULT_FILE as RESULT_FILE
from tamis.architecture.search import SEARCH_FILE as SEARCH_FILE
from tamis.architecture.search import search as search
from tamis.architecture.transfer import reinitialise as reinitialise
from tamis.architecture.transfer import transfer as transfer
from tamis.architecture.two_temperature import TwoTemperature as TwoTemperature

__all__ = [
    "RESULT_FILE",
    "SEARCH_FILE",
    "Architecture",
    "TwoTemperature",
    "magnitude_architecture",
    "random_architecture",
    "reinitialise",
    "reshuffle",
    "search",
    "transfer",
]
