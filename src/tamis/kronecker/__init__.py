"""Kronecker-sparse matrices are products of factors with supports I_a ⊗ 1_{b×c} ⊗ I_d, in place of dense ones.

Reference: gonon2024thesis.
"""

from tamis.kronecker import tuned_table as tuned_table
from tamis.kronecker import tuning as tuning
from tamis.kronecker.backends import BACKENDS as BACKENDS
from tamis.kronecker.backends import BATCH_FIRST as BATCH_FIRST
from tamis.kronecker.backends import DENSE as DENSE
from tamis.kronecker.backends import Backend as Backend
from tamis.kronecker.backends import register as register
from tamis.kronecker.conv import KroneckerConv2d as KroneckerConv2d
from tamis.kronecker.factorize import Factorization as Factorization
from tamis.kronecker.factorize import factorize as factorize
from tamis.kronecker.families import bit_reversal as bit_reversal
from tamis.kronecker.families import block_butterfly as block_butterfly
from tamis.kronecker.families import butterfly as butterfly
from tamis.kronecker.families import deformable_butterfly as deformable_butterfly
from tamis.kronecker.families import dense as dense
from tamis.kronecker.families import kaleidoscope as kaleidoscope
from tamis.kronecker.families import low_rank as low_rank
from tamis.kronecker.families import monarch as monarch
from tamis.kronecker.layer import KroneckerLayer as KroneckerLayer
from tamis.kronecker.layer import KroneckerLinear as KroneckerLinear
from tamis.kronecker.multiply import check_layout as check_layout
from tamis.kronecker.multiply import multiply as multiply
from tamis.kronecker.pattern import Pattern as Pattern
from tamis.kronecker.pattern import as_chain as as_chain
from tamis.kronecker.pattern import is_dense as is_dense
from tamis.kronecker.pattern import nonzeros as nonzeros
from tamis.kronecker.pattern import product_density as product_density
from tamis.kronecker.rebuilding import rebuild_kronecker_layers as rebuild_kronecker_layers
from tamis.kronecker.replace import patterns_of as patterns_of
from tamis.kronecker.replace import replace as replace
from tamis.kronecker.suggest import Suggestion as Suggestion
from tamis.kronecker.suggest import suggest as suggest

__all__ = [
    "BACKENDS",
    "BATCH_FIRST",
    "DENSE",
    "Backend",
    "Factorization",
    "KroneckerConv2d",
    "KroneckerLayer",
    "KroneckerLinear",
    "Pattern",
    "Suggestion",
    "as_chain",
    "bit_reversal",
    "block_butterfly",
    "butterfly",
    "check_layout",
    "deformable_butterfly",
    "dense",
    "factorize",
    "is_dense",
    "kaleidoscope",
    "low_rank",
    "monarch",
    "multiply",
    "nonzeros",
    "patterns_of",
    "product_density",
    "rebuild_kronecker_layers",
    "register",
    "replace",
    "suggest",
    "tuned_table",
    "tuning",
]
