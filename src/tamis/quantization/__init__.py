"""Quantization puts weights on a few levels so that the outputs of every layer stay; each method has one file."""

from tamis.quantization.alphabet import Alphabet as Alphabet
from tamis.quantization.alphabet import parse_alphabet as alphabet_of
from tamis.quantization.feedback import Recursion as Recursion
from tamis.quantization.layer_quantizer import LayerQuantizer as LayerQuantizer
from tamis.quantization.plan import MULTIPLES as MULTIPLES
from tamis.quantization.plan import Plan as Plan
from tamis.quantization.quantize import quantize as quantize
from tamis.quantization.quantizer import METHODS as METHODS
from tamis.quantization.quantizer import Method as Method
from tamis.quantization.quantizer import Quantizer as Quantizer
from tamis.quantization.quantizer import quantizer_of as quantizer_of

__all__ = [
    "METHODS",
    "MULTIPLES",
    "Alphabet",
    "LayerQuantizer",
    "Method",
    "Plan",
    "Quantizer",
    "Recursion",
    "alphabet_of",
    "quantize",
    "quantizer_of",
]
