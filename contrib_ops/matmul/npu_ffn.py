"""Feed-forward networks of two matmuls with an activation between them, one for every expert.

Source: torch_npu.npu_ffn.
"""

import math

from onnxruntime_npu.opdef import FLOATS, TypeCodes, TypedBy, check, npu_op, torch

from ..quant._integers import BFLOAT16, FLOAT16, body_saturated, saturated, type_named
from ._activations import activated, body_activated
from ._ffn_calls import refusals, samples_of
from ._quantized import (
    body_dequantized,
    body_scales,
    dequantized,
    dtype_name,
    refuse_other,
    scales,
)

OP = "npu_ffn"
_RESULTS = {"float16": FLOAT16, "bfloat16": BFLOAT16}
# What is applied, and whether it is to the first half of the columns, which then gates the second.
_ACTIVATIONS = {
    "fastgelu": ("fast_gelu", False),
    "gelu": ("gelu", False),
    "relu": ("relu", False),
    "silu": ("silu", False),
    "geglu": ("gelu", True),
    "swiglu": ("silu", True),
    "reglu": ("relu", True),
}
_MOST_EXPERTS = 256
_SCALES = ["float32", "bfloat16", "int64", "uint64"]
# The tensors beside x and weights, in the order of the node, and those that a scheme takes; "!"
# marks what it needs.
_GIVEN = (
    "bias1", "bias2", "scale", "offset", "deq_scale1", "deq_scale2", "antiquant_scale1",
    "antiquant_scale2", "antiquant_offset1", "antiquant_offset2",
)  # fmt: skip
_TENSORS_OF = {
    "float": ("bias1", "bias2"),
    "weight_only": (
        "bias1", "bias2", "antiquant_scale1!", "antiquant_scale2!", "antiquant_offset1",
        "antiquant_offset2",
    ),
    "int8": ("bias1", "bias2", "scale!", "offset", "deq_scale1!", "deq_scale2!"),
}  # fmt: skip
_TITLES = {
    "float": "x and weights of floats",
    "weight_only": "x of floats and weights of int8",
    "int8": "x and weights of int8",
}

op = npu_op(
    f"{OP}(Tensor x, Tensor weight1, Tensor weight2, str activation, *, int[]? expert_tokens=None,"
    " int[]? expert_tokens_index=None, Tensor? bias1=None, Tensor? bias2=None, Tensor? scale=None,"
    " Tensor? offset=None, Tensor? deq_scale1=None, Tensor? deq_scale2=None,"
    " Tensor? antiquant_scale1=None, Tensor? antiquant_scale2=None,"
    " Tensor? antiquant_offset1=None, Tensor? antiquant_offset2=None, int? inner_precise=None,"
    " ScalarType? output_dtype=None) -> Tensor",
    onnx="NPUFFN",
    dtypes={
        **dict.fromkeys(("x", "weight1", "weight2"), (*FLOATS, "int8")),
        **dict.fromkeys(("bias1", "bias2"), (*FLOATS, "int32")),
        **dict.fromkeys(("scale", "offset"), ("float32",)),
        **dict.fromkeys(("deq_scale1", "deq_scale2"), _SCALES),
        **dict.fromkeys(("antiquant_scale1", "antiquant_scale2"), FLOATS),
        **dict.fromkeys(("antiquant_offset1", "antiquant_offset2"), FLOATS),
        "y": FLOATS,
    },
    typings=[
        *({"x": dtype, "y": dtype} for dtype in FLOATS),
        {"x": "int8", "y": "float16"},
    ],
    type_codes={"output_dtype": TypeCodes(_RESULTS)},
    typed_by={"y": TypedBy("output_dtype", {name: name for name in _RESULTS})},
)


def _check(condition, message):
    check(condition, f"[{OP}] {message}")


def _activation(activation):
    """Return which activation a name stands for, and whether it gates."""
    known = activation.lower()
    names = ", ".join(_ACTIVATIONS)
    _check(known in _ACTIVATIONS, f"expected activation to be one of {names}, got {activation!r}")
    return _ACTIVATIONS[known]


