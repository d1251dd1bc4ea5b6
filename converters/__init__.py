"""Model to model: quantisation of weights, and ONNX files from and to other exporters."""

from .attach_bodies import attach_bodies as attach_bodies
from .convert import ConversionReport as ConversionReport
from .convert import convert as convert
from .inline import inline as inline
from .quantize_weights import quantize_weights as quantize_weights
from .schemes import SCHEMES as SCHEMES
from .schemes import Scheme as Scheme

__all__ = [
    "SCHEMES",
    "ConversionReport",
    "Scheme",
    "attach_bodies",
    "convert",
    "inline",
    "quantize_weights",
]
