"""Quantization: weights on a few levels, by one method a file, which keep the outputs of every layer."""

from tamis.quantization.alphabet import Alphabet as Alphabet
from tamis.quantization.alphabet import alphabet_of as alphabet_of
from tamis.quantization.layer_quantizer import LayerQuantizer as LayerQuantizer
from tamis.quantization.quantize import METHODS as METHODS
from tamis.quantization.quantize import MULTIPLES as MULTIPLES
from tamis.quantization.quantize import quantize as quantize

__all__ = [
    "METHODS",
    "MULTIPLES",
    "Alphabet",
    "LayerQuantizer",
    "alphabet_of",
    "quantize",
]
