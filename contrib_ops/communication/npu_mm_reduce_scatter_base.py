"""Product of one rank's part of a matrix, summed over the ranks, of which each gets some rows.

Source: torch_npu.npu_mm_reduce_scatter_base.
"""

from onnxruntime_npu.opdef import Sample, check, npu_op

from ._ranks import ALONE, check_alone, check_group, empty
from ._scaled_product import (
    body_dtype,
    body_product,
    checked_result,
    product,
    refusals,
    samples_of,
    types_of,
)

_OP = "npu_mm_reduce_scatter_base"

op = npu_op(
    f"{_OP}(Tensor self, Tensor x2, str hcom, int world_size, *, str reduce_op='sum',"
    " Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, int comm_turn=0,"
    " ScalarType? output_dtype=None, str? comm_mode=None) -> Tensor",
    onnx="NPUMmReduceScatterBase",
    not_portable=ALONE,
    **types_of("y"),
)


@op.reference
def reference(
    self,
    x2,
    hcom,
    world_size,
    reduce_op="sum",
    bias=None,
    x1_scale=None,
    x2_scale=None,
    comm_turn=0,
    output_dtype=None,
    comm_mode=None,
):
    """y = rows [r * M / W, (r + 1) * M / W) of the sum over the ranks of self @ x2 + bias.

    self: [M, K] with an M that W = world_size divides; x2: [K, N] of its dtype; K may differ from
    rank to rank; hcom: the group's name, as get_hccl_comm_name tells it, or the provider option
    groups; world_size: the group's ranks; with 1, hcom may be ""; bias: [N], part of the sum; r:
    this rank; y: [M / W, N] of self's dtype.

    int8: a rank's term is (self @ x2 + bias) * x2_scale * x1_scale; x1_scale: [M] or [M, 1];
    x2_scale: [1], [N] or [1, N], float32, or packed by npu_trans_quant_param; bias: float16 or
    bfloat16; y: bfloat16, or float16 as output_dtype says or for a packed x2_scale, with which
    another output_dtype is refused: upstream's texts differ about it.

    A rank's term is computed in float32 and rounded to y's dtype. The terms are added in the order
    of ranks, in float32, and their sum is rounded once.
    """
    check(reduce_op == "sum", f"[{_OP}] expected reduce_op 'sum', got '{reduce_op}'")
    check_group(_OP, hcom, world_size, self)
    dtype = checked_result(
        _OP, self, x2, bias, x1_scale, x2_scale, comm_turn, output_dtype, comm_mode
    )
    m = self.shape[0]
    check(
        m % world_size == 0,
        f"[{_OP}] expected a number of rows that {world_size} ranks divide, got {m}",
    )
    if hcom:
        return empty([m // world_size, x2.shape[1]], dtype, self)
    return product(self, x2, bias, x1_scale, x2_scale, dtype)


@op.function
def body(b, call, self, x2, bias, x1_scale, x2_scale):
    check_alone(call.attrs["hcom"])
    return body_product(b, call, self, x2, bias, x1_scale, x2_scale, body_dtype(call))


@op.samples
def samples(make):
    yield from samples_of(make)


refusals(op)
op.errors(
    lambda make: Sample(make(2, 8), make(8, 4), "", 1, reduce_op="max"),
    match=r"expected reduce_op 'sum', got 'max'",
    id="reduction",
)
