"""Batched matmul that permutes its operands and its result.

Source: torch_npu.npu_transpose_batchmatmul.
"""

from onnxruntime_npu.opdef import ABSENT, FLOATS, Sample, check, npu_op, torch

from ..quant._integers import body_saturated, saturated
from ..quant._packed_scale import pack_scale
from ._quantized import body_scales, scales

_OP = "npu_transpose_batchmatmul"
_TYPES = "float16, float32 and bfloat16"
_PERMUTATIONS = {
    "perm_x1": [[0, 1, 2], [1, 0, 2]],
    "perm_x2": [[0, 1, 2], [0, 2, 1]],
    "perm_y": [[1, 0, 2]],
}

op = npu_op(
    "npu_transpose_batchmatmul(Tensor input, Tensor weight, *, Tensor? bias=None,"
    " Tensor? scale=None, int[]? perm_x1=None, int[]? perm_x2=None, int[]? perm_y=None,"
    " int? batch_split_factor=1) -> Tensor",
    onnx="NPUTransposeBatchMatMul",
    dtypes={
        "input": FLOATS,
        "weight": FLOATS,
        "bias": FLOATS,
        "scale": ["int64", "uint64"],
        "y": [*FLOATS, "int8"],
    },
    dtype_notes={name: f"{name}'s type supported for {_TYPES}" for name in ("input", "weight")},
    typings=[
        *({"input": dtype, "scale": ABSENT, "y": dtype} for dtype in FLOATS),
        {"scale": "int64", "y": "int8"},
        {"scale": "uint64", "y": "int8"},
    ],
)


def _check(condition, message):
    check(condition, f"[{_OP}] {message}")


def _permutation(name, given):
    """Return an argument, the first of the allowed ones by default."""
    allowed = _PERMUTATIONS[name]
    _check(
        given is None or list(given) in allowed,
        f"expected another order of axes: {name} should be {' or '.join(map(str, allowed))}, "
        f"got {None if given is None else list(given)}",
    )
    return allowed[0] if given is None else list(given)


@op.reference
def reference(
    input,
    weight,
    bias=None,
    scale=None,
    perm_x1=None,
    perm_x2=None,
    perm_y=None,
    batch_split_factor=1,
):
    """y [M, B, N] = (input [B, M, K] @ weight [B, K, N]), permuted, summed in float32.

    input: with perm_x1 [1, 0, 2] of shape [M, B, K]; weight: of input's dtype, with perm_x2
    [0, 2, 1] of shape [B, N, K]; perm_y: [1, 0, 2]; bias: None. batch_split_factor s divides
    B * N: the columns of y [M, B * N] become s blocks, y [s, M, B * N / s].

    y has input's dtype, rounded once. With scale [B * N], int64 or uint64 as npu_trans_quant_param
    packs it, y is int8 [M, 1, B * N]: the sums in float32 times scale, rounded half to even and
    saturated. Upstream does not say how it rounds; its published check cuts the fraction off.
    """
    first = _permutation("perm_x1", perm_x1)
    second = _permutation("perm_x2", perm_x2)
    _permutation("perm_y", perm_y)
    _check(bias is None, "expected no bias, got one")
    _check(
        input.dim() == 3 and weight.dim() == 3,
        f"expected input and weight of three axes, got {list(input.shape)} and "
        f"{list(weight.shape)}",
    )
    _check(
        input.dtype == weight.dtype,
        f"expected a weight of input's dtype {input.dtype}, got {weight.dtype}",
    )
    a, b = input.permute(first), weight.permute(second)
    _check(
        a.shape[0] == b.shape[0] and a.shape[2] == b.shape[1],
        f"expected input [B, M, K] and weight [B, K, N] once permuted, got {list(a.shape)} and "
        f"{list(b.shape)}",
    )
    batch, m, n = a.shape[0], a.shape[1], b.shape[2]
    factor = 1 if batch_split_factor is None else batch_split_factor
    _check(
        factor >= 1 and (batch * n) % factor == 0,
        f"expected batch_split_factor to divide the {batch * n} columns of all matrices, "
        f"got {factor}",
    )
    compute = torch.promote_types(input.dtype, torch.float32)
    y = torch.matmul(a.to(compute), b.to(compute)).permute(1, 0, 2).contiguous()
    if scale is not None:
        _check(factor == 1, f"expected batch_split_factor 1 with scale, got {factor}")
        _check(
            list(scale.shape) == [batch * n],
            f"expected scale of shape [{batch * n}], got {list(scale.shape)}",
        )
        return saturated(y.reshape(m, 1, batch * n) * scales(scale), "int8")
    if factor != 1:
        # Not by a reshape, for which torch tells cases apart by the sizes.
        columns, width = y.flatten(1), batch * n // factor
        y = torch.stack([columns.narrow(1, i * width, width) for i in range(factor)])
    return y.to(input.dtype)


@op.function
def body(b, call, input, weight, bias, scale):
    dtype, factor = call.dtype("input"), call.attrs["batch_split_factor"] or 1

    def operand(x, name):
        permutation = call.attrs[name] or _PERMUTATIONS[name][0]
        return b.Transpose(b.Cast(x, to="float32"), perm=permutation)

    products = b.MatMul(operand(input, "perm_x1"), operand(weight, "perm_x2"))
    y = b.Transpose(products, perm=[1, 0, 2])
    if scale is None and factor == 1:
        return b.Cast(y, to=dtype)
    shape = b.Shape(y)
    m = b.Slice(shape, [0], [1])
    width = b.ReduceProd(b.Slice(shape, [1], [3]), [0], keepdims=1)
    width = b.Div(width, b.const([factor], "int64"))
    y = b.Reshape(y, b.Concat(m, b.const([factor], "int64"), width, axis=0), allowzero=1)
    if scale is None:
        return b.Cast(b.Transpose(y, perm=[1, 0, 2]), to=dtype)
    return body_saturated(b, b.Mul(y, body_scales(b, call, "scale", scale)), "int8")


