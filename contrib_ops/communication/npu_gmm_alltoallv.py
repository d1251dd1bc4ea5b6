"""Rows of each expert of this rank times its matrix, sent to the ranks that they belong to.

Source: torch_npu.npu_gmm_alltoallv.
"""

from ._expert_blocks import (
    body_product,
    body_products,
    check_counts,
    checked_shapes,
    define,
    empty_shared,
    product,
    products,
    refusals,
    samples_of,
)
from ._ranks import check_alone, check_no_tensors, empty

_OP = "npu_gmm_alltoallv"

op = define(_OP, "NPUGmmAlltoAllv", ["y", "mm_y"])


@op.reference
def reference(
    gmm_x,
    gmm_weight,
    hcom,
    ep_world_size,
    send_counts,
    recv_counts,
    send_counts_tensor=None,
    recv_counts_tensor=None,
    mm_x=None,
    mm_weight=None,
    trans_gmm_weight=False,
    trans_mm_weight=False,
    comm_mode=None,
):
    """y = the results of all ranks' experts for the rows of this rank: npu_alltoallv_gmm reversed.

    gmm_x: [sum(send_counts), H], ordered by expert of this rank, then by the rank that gets the
    results; gmm_weight: [e, H, N] of its dtype, or [e, N, H] with trans_gmm_weight; hcom: the
    group's name, as get_hccl_comm_name tells it, or the provider option groups; ep_world_size: the
    group's ranks, W; with 1, hcom may be ""; send_counts and recv_counts: e * W numbers, entry
    r * e + j is how many rows of this rank's expert j rank r gets, or this rank gets from expert j
    of rank r; mm_x: [B, H2], mm_weight: [H2, N2], or [N2, H2] with trans_mm_weight, of mm_x's
    dtype, which need not be gmm_x's: a product that needs no other rank.

    y: [sum(recv_counts), N], ordered by the rank and the expert that the rows come from; mm_y:
    mm_x @ mm_weight of mm_x's dtype, or an empty tensor [0]. Products are summed in float32 and
    rounded once.
    """
    check_no_tensors(
        _OP, {"send_counts_tensor": send_counts_tensor, "recv_counts_tensor": recv_counts_tensor}
    )
    experts, n, shared = checked_shapes(
        _OP, gmm_x, gmm_weight, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight
    )
    check_counts(_OP, hcom, ep_world_size, experts, send_counts, recv_counts, gmm_x, comm_mode)
    shared_y = empty_shared(gmm_x, mm_x, shared)
    if hcom:
        return empty([sum(recv_counts), n], gmm_x.dtype, gmm_x), shared_y
    return (
        products(gmm_x, gmm_weight, send_counts, trans_gmm_weight),
        shared_y if shared is None else product(mm_x, mm_weight, trans_mm_weight),
    )


@op.function
def body(b, call, gmm_x, gmm_weight, send_counts_tensor, recv_counts_tensor, mm_x, mm_weight):
    check_alone(call.attrs["hcom"])
    shared = b.Reshape(b.Slice(gmm_x, [0], [0]), [0], allowzero=1)
    if mm_x is not None:
        transposed = call.attrs["trans_mm_weight"]
        shared = body_product(b, mm_x, mm_weight, transposed, call.dtype("mm_x"))
    return body_products(b, call, gmm_x, gmm_weight, call.attrs["send_counts"]), shared


@op.samples
def samples(make):
    yield from samples_of(make)


refusals(op)
