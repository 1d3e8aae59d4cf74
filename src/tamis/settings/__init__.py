"""The settings of a method are its keywords in Python, its options on the command line and its keys in a recipe.

A method has one frozen dataclass here. Its fields, their defaults and their one text of help are what all three faces
show; a contract test holds them to it. Nothing here imports torch: the help of a command must not wait for it.
"""

from tamis.settings.binarization import Binarization as Binarization
from tamis.settings.certification import Certification as Certification
from tamis.settings.factorization import Factorization as Factorization
from tamis.settings.field import choices_of as choices_of
from tamis.settings.field import default_of as default_of
from tamis.settings.field import documents as documents
from tamis.settings.field import help_of as help_of
from tamis.settings.field import setting as setting
from tamis.settings.online import OnlineLearning as OnlineLearning
from tamis.settings.pruning import Pruning as Pruning
from tamis.settings.quantization import Quantization as Quantization
from tamis.settings.repair import Repair as Repair
from tamis.settings.search import Search as Search

__all__ = [
    "Binarization",
    "Certification",
    "Factorization",
    "OnlineLearning",
    "Pruning",
    "Quantization",
    "Repair",
    "Search",
    "choices_of",
    "default_of",
    "documents",
    "help_of",
    "setting",
]
