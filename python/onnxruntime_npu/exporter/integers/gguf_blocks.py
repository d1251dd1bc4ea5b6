"""The blocks of GGUF files as integers with a scale and an offset for each group.

Layouts as ggml defines them; K-quants have scales of scales. Types that are not here (Q2_K, Q3_K,
codebooks, ternary ones) are taken as floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """``value = d * q + m``: signed q [rows, groups, group], d and m [rows, groups] or no m."""

    q: npt.NDArray[np.int16]
    d: Floats
    m: Floats | None


def has_blocks(kind: Type) -> bool:
    """Whether ``blocks_of`` reads a type."""
    return kind in _READERS


def bits_of(kind: Type) -> int:
    """Return the bits of a signed integer of a type that has blocks."""
    return _READERS[kind][1]


def blocks_of(kind: Type, data: Bytes) -> Blocks:
    """Return the integers of a tensor, data [rows, bytes], of a type that has blocks."""
    size, _, read = _READERS[kind]
    blocks = data.reshape(data.shape[0], -1, size)
    q, d, m = read(blocks)
    # One axis of groups: [rows, blocks, groups of a block, group] to [rows, groups, group].
    joined = (data.shape[0], -1)
    integers: npt.NDArray[np.int16] = q.reshape(*joined, q.shape[-1]).astype(np.int16)
    return Blocks(integers, d.reshape(joined), None if m is None else m.reshape(joined))


def _half(blocks: Bytes, start: int) -> Floats:
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low nibbles first, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _bits(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=-1, bitorder="little")


Parts = tuple[npt.NDArray[np.integer], Floats, Floats | None]


def _q4_0(b: Bytes) -> Parts:
    return _nibbles(b[..., 2:]).astype(np.int16) - 8, _half(b, 0), None


def _q4_1(b: Bytes) -> Parts:
    d, m = _half(b, 0), _half(b, 2)
    return _nibbles(b[..., 4:]).astype(np.int16) - 8, d, m + 8 * d


def _q5_0(b: Bytes) -> Parts:
    q = _nibbles(b[..., 6:]) | (_bits(b[..., 2:6]) << 4)
    return q.astype(np.int16) - 16, _half(b, 0), None


def _q5_1(b: Bytes) -> Parts:
    d, m = _half(b, 0), _half(b, 2)
    q = _nibbles(b[..., 8:]) | (_bits(b[..., 4:8]) << 4)
    return q.astype(np.int16) - 16, d, m + 16 * d


def _q8_0(b: Bytes) -> Parts:
    return b[..., 2:].view(np.int8), _half(b, 0), None


def _six_bits(packed: Bytes) -> tuple[Floats, Floats]:
    """Scales and minima [.., 8] of six bits each in 12 bytes."""
    low, middle, high = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], -1)
    least = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], -1)
    return scale.astype(np.float32), least.astype(np.float32)


def _q4_k(b: Bytes) -> Parts:
    scale, least = _six_bits(b[..., 4:16])
    d, m = _half(b, 0) * scale, -_half(b, 2) * least
    # 32 bytes hold 64 values: the low nibbles are one group, the high ones the next.
    packed = b[..., 16:].reshape(*b.shape[:-1], 4, 32)
    q = np.stack([packed & 15, packed >> 4], -2).reshape(*b.shape[:-1], 8, 32)
    return q.astype(np.int16) - 8, d, m + 8 * d


def _q5_k(b: Bytes) -> Parts:
    scale, least = _six_bits(b[..., 4:16])
    d, m = _half(b, 0) * scale, -_half(b, 2) * least
    packed = b[..., 48:].reshape(*b.shape[:-1], 4, 32)
    q = np.stack([packed & 15, packed >> 4], -2).reshape(*b.shape[:-1], 8, 32)
    # Bit g of byte i is the fifth bit of value i of group g.
    fifth = (b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return (q | (fifth << 4)).astype(np.int16) - 16, d, m + 16 * d


def _q6_k(b: Bytes) -> Parts:
    low = b[..., :128].reshape(*b.shape[:-1], 2, 1, 64)
    high = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32)
    # Each half of 128 values: low nibbles of 64 bytes, then their high ones.
    fours = np.concatenate([low & 15, low >> 4], -2).reshape(*b.shape[:-1], 2, 4, 32)
    twos = (high >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    q = (fours | (twos << 4)).reshape(*b.shape[:-1], 16, 16).astype(np.int16) - 32
    scale = b[..., 192:208].view(np.int8).astype(np.float32)
    return q, _half(b, 208) * scale, None


# Bytes of a block, bits of an integer, and how to read it.
_READERS: dict[Type, tuple[int, int, Callable[[Bytes], Parts]]] = {
    Type.Q4_0: (18, 4, _q4_0),
    Type.Q4_1: (20, 4, _q4_1),
    Type.Q5_0: (22, 8, _q5_0),
    Type.Q5_1: (24, 8, _q5_1),
    Type.Q8_0: (34, 8, _q8_0),
    Type.Q4_K: (144, 4, _q4_k),
    Type.Q5_K: (176, 8, _q5_k),
    Type.Q6_K: (210, 8, _q6_k),
}
