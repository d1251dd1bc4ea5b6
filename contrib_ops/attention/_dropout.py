"""Attention dropout: a function of the weight's index, the seed and the offset."""

import struct

from onnxruntime_npu.opdef import torch


def single(x):
    """Return x rounded to float32, as stored in a node."""
    return struct.unpack("f", struct.pack("f", x))[0]


def factors(keep_prob, number, seed, offset, bits=None):
    """Return 1 / keep_prob as float64 where weight `number` is kept, otherwise 0.

    number: int64. bits: uint8; if given, bit n % 8 of byte n // 8 keeps weight n. Otherwise it is
    kept where word n % 4 of Philox 4x32-10 is below keep_prob * 2^32; its key is seed, its counter
    has n // 4 in the lower and offset in the upper 64 bits.
    """
    keep_prob = single(keep_prob)
    if bits is not None:
        keep = (bits.take(number // 8) >> (number % 8)) & 1 == 1
    else:
        keep = philox(seed, offset, number) < int(keep_prob * 2**32)
    return keep.double() * (1 / keep_prob if keep_prob else 0.0)


def philox(seed, offset, number):
    """Return word number % 4 of block number // 4 of Philox 4x32-10, as int64."""
    low = 0xFFFFFFFF
    block = number // 4
    c = [block & low, block >> 32, torch.full_like(block, offset & low)]
    c.append(torch.full_like(block, (offset >> 32) & low))
    k = [seed & low, (seed >> 32) & low]
    for _ in range(10):
        # Products wrap around at 64 bits, but both halves are still correct.
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [((b >> 32) & low) ^ c[1] ^ k[0], b & low, ((a >> 32) & low) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return torch.stack(c, -1).gather(-1, (number % 4)[..., None])[..., 0]
