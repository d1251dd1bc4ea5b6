"""Masks of bits: bit n % 8 of byte n // 8 belongs to element n."""

from onnxruntime_npu.opdef import torch


def bits_of(mask, count):
    """Return the first ``count`` bits of bytes, as bools."""
    powers = (2 ** torch.arange(8, device=mask.device)).to(torch.uint8)
    return (mask[:, None] & powers).ne(0).flatten()[:count]


def bytes_of(bits):
    """Return bytes of bits, 0 and 1 or bools, whose number 8 divides."""
    powers = 2 ** torch.arange(8, device=bits.device)
    return (bits.reshape(-1, 8) * powers).sum(1).to(torch.uint8)
