"""Model to model: quantisation of weights."""

from .quantize_weights import quantize_weights as quantize_weights
from .schemes import SCHEMES as SCHEMES
from .schemes import Scheme as Scheme

__all__ = ["SCHEMES", "Scheme", "quantize_weights"]
