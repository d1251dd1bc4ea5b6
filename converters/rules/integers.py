"""Weights of a few bits as onnxruntime stores them, and the floats that belong to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]


def unpacked(held: Array, bits: int) -> Array:
    """Return the integers [.., R] of 8 bits, or [.., 2 R] of 4, of bytes [.., R].

    Of a byte's two integers the lower one is first.
    """
    wide = held.astype(np.int32)
    if bits == 8:
        return wide
    return np.stack([wide & 15, wide >> 4], axis=-1).reshape(*held.shape[:-1], -1)


def float_type(dtype: ir.DataType) -> ir.DataType:
    """Return the type of activations that operators with such weights take for a type of floats."""
    return ir.DataType.BFLOAT16 if dtype == ir.DataType.FLOAT else dtype


def floats(values: Array, dtype: ir.DataType) -> ir.TensorProtocol:
    """Return values rounded to a type."""
    return ir.tensor(values.astype(np.float32).astype(dtype.numpy()), dtype=dtype)
