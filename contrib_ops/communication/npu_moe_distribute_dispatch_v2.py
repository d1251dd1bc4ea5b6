"""Tokens sent to the ranks that have their experts; some experts need no rank.

Source: torch_npu.npu_moe_distribute_dispatch_v2.
"""

from onnxruntime_npu.opdef import Sample

from ._dispatch import define, dispatched, quantised_samples, refusals, samples_of

_OP = "npu_moe_distribute_dispatch_v2"

op = define(_OP, "NPUMoeDistributeDispatchV2", bookkeeping="assist_info_for_combine", second=True)


@op.reference
def reference(**given):
    """expand_x = the tokens of all ranks that chose this rank's experts, ordered by expert.

    As npu_moe_distribute_dispatch, but for this: x may also be int32, such as eight int4 in each,
    with quant_mode 0; then scales is [BS], of each token, and comes with the rows as
    dynamic_scales. Behind the moe_expert_num experts are zero_expert_num, copy_expert_num and
    const_expert_num, which a token may choose, also several times, and is not sent for:
    npu_moe_distribute_combine_v2 computes them. assist_info_for_combine: [A * 128] int32, at the
    head of every row's 128 the rank, token and slot that it comes from. comm_alg: "", fullmesh,
    fullmesh_v1, fullmesh_v2 or hierarchy, which are the same here. elastic_info, performance_info
    and the numbers of types are not supported.
    """
    return dispatched(_OP, given, second=True)


@op.samples
def samples(make):
    yield from samples_of(make)
    yield from quantised_samples(make)
    ids = make.tensor([[2, 0, 4], [1, 3, 3], [5, 4, 1]], dtype="int32")
    special = {"zero_expert_num": 1, "copy_expert_num": 1, "const_expert_num": 2}
    yield Sample(make(3, 5), ids, "", 1, 0, 2, **special, comm_alg="fullmesh", id="special")


refusals(op)
op.errors(
    lambda make: Sample(
        make(1, 4), make.tensor([[1]], dtype="int32"), "", 1, 0, 2, comm_alg="star"
    ),
    match=r"expected comm_alg '' or 'fullmesh', .*, got 'star'",
    id="algorithm",
)
