"""Matmul with a view of the result, which torch_npu has deprecated.

Source: torch_npu.npu_bmmV2.
"""

import math

from onnxruntime_npu.opdef import FLOATS, Sample, check, npu_op, torch

from ._batches import batch_of_result, check_batches

op = npu_op(
    "npu_bmmV2(Tensor input, Tensor mat2, int[] output_sizes) -> Tensor",
    onnx="NPUBmmV2",
    dtypes={name: [*FLOATS, "int32"] for name in ("input", "mat2", "y")},
)


def _check_operands(name, input, mat2):
    check(
        input.dtype == mat2.dtype,
        f"[{name}] expected mat2 of input's dtype {input.dtype}, got {mat2.dtype}",
    )
    a, b = list(input.shape), list(mat2.shape)
    check(len(a) >= 1 and len(b) >= 1, f"[{name}] expected operands of rank >= 1, got {a} and {b}")
    check(
        a[-1] == (b[-2] if len(b) > 1 else b[0]),
        f"[{name}] expected as many columns of the first operand as rows of the second, "
        f"got {a} and {b}",
    )
    check_batches(name, a[:-2], b[:-2])


@op.reference
def reference(input, mat2, output_sizes):
    """y = torch.matmul(input, mat2), summed in float32 or in int32, which wraps.

    input: [.., M, K] or [K]; mat2: of input's dtype, [.., K, N] or [K]; batch axes broadcast;
    y: of input's dtype, [.., M, N] as torch.matmul has it, or of output_sizes unless that is empty.
    """
    _check_operands("npu_bmmV2", input, mat2)
    integers = input.dtype == torch.int32
    compute = torch.int32 if integers else torch.promote_types(input.dtype, torch.float32)
    y = torch.matmul(input.to(compute), mat2.to(compute)).to(input.dtype)
    if not output_sizes:
        return y
    check(
        min(output_sizes) >= 0 and math.prod(output_sizes) == y.numel(),
        f"[npu_bmmV2] expected output_sizes of the {list(y.shape)} elements of the product, "
        f"got {list(output_sizes)}",
    )
    return y.reshape(output_sizes)


@op.function
def body(b, call, input, mat2):
    dtype, sizes = call.dtype("input"), call.attrs["output_sizes"]
    compute = "int32" if dtype == "int32" else "float32"
    y = b.MatMul(b.Cast(input, to=compute), b.Cast(mat2, to=compute))
    y = b.Cast(y, to=dtype)
    return b.Reshape(y, b.const(sizes, "int64"), allowzero=1) if sizes else y


@op.backward("input", "mat2")
def backward(grad_y, input, mat2, needs):
    """dinput = dy @ mat2.T, dmat2 = input.T @ dy, summed over axes that were broadcast."""
    a = input.unsqueeze(0) if input.dim() == 1 else input
    b = mat2.unsqueeze(1) if mat2.dim() == 1 else mat2
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    dy = grad_y.reshape(*batch, a.shape[-2], b.shape[-1])
    da = (dy @ b.mT).sum_to_size(a.shape).reshape(input.shape) if "input" in needs else None
    db = (a.mT @ dy).sum_to_size(b.shape).reshape(mat2.shape) if "mat2" in needs else None
    return da, db


def _partner(which, argument, position):
    name = f"npu_bmm_v2_{which}_backward"

    @op.partner(f"{name}(Tensor grad, Tensor mat1, Tensor mat2, SymInt[] size) -> Tensor")
    def gradient(grad, mat1, mat2, size):
        """Return the gradient of one of npu_bmmV2's matrices, whose shape is size."""
        own = (mat1, mat2)[position]
        check(
            list(size) == list(own.shape),
            f"[{name}] expected size of {which}, {list(own.shape)}, got {list(size)}",
        )
        _check_operands(name, mat1, mat2)
        batch = batch_of_result(list(mat1.shape[:-2]), list(mat2.shape[:-2]))
        count = math.prod([*batch, *mat1.shape[-2:-1], *mat2.shape[1:][-1:]])
        check(
            grad.numel() == count,
            f"[{name}] expected grad of the {count} elements of the product, "
            f"got {list(grad.shape)}",
        )
        return backward(grad, mat1, mat2, {argument})[position]


_partner("mat1", "input", 0)
_partner("mat2", "mat2", 1)


@op.samples
def samples(make):
    def right(*shape):
        # Keeps the sums of floats near 1 for every K.
        depth = shape[-2] if len(shape) > 1 else shape[0]
        return make(*shape) if make.dtype == "int32" else make(*shape, scale=depth**-0.5)

    yield Sample(
        make.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]),
        make.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, -1.0]]]),
        [],
        id="catalogue",
        expect=[[[[1.0, 2.0]], [[7.0, -1.0]]]],
    )
    yield Sample(make(3, 5, 17), right(3, 17, 7), [5, 21], id="output_sizes")
    yield Sample(make(4, 1, 5, 8), right(3, 8, 6), [], id="broadcast")
    yield Sample(make(2, 5, 8), right(8, 6), [2, 5, 2, 3], id="one_matrix")
    yield Sample(make(8), right(2, 8, 6), [], id="row")
    yield Sample(make(2, 5, 8), right(8), [10], id="column")
    yield Sample(make(8), right(8), [], id="two_vectors")
    yield Sample(make(3, 70, 65), right(3, 65, 40), [], id="several_threads")
    yield Sample(make(2, 0, 8), right(2, 8, 4), [0, 3], id="no_rows")
    yield Sample(make(2, 8, 5).mT, right(2, 6, 8).mT, [], id="not_contiguous")


op.errors(
    lambda make: Sample(make(2, 3, 8), make(2, 7, 4), []),
    match=r"\[npu_bmmV2\] expected as many columns of the first operand as rows of the second, "
    r"got \[2, 3, 8\] and \[2, 7, 4\]",
    id="depth",
)
op.errors(
    lambda make: Sample(make(2, 3, 8), make(3, 8, 4), []),
    match=r"\[npu_bmmV2\] expected broadcastable shapes, got \[2\] and \[3\]",
    id="batches",
)
op.errors(
    lambda make: Sample(make(), make(3, 4), []),
    match=r"\[npu_bmmV2\] expected operands of rank >= 1, got \[\] and \[3, 4\]",
    id="scalar",
)
op.errors(
    lambda make: Sample(make(2, 3, 8), make(2, 8, 4), [3, 7]),
    match=r"\[npu_bmmV2\] expected output_sizes of the \[2, 3, 4\] elements of the product, "
    r"got \[3, 7\]",
    id="output_sizes",
)
op.errors(
    lambda make: Sample(make(2, 8, dtype="float32"), make(8, 4, dtype="float16"), []),
    match=r"\[npu_bmmV2\] expected mat2 of input's dtype .*float32, got .*float16",
    id="dtype",
)
