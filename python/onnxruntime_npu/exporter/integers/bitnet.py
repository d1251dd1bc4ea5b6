"""BitNet: -1, 0 and 1 in two bits, one scale for a layer, activations int8 per token.

``weight`` uint8 [out / 4, in], whose lowest bits are the first quarter of the outputs;
``weight_scale`` [1], by which ``bitlinear`` divides and ``autobitlinear`` multiplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .format import Format, Layer, check_shape, taken
from .integer_weight import DYNAMIC, IntegerWeight

_IN_BYTE, _BITS = 4, 2
_LEAST_BITS = 4  # of a type of integers that operators multiply


class BitNet(Format):
    """``W[o, i] = q[o, i] / scale``, or ``q[o, i] * scale``."""

    method = "bitnet"

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        kind = config.get("linear_class") or "bitlinear"
        mode = config.get("quantization_mode") or "offline"
        if kind not in ("bitlinear", "autobitlinear") or (kind, mode) == (
            "autobitlinear",
            "online",
        ):
            raise ValueError(
                f"expected bitnet's packed weights, of linear_class bitlinear, or autobitlinear "
                f"with quantization_mode offline, got {kind} with {mode}"
            )
        if config.get("use_rms_norm"):
            raise ValueError("expected bitnet without norms in layers, got use_rms_norm")
        self._divides = kind == "bitlinear"

    def stores(self, tensors: Mapping[str, str]) -> bool:
        """Return whether a layer has packed integers."""
        packed = tensors.get("weight") == "U8"
        if packed and "bias" in tensors and not self._divides:
            # It multiplies the bias by the scale, too, unlike any other layer.
            raise ValueError("expected bitnet's autobitlinear layers without bias, got some with")
        return packed

    def read(self, layer: Layer, tensors: Mapping[str, torch.Tensor]) -> IntegerWeight:
        """Return the weight of a layer."""
        rows, columns = layer.sizes
        stored, scale = taken(tensors, "weight"), taken(tensors, "weight_scale").reshape(-1)
        if columns % _IN_BYTE:
            raise ValueError(f"expected outputs that {_IN_BYTE} divides, got {columns}")
        check_shape("weight", stored, columns // _IN_BYTE, rows)
        check_shape("weight_scale", scale, 1)
        shifts = _BITS * torch.arange(_IN_BYTE, dtype=torch.uint8)
        values = ((stored >> shifts[:, None, None]) & 3).flatten(0, 1).to(torch.int8) - 1
        if bool((values > 1).any()) or not bool(scale):
            raise ValueError("expected a weight of -1, 0 and 1, and a scale that is not 0")
        step = (1 / scale if self._divides else scale).expand(1, columns)
        return IntegerWeight.packed(values.t(), _LEAST_BITS, step, None, rows, activation=DYNAMIC)
