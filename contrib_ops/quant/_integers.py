"""Floats to integers and back: how every operator of the family rounds, saturates and packs.

Values are computed in float32, rounded half to even, and saturate. NaN becomes 0; with a scale of 0
so does 0 / 0, while other values saturate as infinities do.
"""

from onnxruntime_npu.opdef import NotPortable, check, torch

# Codes of the graph engine, which torch_npu's exporter writes.
INT8, INT32, UINT8, INT4, FLOAT16, BFLOAT16 = 2, 3, 4, 29, 1, 27
_RANGES = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int32": (-(2**31), 2**31 - 1),
    "int4": (-8, 7),
}
_WORD = 8  # int4 values to an int32


def storage(name):
    """Return the dtype of the tensor that holds values of a type."""
    return "int32" if name == "int4" else name


def check_packable(op, argument, shape):
    """Refuse a shape whose values do not fill whole words of int4."""
    check(
        len(shape) >= 1 and shape[-1] % _WORD == 0,
        f"[{op}] expected {argument} whose last axis is a multiple of 8 for int4, "
        f"got {list(shape)}",
    )


def rounded(values, name):
    """Return float32 values rounded and saturated to a type, as float64, which has all of them."""
    low, high = _RANGES[name]
    return torch.where(values.isnan(), 0.0, values).double().round().clamp(low, high)


def saturated(values, name):
    """Return float32 values rounded and saturated to a type; int4 is packed."""
    wide = rounded(values, name)
    if name == "int4":
        return pack(wide.to(torch.int32))
    return wide.to(getattr(torch, name))


def pack(values):
    """Return int32 [.., n / 8] with the low four bits of eight values each, the first lowest."""
    grouped = values.reshape(*values.shape[:-1], values.shape[-1] // _WORD, _WORD)
    # Shifts by numbers: torch cannot trace a shift by a tensor with symbolic sizes.
    nibbles = grouped.to(torch.int64) & 15
    words = torch.stack([nibbles[..., t] * 16**t for t in range(_WORD)]).sum(0)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def pack_bytes(values):
    """Return uint8 [.., n / 2] with the low four bits of two values each, the first lowest."""
    pairs = values.reshape(*values.shape[:-1], values.shape[-1] // 2, 2).to(torch.int64) & 15
    return (pairs[..., 0] + 16 * pairs[..., 1]).to(torch.uint8)


def unpack(words):
    """Return the int4 values of int32 words, [.., 8 n]."""
    wide = words.to(torch.int64)
    nibbles = torch.stack([(wide >> 4 * t) & 15 for t in range(_WORD)], -1)
    values = torch.where(nibbles > 7, nibbles - 16, nibbles)
    return values.reshape(*words.shape[:-1], words.shape[-1] * _WORD)


def body_saturated(b, values, name):
    """Build saturated."""
    wide = body_rounded(b, values, name)
    return body_pack(b, b.Cast(wide, to="int64")) if name == "int4" else b.Cast(wide, to=name)


def body_rounded(b, values, name):
    """Build rounded, as float32 but for int32."""
    low, high = _RANGES[name]
    numbers = b.Where(b.IsNaN(values), b.const(0.0, "float32"), values)
    if name == "int32":
        numbers = b.Cast(numbers, to="float64")
    return b.Clip(b.Round(numbers), float(low), float(high))


def body_pack(b, values):
    """Build pack, of int64 values."""
    words = None
    for i in range(_WORD):
        nibble = b.Slice(values, [i], [2**62], [-1], [_WORD])
        if i < _WORD - 1:
            nibble = b.Mod(nibble, b.const(16, "int64"))
        else:  # the highest nibble is the word's sign
            nibble = b.Sub(b.Mod(b.Add(nibble, b.const(8, "int64")), b.const(16, "int64")), 8)
        part = b.Mul(nibble, b.const(16**i, "int64"))
        words = part if words is None else b.Add(words, part)
    return b.Cast(words, to="int32")


def body_pack_bytes(b, values):
    """Build pack_bytes, of int64 values."""
    low, high = (
        b.Mod(b.Slice(values, [i], [2**62], [-1], [2]), b.const(16, "int64")) for i in range(2)
    )
    return b.Cast(b.Add(low, b.Mul(high, b.const(16, "int64"))), to="uint8")


def body_unpack(b, words):
    """Build unpack, to int64 values."""
    unsigned = b.Mod(b.Cast(words, to="int64"), b.const(2**32, "int64"))
    shifted = b.Div(b.Unsqueeze(unsigned, [-1]), b.const([16**i for i in range(_WORD)], "int64"))
    nibbles = b.Sub(b.Mod(b.Add(shifted, b.const(8, "int64")), b.const(16, "int64")), 8)
    shape = b.Shape(words)
    lead, last = b.Slice(shape, [0], [-1]), b.Slice(shape, [-1], [2**62])
    return b.Reshape(nibbles, b.Concat(lead, b.Mul(last, [_WORD]), axis=0), allowzero=1)


def type_named(code, codes, default):
    """Return the name of the type of a node's code."""
    names = {known: name for name, known in codes.items()} | {None: default}
    if code not in names:
        raise NotPortable
    return names[code]
