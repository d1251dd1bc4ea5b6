"""Unpacking of unsigned integers of a few bits from words of 32."""

from __future__ import annotations

import torch


def unpacked(words: torch.Tensor, bits: int, size: int) -> torch.Tensor:
    """Read a stream of ``bits`` wide integers along the first axis, the lowest bits first.

    Integers may lie across two words, as those of 3 bits do.

    Args:
        words: int32 [words, columns].
        bits: 1 to 8.
        size: how many integers each column has.

    Returns:
        int16 [size, columns] of values from 0 to 2 ** bits - 1.

    Raises:
        ValueError: if the words do not hold as many.

    """
    if words.dtype != torch.int32 or words.dim() != 2 or words.shape[0] != -(-size * bits // 32):
        raise ValueError(
            f"expected int32 words [{-(-size * bits // 32)}, columns] for {size} integers of "
            f"{bits} bits, got {words.dtype} {list(words.shape)}"
        )
    start = torch.arange(size) * bits
    word, shift = start // 32, (start % 32)[:, None]
    unsigned = words.to(torch.int64) & 0xFFFFFFFF
    value = unsigned[word] >> shift
    following = (word + 1).clamp(max=words.shape[0] - 1)
    value |= unsigned[following] << (32 - shift)
    return (value & (2**bits - 1)).to(torch.int16)


def unpacked_whole(words: torch.Tensor, bits: int, size: int) -> torch.Tensor:
    """Read integers as ``unpacked`` does, of words that may hold whole ones alone.

    As many as fit: ten of 3 bits. So compressed-tensors stored those whose bits do not divide 32
    before it had streams.
    """
    whole = 32 // bits
    streams = words.dim() != 2 or words.shape[0] == -(-size * bits // 32)
    if streams or words.shape[0] != -(-size // whole):
        return unpacked(words, bits, size)  # or say what is wrong
    shift = bits * torch.arange(whole)[:, None]
    values = (words.to(torch.int64)[:, None] >> shift) & (2**bits - 1)
    return values.flatten(0, 1)[:size].to(torch.int16)