@op.samples
def samples(make):
    def weight(*shape):
        # Keeps the sums near 1 for every K.
        return make(*shape, scale=shape[-2] ** -0.5 if shape[-2] else 1.0)

    def scale(n):
        return pack_scale(make.uniform(n, low=5.0, high=20.0, dtype="float32"))

    yield Sample(
        make.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]),
        make.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, -1.0]]]),
        perm_x1=[0, 1, 2],
        perm_x2=[0, 1, 2],
        perm_y=[1, 0, 2],
        id="catalogue",
        expect=[[[[1.0, 2.0], [7.0, -1.0]]]],
    )
    yield Sample(make(16, 1, 128), weight(16, 128, 64), id="decode")
    yield Sample(make(5, 3, 33), weight(3, 33, 17), perm_x1=[1, 0, 2], id="rows_first")
    yield Sample(
        make(3, 5, 40),
        weight(3, 40, 35).transpose(1, 2).contiguous(),
        perm_x2=[0, 2, 1],
        batch_split_factor=None,
        id="transposed_weight",
    )
    yield Sample(make(4, 70, 65), weight(4, 65, 36), batch_split_factor=2, id="split")
    yield Sample(
        make(70, 3, 65), weight(3, 65, 40), perm_x1=[1, 0, 2], batch_split_factor=4,
        id="split_within_matrices",
    )  # fmt: skip
    yield Sample(make(3, 6, 8), weight(3, 8, 4), batch_split_factor=12, id="split_into_columns")
    yield Sample(make(2, 7, 64), weight(2, 64, 33), scale=scale(66), id="quantised")
    yield Sample(
        make(7, 2, 64), weight(2, 64, 48), scale=scale(96).to(torch.uint64), perm_x1=[1, 0, 2],
        id="quantised_uint64",
    )  # fmt: skip
    yield Sample(make(2, 0, 8), weight(2, 8, 4), id="no_rows")
    yield Sample(make(0, 3, 8), weight(0, 8, 4), id="no_batch")
    yield Sample(make(2, 3, 0), weight(2, 0, 4), id="no_depth")
    yield Sample(make(6, 64, 4).transpose(0, 2), weight(4, 6, 5), id="not_contiguous")


op.tolerance(
    "int8", rtol=0, atol=1, reason="a sum in another order may fall on the other side of a half"
)


def _refuse(id, match, *shapes, **options):
    def make_sample(make):
        given = {n: v(make) if callable(v) else v for n, v in options.items()}
        tensors = [make(*shape, dtype=dtype) for dtype, *shape in shapes]
        return Sample(*tensors, **given)

    op.errors(make_sample, match=rf"\[npu_transpose_batchmatmul\] {match}", id=id)


_INPUT, _WEIGHT = ("float32", 2, 3, 8), ("float32", 2, 8, 4)
for _name, _given in (("perm_x1", [2, 1, 0]), ("perm_x2", [1, 1, 2]), ("perm_y", [0, 1, 2])):
    _refuse(
        _name,
        rf"expected another order of axes: {_name} should be \[.*, got \[{str(_given)[1:-1]}\]",
        _INPUT, _WEIGHT, **{_name: _given},
    )  # fmt: skip
_refuse("bias", "expected no bias, got one", _INPUT, _WEIGHT, bias=lambda make: make(4))
_refuse(
    "rank",
    r"expected input and weight of three axes, got \[3, 8\] and \[2, 8, 4\]",
    ("float32", 3, 8), _WEIGHT,
)  # fmt: skip
_refuse(
    "depth",
    r"expected input \[B, M, K\] and weight \[B, K, N\] once permuted, got \[2, 3, 8\] and "
    r"\[2, 7, 4\]",
    _INPUT, ("float32", 2, 7, 4),
)  # fmt: skip
_refuse(
    "weight_dtype",
    "expected a weight of input's dtype .*float32, got .*float16",
    _INPUT, ("float16", 2, 8, 4),
)  # fmt: skip
for _name, _tensors in (
    ("input", (("int8", 2, 3, 8), _WEIGHT)),
    ("weight", (_INPUT, ("int8", 2, 8, 4))),
):
    _refuse(
        f"{_name}_type",
        rf"expected {_name} of dtype float32, float16, bfloat16, got int8: "
        rf"{_name}'s type supported for {_TYPES}",
        *_tensors,
    )
_refuse(
    "split",
    "expected batch_split_factor to divide the 8 columns of all matrices, got 3",
    _INPUT, _WEIGHT, batch_split_factor=3,
)  # fmt: skip
_refuse(
    "split_and_scale",
    "expected batch_split_factor 1 with scale, got 2",
    _INPUT, _WEIGHT, batch_split_factor=2, scale=lambda make: make(8, dtype="int64"),
)  # fmt: skip
_refuse(
    "scale_shape",
    r"expected scale of shape \[8\], got \[4\]",
    _INPUT, _WEIGHT, scale=lambda make: make(4, dtype="int64"),
)  # fmt: skip
