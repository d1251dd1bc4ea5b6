"""Product of the rows of all ranks. Source: torch_npu.npu_all_gather_base_mm."""

from onnxruntime_npu.opdef import FLOATS, npu_op

from ._ranks import ALONE, check_alone, check_group, check_unused, empty
from ._scaled_product import (
    body_dtype,
    body_product,
    checked_result,
    product,
    refusals,
    samples_of,
    types_of,
)

_OP = "npu_all_gather_base_mm"
_TYPES = types_of("output")

op = npu_op(
    f"{_OP}(Tensor self, Tensor x2, str hcom, int world_size, *, Tensor? bias=None,"
    " Tensor? x1_scale=None, Tensor? x2_scale=None, int gather_index=0, bool gather_output=True,"
    " int comm_turn=0, ScalarType? output_dtype=None, str? comm_mode=None) -> (Tensor, Tensor)",
    onnx="NPUAllGatherBaseMm",
    outputs=["output", "gather_out"],
    not_portable=ALONE,
    **{
        **_TYPES,
        "dtypes": {**_TYPES["dtypes"], "gather_out": [*FLOATS, "int8"]},
        "typings": [{**typing, "gather_out": typing["self"]} for typing in _TYPES["typings"]],
    },
)


@op.reference
def reference(
    self,
    x2,
    hcom,
    world_size,
    bias=None,
    x1_scale=None,
    x2_scale=None,
    gather_index=0,
    gather_output=True,
    comm_turn=0,
    output_dtype=None,
    comm_mode=None,
):
    """output = G @ x2 + bias, where G has the rows of every rank, in the order of ranks.

    self: [m, K] of one shape and dtype on all ranks; x2: [K, N] of its dtype, N may differ from
    rank to rank; hcom: the group's name, as get_hccl_comm_name tells it, or the provider option
    groups; world_size: the group's ranks; with 1, hcom may be ""; bias: [N]; output:
    [m * world_size, N] of self's dtype; gather_out: G, or an empty tensor [0] without
    gather_output.

    int8: output = (G @ x2 + bias) * x2_scale * S, where S has the rows of every rank's x1_scale,
    [m] or [m, 1]; x2_scale: [1], [N] or [1, N], float32, or packed by npu_trans_quant_param; bias:
    float16 or bfloat16; output: bfloat16, or float16 as output_dtype says or for a packed x2_scale.

    Products are summed in float32, or exactly in int32, and rounded once.
    """
    check_group(_OP, hcom, world_size, self)
    check_unused(_OP, {"gather_index": (gather_index, 0)})
    dtype = checked_result(
        _OP, self, x2, bias, x1_scale, x2_scale, comm_turn, output_dtype, comm_mode
    )
    (m, k), n = self.shape, x2.shape[1]
    gathered = [m * world_size, k] if gather_output else [0]
    if hcom:
        return empty([m * world_size, n], dtype, self), empty(gathered, self.dtype, self)
    output = product(self, x2, bias, x1_scale, x2_scale, dtype)
    return output, self.clone() if gather_output else empty([0], self.dtype, self)


@op.function
def body(b, call, self, x2, bias, x1_scale, x2_scale):
    check_alone(call.attrs["hcom"])
    dtype = body_dtype(call)
    output = body_product(b, call, self, x2, bias, x1_scale, x2_scale, dtype)
    if call.attrs["gather_output"]:
        return output, b.Identity(self)
    return output, b.Reshape(b.Slice(self, [0], [0]), [0], allowzero=1)


@op.samples
def samples(make):
    yield from samples_of(make)
    for sample in samples_of(make):
        sample.kwargs["gather_output"] = False
        sample.id = f"{sample.id}_only_product"
        yield sample
        return


refusals(op)
