"""What the matmuls with quantised weights share: weights, scales and the checks of both.

A weight is int8, or int4 in words of int32, eight to a word, along a row or along a column.
"""

from onnxruntime_npu.opdef import check, torch

from ..quant._integers import unpack
from ..quant._packed_scale import body_unpack_scale, unpack_scale

_WORD = 8


def dtype_name(tensor):
    """Return "float16" for a tensor of torch.float16."""
    return str(tensor.dtype).removeprefix("torch.")


def refuse_other(op, scheme, given, allowed):
    """Refuse tensors that a scheme does not take, and miss those that it needs, marked by "!"."""
    names = {name.rstrip("!") for name in allowed}
    for name, tensor in given.items():
        check(tensor is None or name in names, f"[{op}] expected no {name} with {scheme}, got one")
        check(
            tensor is not None or f"{name}!" not in allowed,
            f"[{op}] expected {name} with {scheme}, got none",
        )


def check_per_column(op, name, values, n):
    """Refuse values that are not one for all columns or one for each of them."""
    check(
        values.dim() in (1, 2)
        and (values.dim() == 1 or values.shape[0] == 1)
        and values.shape[-1] in (1, n),
        f"[{op}] expected {name} of shape [1], [{n}] or [1, {n}], got {list(values.shape)}",
    )


def check_antiquant_scale(op, scale, k, n, group):
    """Refuse scales of the weight's columns or, with ``group``, of its groups of rows."""
    if group == 0:
        check_per_column(op, "antiquant_scale", scale, n)
        return
    groups = -(-k // group)
    check(
        list(scale.shape) == [groups, n],
        f"[{op}] expected antiquant_scale of shape [{groups}, {n}], groups of {group} rows, "
        f"got {list(scale.shape)}",
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


def dequantized(weight, scale, offset, dtype):
    """Return (weight + offset) * scale of `dtype`, which broadcast; float16 rounds the sum, too."""
    summed = weight.float()
    if offset is not None:
        summed = summed + offset.float()
    if dtype == torch.float16:
        summed = summed.half().float()
    return (summed * scale.float()).to(dtype)


def body_dequantized(b, weight, scale, offset, dtype):
    """Build dequantized, of float32 scales and offsets."""
    summed = b.Cast(weight, to="float32")
    if offset is not None:
        summed = b.Add(summed, offset)
    if dtype == "float16":
        summed = b.Cast(b.Cast(summed, to="float16"), to="float32")
    return b.Cast(b.Mul(summed, scale), to=dtype)


def rounded_rows(x, group):
    """Return float32 x with every row rounded to int8, a scale for each group of elements."""
    k = x.shape[-1]
    groups = -(-k // group)
    padded = torch.nn.functional.pad(x, (0, groups * group - k))
    parts = padded.reshape([*x.shape[:-1], groups, group])
    most = parts.abs().amax(-1, keepdim=True)
    # Not 127 / most, which torch computes by the reciprocal: that rounds twice.
    factor = torch.where(most == 0, 0.0, torch.full_like(most, 127.0) / most)
    rounded = torch.round(parts * factor) * (most / 127)
    return rounded.reshape(padded.shape)[..., :k]


def body_rounded_rows(b, x, group):
    """Build rounded_rows."""
    shape = b.Shape(x)
    k, lead = b.Slice(shape, [-1], [2**62]), b.Slice(shape, [0], [-1])
    missing = b.Mod(b.Neg(k), b.const([group], "int64"))
    padded = b.Pad(x, b.Concat([0], missing, axis=0), b.const(0.0, "float32"), [-1])
    groups = b.Div(b.Add(k, missing), b.const([group], "int64"))
    parts = b.Reshape(padded, b.Concat(lead, groups, [group], axis=0), allowzero=1)
    most = b.ReduceMax(b.Abs(parts), [-1], keepdims=1)
    zero = b.const(0.0, "float32")
    factor = b.Where(b.Equal(most, 0.0), zero, b.Div(b.const(127.0, "float32"), most))
    rounded = b.Mul(b.Round(b.Mul(parts, factor)), b.Div(most, 127.0))
    whole = b.Reshape(rounded, b.Shape(padded), allowzero=1)
    return b.Slice(whole, [0], k, [-1])