def _lengths(tokens, ends):
    """Return the number of rows of every expert, of either argument; none without experts."""
    if not ends:
        return list(tokens or [])
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _counts(tokens, ends, weight_rank, rows, experts):
    """Return the number of rows of every expert, or None without experts."""
    _check(
        not tokens or not ends, "expected expert_tokens or expert_tokens_index, got both of them"
    )
    given = list(tokens or ends or [])
    wanted = 3 if given else 2
    _check(
        weight_rank == wanted,
        f"expected weights of rank {wanted} {'with' if given else 'without'} expert_tokens, "
        f"got rank {weight_rank}",
    )
    if not given:
        return None
    _check(
        len(given) <= _MOST_EXPERTS and experts == len(given),
        f"expected at most {_MOST_EXPERTS} experts and weights of each, got {len(given)} numbers "
        f"and weights of {experts}",
    )
    counts = _lengths(tokens, ends)
    _check(
        all(count >= 0 for count in counts) and sum(counts) == rows,
        f"expected the experts to share {rows} rows of x, got {given}",
    )
    return counts


def _scheme_of(x, weight1, weight2):
    """Return how operands of these dtypes are multiplied."""
    if x in FLOATS and weight1 == weight2 == x:
        return "float"
    if x in FLOATS and weight1 == weight2 == "int8":
        return "weight_only"
    _check(
        x == weight1 == weight2 == "int8",
        "expected x and weights of one dtype, or x of floats and weights of int8, "
        f"got {x}, {weight1} and {weight2}",
    )
    return "int8"


def _check_dtypes(scheme, x, given, output_dtype):
    own = dtype_name(x)
    for name, tensor in given.items():
        if tensor is None:
            continue
        if name.startswith("bias"):
            _check(
                (tensor.dtype == torch.int32) == (scheme == "int8"),
                f"expected {name} of {'int32' if scheme == 'int8' else 'floats'} with "
                f"{_TITLES[scheme]}, got {dtype_name(tensor)}",
            )
        if name.startswith("antiquant"):
            _check(
                tensor.dtype == x.dtype,
                f"expected {name} of x's dtype {own}, got {dtype_name(tensor)}",
            )
    _check(
        scheme == "int8" or output_dtype in (None, own),
        f"expected output_dtype of x's dtype {own}, got {output_dtype}",
    )


def _check_shape(name, values, experts, columns):
    """Refuse values that are not for each of these columns; 1 means one for all of them."""
    if values is None:
        return
    shape = list(values.shape)
    if experts is None:
        shapes = [[n] for n in columns]
    else:
        shapes = [[experts, n] for n in columns] + ([[experts]] if 1 in columns else [])
    _check(
        shape in shapes, f"expected {name} of shape {' or '.join(map(str, shapes))}, got {shape}"
    )


def _check_shapes(given, experts, n1, n2):
    for layer, n in (("1", n1), ("2", n2)):
        for name in ("bias", "deq_scale", "antiquant_scale", "antiquant_offset"):
            _check_shape(name + layer, given[name + layer], experts, [n])
    _check_shape("scale", given["scale"], experts, [1, n1])
    _check_shape("offset", given["offset"], experts, [1])


def _matrix(weight, given, layer):
    """Return a weight as the matrix of x's dtype that it stands for, in float32."""
    scale, offset = given[f"antiquant_scale{layer}"], given[f"antiquant_offset{layer}"]
    if scale is not None:
        weight = dequantized(weight, scale, offset, scale.dtype)
    return weight.float()


def _of_floats(x, weight1, weight2, given, activation):
    name, gates = activation
    hidden = torch.matmul(x.float(), _matrix(weight1, given, 1))
    if given["bias1"] is not None:
        hidden = hidden + given["bias1"].float()
    if gates:
        gate, value = hidden.chunk(2, -1)
        hidden = activated(gate, name) * value
    else:
        hidden = activated(hidden, name)
    y = torch.matmul(hidden.to(x.dtype).float(), _matrix(weight2, given, 2))
    if given["bias2"] is not None:
        y = y + given["bias2"].float()
    return y.to(x.dtype)


def _of_integers(x, weight1, weight2, given, name, dtype):
    def sums(left, right, bias):
        product = torch.matmul(left.to(torch.int32), right.to(torch.int32))
        return product if bias is None else product + bias

    def step(values):
        return values.half().float() if dtype == "float16" else values

    hidden = step(sums(x, weight1, given["bias1"]).float() * scales(given["deq_scale1"]))
    hidden = step(step(activated(hidden, name)) * step(given["scale"]))
    if given["offset"] is not None:
        hidden = step(hidden + step(given["offset"]))
    y = sums(saturated(hidden, "int8"), weight2, given["bias2"]).float()
    return (y * scales(given["deq_scale2"])).to(getattr(torch, dtype))


