"""The 64-bit form in which integer matmuls take a scale, as npu_trans_quant_param makes it.

Bits 0 to 31 have a float32 of 10 mantissa bits, the low 13 bits zero, bits 37 to 45 a signed
offset, if there is one, and bit 46 is set.
"""

from onnxruntime_npu.opdef import torch

_MARK = 1 << 46


def pack_scale(scale, offset=None, rounds=False):
    """Return float32 scales cut to 10 mantissa bits, or rounded half to even, and the offsets.

    Offsets are rounded half to even and saturated to [-256, 255]. A NaN scale stays NaN, a NaN
    offset becomes 0.
    """
    bits = scale.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    cut = bits + 0xFFF + ((bits >> 13) & 1) if rounds else bits
    packed = torch.where(scale.isnan(), bits | 0x400000, cut) & 0xFFFFE000 | _MARK
    if offset is None:
        return packed
    rounded = torch.where(offset.isnan(), 0.0, offset).round().clamp(-256, 255).to(torch.int64)
    return packed | (rounded & 0x1FF) << 37


def unpack_scale(words):
    """Return the float32 scales; bits that packing clears are ignored."""
    bits = words.to(torch.int64) & 0xFFFFE000
    return torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32).view(torch.float32)


def unpack_offset(words):
    """Return the offsets as float32."""
    bits = (words.to(torch.int64) >> 37) & 0x1FF
    return torch.where(bits > 255, bits - 512, bits).float()


def body_unpack_scale(b, words):
    """Build unpack_scale, except that a NaN scale becomes infinite."""
    bits = b.Mod(b.Cast(words, to="int64"), b.const(2**32, "int64"))
    exponent = b.Mod(b.Div(bits, 2**23), b.const(256, "int64"))
    mantissa = b.Mod(b.Div(bits, 2**13), b.const(1024, "int64"))
    # Exponent 0 has no leading one; its mantissa counts as that of exponent 1 does.
    significand = b.Add(mantissa, b.Mul(b.Min(exponent, 1), 1024))
    power = b.Pow(b.const(2.0, "float64"), b.Cast(b.Sub(b.Max(exponent, 1), 137), to="float64"))
    sign = b.Sub(1, b.Mul(b.Div(bits, 2**31), 2))
    signed = b.Cast(b.Mul(significand, sign), to="float64")
    return b.Cast(b.Mul(signed, power), to="float32")


def body_unpack_offset(b, words):
    """Build unpack_offset."""
    bits = b.Div(b.Mod(words, b.const(_MARK, "int64")), 2**37)
    return b.Cast(b.Sub(b.Mod(b.Add(bits, 256), b.const(512, "int64")), 256), to="float32")
