"""The weights of quantized_matmul.py and moe.py, the same integers and scales for every engine."""

from __future__ import annotations

import numpy as np
from matmul import COLD_BYTES, MOST_LAYERS, SEED, rows_of

BITS = {"w8a16": 8, "w4a16": 4, "w8a8": 8}


def group_of(k: int) -> int:
    """The number of rows of an int4 weight of depth k that share scales."""
    return 128 if k % 128 == 0 else 64


def layers_of(scheme: str, k: int, n: int) -> int:
    """The number of weights of this shape that exceeds the caches."""
    return max(2, min(MOST_LAYERS, COLD_BYTES * 8 // (k * n * BITS[scheme])))


def integers_of(scheme: str, k: int, n: int, layers: int) -> np.ndarray:
    """Weights [layers, k, n] in int8, each with different values."""
    most = 2 ** (BITS[scheme] - 1)
    numbers = np.random.default_rng(SEED)
    return numbers.integers(-most, most, (layers, k, n), np.int8, endpoint=False)


def scales_of(scheme: str, k: int, n: int) -> np.ndarray:
    """Scales [groups, n] in float32, of values that bfloat16 has."""
    groups = k // group_of(k) if scheme == "w4a16" else 1
    return np.random.default_rng(SEED + 2).integers(16, 32, (groups, n)).astype(np.float32) / 1024


def relative_error(scheme: str, k: int, n: int, m: int, product: np.ndarray) -> np.ndarray:
    """Of the product with the last weight, against float64."""
    values = integers_of(scheme, k, n, layers_of(scheme, k, n))[-1].astype(np.float64)
    scales = scales_of(scheme, k, n)
    exact = rows_of(m, k).astype(np.float64) @ (values * np.repeat(scales, k // len(scales), 0))
    difference = np.linalg.norm(product - exact) / np.linalg.norm(exact)
    return np.array([difference], np.float32)


def nibbles(unsigned: np.ndarray) -> np.ndarray:
    """Two values of 4 bits in a byte, the first in the lower half: uint8 [.., n] as [.., n / 2]."""
    return unsigned[..., ::2] | unsigned[..., 1::2] << 4


def words(values: np.ndarray) -> np.ndarray:
    """int4 values [.., n] as int32 [.., n / 8], the first in the lowest bits."""
    nibbles = values.reshape(*values.shape[:-1], -1, 8).astype(np.uint32) & 15
    return np.bitwise_or.reduce(nibbles << np.arange(0, 32, 4, dtype=np.uint32), -1).view(np.int32)
