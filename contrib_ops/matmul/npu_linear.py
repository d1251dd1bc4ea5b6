"""Fully connected layer: input times the transposed weight, plus a bias.

Source: torch_npu.npu_linear.
"""

import math

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

op = npu_op(
    "npu_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    onnx="NPULinear",
    dtypes={
        "input": [*FLOATS, "int32", "int8"],
        "weight": [*FLOATS, "int32", "int8"],
        "bias": [*FLOATS, "int32"],
        "y": [*FLOATS, "int32", "int8"],
    },
)


@op.reference
def reference(input, weight, bias=None):
    """y = input @ weight.T + bias, summed in float32 (integers: int32, which wraps), rounded once.

    input: [.., K]; weight: [N, K] of input's dtype; bias: [N] of input's dtype, float32 for
    a 16-bit float input, int32 for an int8 input; y: [.., N] of input's dtype.
    """
    check(
        input.dim() >= 1 and weight.dim() == 2 and input.shape[-1] == weight.shape[1],
        f"[npu_linear] expected input [.., K] and weight [N, K], got {list(input.shape)} and "
        f"{list(weight.shape)}",
    )
    check(
        input.dtype == weight.dtype,
        f"[npu_linear] expected a weight of input's dtype {input.dtype}, got {weight.dtype}",
    )
    floating = input.dtype.is_floating_point
    compute = torch.promote_types(input.dtype, torch.float32 if floating else torch.int32)
    y = torch.matmul(input.to(compute), weight.to(compute).t())
    if bias is not None:
        check(
            list(bias.shape) == [weight.shape[0]],
            f"[npu_linear] expected a bias of shape [{weight.shape[0]}], got {list(bias.shape)}",
        )
        allowed = (compute, input.dtype) if floating else (torch.int32,)
        names = " or ".join(str(dtype) for dtype in dict.fromkeys(allowed))
        check(
            bias.dtype in allowed,
            f"[npu_linear] expected a bias of dtype {names}, got {bias.dtype}",
        )
        y = y + bias.to(compute)
    return y.to(input.dtype)


@op.function
def body(b, call, input, weight, bias):
    dtype = call.dtype("input")
    if dtype == "float32" and call.rank("input") == 2:
        return b.Gemm(input, weight, bias, transB=1)
    # The CPU provider has no bfloat16 or int8 MatMul; sums are float32 or int32 anyway.
    compute = "float32" if dtype in FLOATS else "int32"

    def upcast(x, name):
        return x if call.dtype(name) == compute else b.Cast(x, to=compute)

    y = b.MatMul(upcast(input, "input"), b.Transpose(upcast(weight, "weight"), perm=[1, 0]))
    if bias is not None:
        y = b.Add(y, upcast(bias, "bias"))
    return y if dtype == compute else b.Cast(y, to=dtype)


@op.backward("input", "weight", "bias")
def backward(grad_y, input, weight, needs):
    """dinput = dy @ weight, dweight = dy.T @ input, dbias = sum(dy) over rows."""
    count = math.prod(grad_y.shape[:-1])
    rows = grad_y.reshape(count, grad_y.shape[-1])
    dinput = grad_y @ weight if "input" in needs else None
    dweight = rows.t() @ input.reshape(count, input.shape[-1]) if "weight" in needs else None
    compute = torch.promote_types(grad_y.dtype, torch.float32)
    dbias = rows.sum(0, dtype=compute) if "bias" in needs else None
    return dinput, dweight, dbias


@op.partner("npu_linear_backward(Tensor grad, Tensor input, Tensor weight) -> (Tensor, Tensor)")
def npu_linear_backward(grad, input, weight):
    """Return the gradients of npu_linear's input and weight."""
    shape = [*input.shape[:-1], weight.shape[0]]
    check(
        input.dim() >= 1 and weight.dim() == 2 and input.shape[-1] == weight.shape[1],
        "[npu_linear_backward] expected input [.., K] and weight [N, K], "
        f"got {list(input.shape)} and {list(weight.shape)}",
    )
    check(
        list(grad.shape) == shape,
        f"[npu_linear_backward] expected grad of shape {shape}, got {list(grad.shape)}",
    )
    return backward(grad, input, weight, ("input", "weight"))[:2]


@op.samples
def samples(make):
    integer = make.dtype in ("int8", "int32")
    wide = "int32" if integer else make.dtype

    def weight(n, k):
        # Keeps the sums of floats near 1 for every K.
        return make(n, k) if integer else make(n, k, scale=k**-0.5)

    yield Sample(
        make.tensor([[1.0, 2.0]]),
        make.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]]),
        make.tensor([0.0, 1.0, 0.0], dtype=wide),
        id="catalogue",
        expect=[[[1.0, 4.0, 6.0]]],
    )
    yield Sample(make(1, 576), weight(192, 576), id="decode")
    yield Sample(make(2, 1536), weight(70, 1536), make(70, dtype=wide), id="two_rows")
    yield Sample(make(37, 65), weight(33, 65), make(33, dtype=wide), id="odd_tails")
    yield Sample(make(2, 3, 5, 8), weight(4, 8), make(4, dtype=wide), id="leading_axes")
    yield Sample(make(8), weight(4, 8), id="vector")
    yield Sample(make(130, 200), weight(257, 200), id="several_threads")
    yield Sample(make(0, 8), weight(4, 8), make(4, dtype=wide), id="no_rows")
    yield Sample(make(3, 8), make(0, 8), id="no_columns")
    yield Sample(make(64, 6).t(), weight(5, 64), id="not_contiguous")
    if make.dtype in ("float16", "bfloat16"):
        yield Sample(make(4, 16), weight(8, 16), make(8, dtype="float32"), id="float32_bias")


op.errors(
    lambda make: Sample(make(2, 8), make(4, 7)),
    match=r"\[npu_linear\] expected input .* and weight \[N, K\], got \[2, 8\] and \[4, 7\]",
    id="depth",
)
op.errors(
    lambda make: Sample(make(2, 8), make(8)),
    match=r"\[npu_linear\] expected input .* and weight \[N, K\], got \[2, 8\] and \[8\]",
    id="weight_rank",
)
op.errors(
    lambda make: Sample(make(2, 8), make(4, 8), make(5)),
    match=r"\[npu_linear\] expected a bias of shape \[4\], got \[5\]",
    id="bias_shape",
)
op.errors(
    lambda make: Sample(make(2, 8, dtype="float32"), make(4, 8, dtype="float16")),
    match=r"\[npu_linear\] expected a weight of input's dtype .*float32, got .*float16",
    id="weight_dtype",
)
op.errors(
    lambda make: Sample(
        make(2, 8, dtype="float32"), make(4, 8, dtype="float32"), make(4, dtype="float16")
    ),
    match=r"\[npu_linear\] expected a bias of dtype .*float32, got .*float16",
    id="bias_dtype",
)
