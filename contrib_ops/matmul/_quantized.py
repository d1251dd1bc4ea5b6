"""What the matmuls with quantised weights share: weights, scales and the checks of both.

A weight is int8, or int4 in words of int32, eight to a word, along a row or along a column.
"""

from onnxruntime_npu.opdef import check, torch

from ..quant._integers import unpack
from ..quant._packed_scale import body_unpack_scale, unpack_scale

_WORD = 8


def check_per_column(op, name, values, n):
    """Refuse values that are not one for all columns or one for each of them."""
    check(
        values.dim() in (1, 2)
        and (values.dim() == 1 or values.shape[0] == 1)
        and values.shape[-1] in (1, n),
        f"[{op}] expected {name} of shape [1], [{n}] or [1, {n}], got {list(values.shape)}",
    )


def weight_matrix(op, name, weight, k):
    """Return `weight` [.., K, N] as integers, one to an element."""
    check(
        weight.dim() >= 2, f"[{op}] expected {name} of two axes or more, got {list(weight.shape)}"
    )
    rows = weight.shape[-2]
    if weight.dtype == torch.int8:
        check(rows == k, f"[{op}] expected {name} [.., {k}, N], got {list(weight.shape)}")
        return weight
    along_rows = rows == k
    check(
        along_rows or (k % _WORD == 0 and rows == k // _WORD),
        f"[{op}] expected {name} of packed int4 [.., {k}, N / 8] or [.., {k} / 8, N], "
        f"got {list(weight.shape)}",
    )
    return unpack(weight) if along_rows else unpack(weight.transpose(-1, -2)).transpose(-1, -2)


def body_weight_matrix(b, call, name, weight, k):
    """Build weight_matrix for depth `k`, int64 [1], to int64 if the weight has words."""
    if call.dtype(name) == "int8":
        return weight
    shape = b.Shape(weight)
    words = [b.Slice(shape, [axis], [2**62 if axis == -1 else -1]) for axis in (-2, -1)]
    # Of the 8 values of a word, as many belong to a column, and the others to a row.
    in_column = b.Max(b.Div(k, b.Max(words[0], 1)), 1)
    nibbles = []
    for axis, count, span in zip(
        (-2, -1), words, (in_column, b.Div(_WORD, in_column)), strict=True
    ):
        size = b.Squeeze(b.Mul(count, span), [0])
        places = b.Range(b.const(0, "int64"), size, b.const(1, "int64"))
        weight = b.Gather(weight, b.Div(places, span), axis=axis)
        nibbles.append(b.Mod(places, span))
    nibble = b.Add(b.Unsqueeze(nibbles[0], [1]), nibbles[1])
    power = b.Gather(b.const([16**i for i in range(_WORD)], "int64"), nibble)
    unsigned = b.Mod(b.Cast(weight, to="int64"), b.const(2**32, "int64"))
    shifted = b.Add(b.Div(unsigned, power), 8)
    return b.Sub(b.Mod(shifted, b.const(16, "int64")), 8)


def scales(values):
    """Return scales of any float type, or packed into 64 bits, as float32."""
    packed = values.dtype in (torch.int64, torch.uint64)
    return unpack_scale(values) if packed else values.float()


def body_scales(b, call, name, values):
    """Build scales."""
    packed = call.dtype(name) in ("int64", "uint64")
    return body_unpack_scale(b, values) if packed else b.Cast(values, to="float32")