@op.reference
def reference(
    x,
    weight1,
    weight2,
    activation,
    expert_tokens=None,
    expert_tokens_index=None,
    inner_precise=None,
    output_dtype=None,
    **given,
):
    """y = activation(x @ weight1 + bias1) @ weight2 + bias2.

    x: [.., K1], its leading axes are M rows; weight1: [K1, N1]; weight2: [K2, N2]; bias1, bias2:
    [N1], [N2]; y: [.., N2]. activation, in any case: fastgelu (x sigmoid(1.702 x)), gelu (erf),
    relu, silu, with K2 = N1; or geglu, swiglu, reglu, with N1 = 2 K2: the gelu, silu or relu of the
    first half of the columns times the second half.

    expert_tokens has the number of rows of each of up to 256 experts, expert_tokens_index where
    they end; together they have all rows of x. Every parameter then has a first axis of the
    experts: weight1 [E, K1, N1], bias1 [E, N1] and so on.

    x and weights of one type of floats: a layer is computed in float32, and the activations are
    rounded to that type between them. x of floats, weights of int8: the weights become
    (weight + antiquant_offset) * antiquant_scale of x's type, [N1] and [N2]; in float16 the sum is
    rounded, too. x and weights of int8, with biases of int32: h = activation((x @ weight1 + bias1)
    * deq_scale1) * scale + offset is rounded half to even and saturated to int8, and
    y = (h @ weight2 + bias2) * deq_scale2. scale is [1] or [N1], offset [1], and deq_scale1 and
    deq_scale2 are [N1] and [N2], float32, bfloat16, or 64 bits as npu_trans_quant_param packs them.
    output_dtype is float16 by default, and then every step to h is rounded to float16, as the
    device does; with bfloat16 these steps stay float32. Integers take no gated activation.

    inner_precise 0 and 1 are computed alike.
    """
    name, gates = _activation(activation)
    _check(inner_precise in (None, 0, 1), f"expected inner_precise 0 or 1, got {inner_precise}")
    _check(
        x.dim() >= 2 and weight1.dim() in (2, 3) and weight1.dim() == weight2.dim(),
        "expected x of rank 2 or more and weights of rank 2, or 3 with experts, "
        f"got {list(x.shape)}, {list(weight1.shape)} and {list(weight2.shape)}",
    )
    scheme = _scheme_of(*(dtype_name(t) for t in (x, weight1, weight2)))
    refuse_other(OP, _TITLES[scheme], given, _TENSORS_OF[scheme])
    _check_dtypes(scheme, x, given, output_dtype)
    _check(
        scheme != "int8" or not gates,
        f"expected fastgelu, gelu, relu or silu with {_TITLES['int8']}, got {activation!r}",
    )
    (k1, n1), (k2, n2) = weight1.shape[-2:], weight2.shape[-2:]
    _check(
        k1 == x.shape[-1], f"expected weight1 [.., {x.shape[-1]}, N1], got {list(weight1.shape)}"
    )
    _check(
        n1 == (2 * k2 if gates else k2),
        f"expected weight1 with {2 * k2 if gates else k2} columns for weight2 "
        f"{list(weight2.shape)} and {activation!r}, got {list(weight1.shape)}",
    )
    m = math.prod(x.shape[:-1])
    rows = x.reshape(m, k1)
    experts = weight1.shape[0] if weight1.dim() == 3 else None
    counts = _counts(expert_tokens, expert_tokens_index, weight1.dim(), m, experts)
    _check(
        experts is None or weight2.shape[0] == experts,
        f"expected weight2 of {experts} experts, got {list(weight2.shape)}",
    )
    _check_shapes(given, experts, n1, n2)

    def layers(part, first, second, tensors):
        if scheme == "int8":
            return _of_integers(part, first, second, tensors, name, output_dtype or "float16")
        return _of_floats(part, first, second, tensors, (name, gates))

    if counts is None:
        y = layers(rows, weight1, weight2, given)
    else:
        y = torch.cat(
            [
                layers(
                    part,
                    weight1[e],
                    weight2[e],
                    {n: None if t is None else t[e] for n, t in given.items()},
                )
                for e, part in enumerate(rows.split(counts))
            ]
        )
    return y.reshape([*x.shape[:-1], n2])


