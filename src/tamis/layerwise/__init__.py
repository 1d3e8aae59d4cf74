"""Quantization, repair and pruning with weight updates share this work, layer by layer over calibration data."""

from tamis.layerwise.bias_correction import InputMeans as InputMeans
from tamis.layerwise.bias_correction import compute_bias_offset as compute_bias_offset
from tamis.layerwise.bias_correction import correct_bias as correct_bias
from tamis.layerwise.calibration import FEWEST_BATCHES as FEWEST_BATCHES
from tamis.layerwise.calibration import Calibration as Calibration
from tamis.layerwise.calibration import describe_calibration as describe_calibration
from tamis.layerwise.calibration import read_calibration as read_calibration
from tamis.layerwise.collector import MANY_FEATURES as MANY_FEATURES
from tamis.layerwise.collector import LayerGrams as LayerGrams
from tamis.layerwise.collector import LayerRows as LayerRows
from tamis.layerwise.collector import PairedRows as PairedRows
from tamis.layerwise.gram import Gram as Gram
from tamis.layerwise.gram import lower_product as lower_product
from tamis.layerwise.gram import split_panels as split_panels
from tamis.layerwise.gram import symmetric_product as symmetric_product
from tamis.layerwise.journal import ORIGIN as ORIGIN
from tamis.layerwise.journal import LayerOutcome as LayerOutcome
from tamis.layerwise.layer_matrices import DenseLayout as DenseLayout
from tamis.layerwise.layer_matrices import MatrixLayout as MatrixLayout
from tamis.layerwise.layers import Kernels as Kernels
from tamis.layerwise.layers import Layer as Layer
from tamis.layerwise.layers import find_layers as find_layers
from tamis.layerwise.least_squares import NormalEquations as NormalEquations
from tamis.layerwise.least_squares import add_ridge as add_ridge
from tamis.layerwise.least_squares import fit_weights as fit_weights
from tamis.layerwise.least_squares import fit_with_saliencies as fit_with_saliencies
from tamis.layerwise.repair import repair as repair
from tamis.layerwise.walk import ACTIVATION_BUDGET as ACTIVATION_BUDGET
from tamis.layerwise.walk import CalibrationRun as CalibrationRun
from tamis.layerwise.walk import LayerTransform as LayerTransform
from tamis.layerwise.walk import check_budget as check_budget
from tamis.layerwise.walk import transform_layers as transform_layers

__all__ = [
    "ACTIVATION_BUDGET",
    "FEWEST_BATCHES",
    "MANY_FEATURES",
    "ORIGIN",
    "Calibration",
    "CalibrationRun",
    "DenseLayout",
    "Gram",
    "InputMeans",
    "Kernels",
    "Layer",
    "LayerGrams",
    "LayerOutcome",
    "LayerRows",
    "LayerTransform",
    "MatrixLayout",
    "NormalEquations",
    "PairedRows",
    "add_ridge",
    "check_budget",
    "compute_bias_offset",
    "correct_bias",
    "describe_calibration",
    "find_layers",
    "fit_weights",
    "fit_with_saliencies",
    "lower_product",
    "read_calibration",
    "repair",
    "split_panels",
    "symmetric_product",
    "transform_layers",
]
