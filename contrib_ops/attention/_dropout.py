"""Attention dropout: a function of the weight's index, the seed and the offset."""

import struct

from onnxruntime_npu.opdef.philox import philox


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
