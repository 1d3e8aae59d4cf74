"""Layer by layer over calibration data: what quantization, repair and pruning with weight updates share."""

from tamis.layerwise.bias_correction import Means as Means
from tamis.layerwise.bias_correction import lost as lost
from tamis.layerwise.bias_correction import shifted as shifted
from tamis.layerwise.calibration import FEWEST_BATCHES as FEWEST_BATCHES
from tamis.layerwise.calibration import Calibration as Calibration
from tamis.layerwise.calibration import batches_of as batches_of
from tamis.layerwise.collector import MANY_FEATURES as MANY_FEATURES
from tamis.layerwise.collector import Rows as Rows
from tamis.layerwise.collector import Samples as Samples
from tamis.layerwise.collector import Sums as Sums
from tamis.layerwise.gram import Gram as Gram
from tamis.layerwise.gram import lower_product as lower_product
from tamis.layerwise.gram import panels as panels
from tamis.layerwise.gram import symmetric_product as symmetric_product
from tamis.layerwise.journal import ORIGIN as ORIGIN
from tamis.layerwise.journal import Outcome as Outcome
from tamis.layerwise.layer_matrices import Dense as Dense
from tamis.layerwise.layer_matrices import Form as Form
from tamis.layerwise.layers import Kernels as Kernels
from tamis.layerwise.layers import Layer as Layer
from tamis.layerwise.layers import find_layers as find_layers
from tamis.layerwise.least_squares import System as System
from tamis.layerwise.least_squares import fitted as fitted
from tamis.layerwise.least_squares import fitted_with_saliencies as fitted_with_saliencies
from tamis.layerwise.least_squares import with_ridge as with_ridge
from tamis.layerwise.repair import repair as repair
from tamis.layerwise.transform import described as described
from tamis.layerwise.transform import transformed as transformed
from tamis.layerwise.walk import ACTIVATION_BUDGET as ACTIVATION_BUDGET
from tamis.layerwise.walk import Walk as Walk
from tamis.layerwise.walk import check_budget as check_budget

__all__ = [
    "ACTIVATION_BUDGET",
    "FEWEST_BATCHES",
    "MANY_FEATURES",
    "ORIGIN",
    "Calibration",
    "Dense",
    "Form",
    "Gram",
    "Kernels",
    "Layer",
    "Means",
    "Outcome",
    "Rows",
    "Samples",
    "Sums",
    "System",
    "Walk",
    "batches_of",
    "check_budget",
    "described",
    "find_layers",
    "fitted",
    "fitted_with_saliencies",
    "lost",
    "lower_product",
    "panels",
    "repair",
    "shifted",
    "symmetric_product",
    "transformed",
    "with_ridge",
]
