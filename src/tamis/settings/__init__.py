"""The settings of a method are its keywords in Python, its options on the command line and its keys in a recipe.

A method has one frozen dataclass here. Its fields, their defaults and their one text of help are what all three faces
show; a contract test holds them to it. Nothing here imports torch: the help of a command must not wait for it.
"""

from tamis.settings.arguments import as_plain_int as as_plain_int
from tamis.settings.arguments import as_plain_ints as as_plain_ints
from tamis.settings.arguments import check_batch as check_batch
from tamis.settings.arguments import is_int as is_int
from tamis.settings.arguments import require as require
from tamis.settings.binarization import Binarization as Binarization
from tamis.settings.certification import Certification as Certification
from tamis.settings.factorization import Factorization as Factorization
from tamis.settings.field import choices_of as choices_of
from tamis.settings.field import default_of as default_of
from tamis.settings.field import documents as documents
from tamis.settings.field import exclude_setting as exclude_setting
from tamis.settings.field import help_of as help_of
from tamis.settings.field import include_setting as include_setting
from tamis.settings.field import setting as setting
from tamis.settings.online import OnlineLearning as OnlineLearning
from tamis.settings.pruning import Pruning as Pruning
from tamis.settings.quantization import Quantization as Quantization
from tamis.settings.repair import Repair as Repair
from tamis.settings.search import Search as Search
from tamis.settings.training import Training as Training

__all__ = [
    "Binarization",
    "Certification",
    "Factorization",
    "OnlineLearning",
    "Pruning",
    "Quantization",
    "Repair",
    "Search",
    "Training",
    "as_plain_int",
    "as_plain_ints",
    "check_batch",
    "choices_of",
    "default_of",
    "documents",
    "exclude_setting",
    "help_of",
    "include_setting",
    "is_int",
    "require",
    "setting",
]