def _body_matrix(b, weight, given, layer, dtype):
    """Build _matrix."""
    names = (f"antiquant_scale{layer}", f"antiquant_offset{layer}")
    if given[names[0]] is not None:
        scale, offset = (
            None if given[name] is None else b.Cast(given[name], to="float32") for name in names
        )
        weight = body_dequantized(b, weight, scale, offset, dtype)
    return b.Cast(weight, to="float32")


def _body_of_floats(b, x, weight1, weight2, given, activation, dtype):
    """Build _of_floats."""
    name, gates = activation
    hidden = b.MatMul(b.Cast(x, to="float32"), _body_matrix(b, weight1, given, 1, dtype))
    if given["bias1"] is not None:
        hidden = b.Add(hidden, b.Cast(given["bias1"], to="float32"))
    if gates:
        half = b.Div(b.Slice(b.Shape(hidden), [-1], [2**62]), 2)
        gate = body_activated(b, b.Slice(hidden, [0], half, [-1]), name)
        hidden = b.Mul(gate, b.Slice(hidden, half, [2**62], [-1]))
    else:
        hidden = body_activated(b, hidden, name)
    hidden = b.Cast(b.Cast(hidden, to=dtype), to="float32")
    y = b.MatMul(hidden, _body_matrix(b, weight2, given, 2, dtype))
    if given["bias2"] is not None:
        y = b.Add(y, b.Cast(given["bias2"], to="float32"))
    return b.Cast(y, to=dtype)


def _body_of_integers(b, call, x, weight1, weight2, given, name, dtype):
    """Build _of_integers."""

    def sums(left, right, bias):
        product = b.MatMul(b.Cast(left, to="int32"), b.Cast(right, to="int32"))
        whole = product if bias is None else b.Add(product, bias)
        return b.Cast(whole, to="float32")

    def step(values):
        return b.Cast(b.Cast(values, to="float16"), to="float32") if dtype == "float16" else values

    first, second = (body_scales(b, call, n, given[n]) for n in ("deq_scale1", "deq_scale2"))
    hidden = step(b.Mul(sums(x, weight1, given["bias1"]), first))
    hidden = step(b.Mul(step(body_activated(b, hidden, name)), step(given["scale"])))
    if given["offset"] is not None:
        hidden = step(b.Add(hidden, step(given["offset"])))
    y = sums(body_saturated(b, hidden, "int8"), weight2, given["bias2"])
    return b.Cast(b.Mul(y, second), to=dtype)


@op.function
def body(b, call, x, weight1, weight2, *given):
    name, gates = _activation(call.attrs["activation"])
    integers = call.dtype("x") == "int8"
    named = type_named(call.attrs["output_dtype"], _RESULTS, "float16")
    dtype = named if integers else call.dtype("x")
    tensors = dict(zip(_GIVEN, given, strict=True))

    def layers(part, first, second, given):
        if integers:
            return _body_of_integers(b, call, part, first, second, given, name, dtype)
        return _body_of_floats(b, part, first, second, given, (name, gates), dtype)

    counts = _lengths(call.attrs["expert_tokens"], call.attrs["expert_tokens_index"])
    if not counts:
        return layers(x, weight1, weight2, tensors)
    shape = b.Shape(x)
    lead, k = b.Slice(shape, [0], [-1]), b.Slice(shape, [-1], [2**62])
    m = b.ReduceProd(lead, [0], keepdims=1)
    rows = b.Reshape(x, b.Concat(m, k, axis=0), allowzero=1)
    parts, begin = [], 0
    for expert, count in enumerate(counts):
        number = b.const(expert, "int64")
        part = b.Slice(rows, [begin], [begin + count], [0])
        given = {n: None if t is None else b.Gather(t, number, axis=0) for n, t in tensors.items()}
        first, second = (b.Gather(w, number, axis=0) for w in (weight1, weight2))
        parts.append(layers(part, first, second, given))
        begin += count
    y = b.Concat(*parts, axis=0)
    return b.Reshape(y, b.Concat(lead, b.Slice(b.Shape(y), [-1], [2**62]), axis=0), allowzero=1)


@op.samples
def samples(make):
    yield from samples_of(make)


for _dtype in FLOATS:
    _error = {"float32": 5e-5, "float16": 4e-3, "bfloat16": 3e-2}[_dtype]
    op.tolerance(
        _dtype,
        rtol=_error,
        atol=_error,
        reason="products are summed in another order, before and after a rounding in between",
    )
op.tolerance(
    "int8",
    rtol=4e-3,
    atol=4e-3,
    reason="an activation approximated may fall on the other side of a half",
)

refusals(op)
