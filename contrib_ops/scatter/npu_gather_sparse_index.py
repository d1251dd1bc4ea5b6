"""Gathers rows of a table. Source: torch_npu.npu_gather_sparse_index."""

from onnxruntime_npu.opdef import (
    FLOATS,
    INDICES,
    SIGNED,
    Sample,
    check,
    check_indices,
    npu_op,
    torch,
)

_ELEMENTS = [*FLOATS, "float64", *SIGNED, "uint8", "bool"]

op = npu_op(
    "npu_gather_sparse_index(Tensor input, Tensor index) -> Tensor",
    onnx="NPUGatherSparseIndex",
    dtypes={"input": _ELEMENTS, "index": INDICES, "y": _ELEMENTS},
)


@op.reference
def reference(input, index):
    """y = input[index].

    input: [R, ..]; index: any shape, each in [0, R); y: index.shape + input.shape[1:].
    """
    check(
        input.dim() >= 1,
        "[npu_gather_sparse_index] expected input of rank >= 1, got a scalar",
    )
    check_indices(index, 0, input.shape[0], "[npu_gather_sparse_index] expected index")
    rows = input.index_select(0, index.to(torch.int64).reshape(-1))
    return rows.reshape([*index.shape, *input.shape[1:]])


@op.function
def body(b, call, input, index):
    return b.Gather(input, index, axis=0)


@op.backward("input")
def backward(grad_y, input, index):
    """A row's gradient is the sum of the gradients of its copies."""
    rows = grad_y.reshape(index.numel(), *input.shape[1:])
    return torch.zeros_like(input).index_add(0, index.reshape(-1), rows)


@op.samples
def samples(make):
    yield Sample(
        make.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]),
        make.tensor([1, 0], "int64"),
        id="catalogue",
        expect=None if make.dtype == "bool" else [[[4, 5, 6], [1, 2, 3]]],
    )
    yield Sample(make(20, 6), make.ints(3, 5, high=20, dtype="int32"), id="int32_index")
    yield Sample(make(20, 3, 4), make.ints(2, 2, high=20), id="table_of_rank_3")
    yield Sample(make(20), make.ints(7, high=20), id="table_of_rank_1")
    yield Sample(make(20, 6), make.tensor(3, "int64"), id="scalar_index")
    yield Sample(make(50, 640), make.ints(600, high=50), id="threads")
    yield Sample(make(20, 6), make.ints(0), id="no_index")
    yield Sample(make(20, 0), make.ints(3, high=20), id="empty_rows")
    yield Sample(make(6, 20).t(), make.ints(3, high=20), id="not_contiguous")


for _dtype in _ELEMENTS:
    op.tolerance(_dtype, rtol=0, atol=0, reason="values are only moved")

op.errors(
    lambda make: Sample(make(4, 6), make.tensor([0, 4], "int64")),
    match=r"\[npu_gather_sparse_index\] expected index in \[0, 4\), got 4",
    needs_values=True,
    id="index_too_large",
)
op.errors(
    lambda make: Sample(make(4, 6), make.tensor([-1], "int32")),
    match=r"\[npu_gather_sparse_index\] expected index in \[0, 4\), got -1",
    needs_values=True,
    id="negative_index",
)
op.errors(
    lambda make: Sample(make.tensor(1), make.ints(1)),
    match=r"\[npu_gather_sparse_index\] expected input of rank >= 1, got a scalar",
    id="scalar_table",
)
