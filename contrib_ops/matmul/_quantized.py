"""Weights of int8, or of int4 in words of int32: eight to a word, the first in the lowest bits."""

from onnxruntime_npu.opdef import torch

_IN_WORD = 8


def unpack_words(words, axis=-1):
    """Return the int4 values of int32 `words` as int8, `axis` eight times as long."""
    shifts = torch.arange(0, 4 * _IN_WORD, 4, dtype=torch.int32, device=words.device)
    values = words.movedim(axis, -1).unsqueeze(-1) >> shifts & 15
    signed = (values ^ 8) - 8
    return signed.flatten(-2).movedim(-1, axis).to(torch.int8)


def pack_words(values):
    """Return int4 `values` as int32, the last axis an eighth as long."""
    shifts = torch.arange(0, 4 * _IN_WORD, 4, dtype=torch.int64, device=values.device)
    nibbles = values.to(torch.int64).unflatten(-1, (-1, _IN_WORD)) & 15
    words = (nibbles << shifts).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def weight_matrix(op, name, weight, k, check):
    """Return `weight` [.., K, N] as int8; words hold elements of a row, or of a column."""
    check(
        weight.dim() >= 2, f"[{op}] expected {name} of two axes or more, got {list(weight.shape)}"
    )
    rows = weight.shape[-2]
    if weight.dtype == torch.int8:
        check(rows == k, f"[{op}] expected {name} [.., {k}, N], got {list(weight.shape)}")
        return weight
    along_rows = rows == k
    check(
        along_rows or (k % _IN_WORD == 0 and rows == k // _IN_WORD),
        f"[{op}] expected {name} of packed int4 [.., {k}, N / 8] or [.., {k} / 8, N], "
        f"got {list(weight.shape)}",
    )
    return unpack_words(weight, -1 if along_rows else -2)


def scale_of(words):
    """Return the float32 that npu_trans_quant_param packed into 64 bits."""
    return (words.to(torch.int64) & 0xFFFFE000).to(torch.int32).view(torch.float32)


def offset_of(words):
    """Return the offset that npu_trans_quant_param packed into 64 bits, as float32."""
    bits = words.to(torch.int64) >> 37 & 0x1FF
    return ((bits ^ 0x100) - 0x100).to(torch.float32)


def quantized(values):
    """Return float32 `values` rounded half to even and saturated to int8; NaN becomes -128."""
    return torch.nan_to_num(values, nan=-128.0).round().clamp(-128, 127).to(torch.int8)
