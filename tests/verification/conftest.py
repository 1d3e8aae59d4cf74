"""The fixtures of `certified_digits`, under their own names."""

from certified_digits import cert, data, file, model, net

__all__ = ["cert", "data", "file", "model", "net"]
