"""Philox 4x32-10 in torch, for references of operators that draw random numbers."""

from __future__ import annotations

from typing import Any

from .definition import torch


def philox(seed: int, offset: int, number: Any) -> Any:
    """Return word number % 4 of block number // 4 as int64, of the shape of ``number``.

    The key is seed; the counter has the block in its lower and offset in its upper 64 bits.
    """
    low, shift = 0xFFFFFFFF, 1 << 32  # of tensors: they are divided, rounding down
    block = number // 4
    c = [block & low, block // shift, torch.full_like(block, offset & low)]
    c.append(torch.full_like(block, (offset >> 32) & low))
    k = [seed & low, (seed >> 32) & low]
    for _ in range(10):
        # Products wrap around at 64 bits, but both halves are still correct.
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b // shift & low) ^ c[1] ^ k[0], b & low, (a // shift & low) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return torch.stack(c, -1).gather(-1, (number % 4)[..., None])[..., 0]
