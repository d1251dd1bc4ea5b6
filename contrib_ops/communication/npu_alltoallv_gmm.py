"""Rows from all ranks, for this rank's experts, times the matrix of each.

Source: torch_npu.npu_alltoallv_gmm.
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

_OP = "npu_alltoallv_gmm"

op = define(
    _OP, "NPUAlltoAllvGmm", ["gmm_y", "mm_y", "permute_out"], " bool permute_out_flag=False,"
)


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
    permute_out_flag=False,
    comm_mode=None,
):
    """gmm_y = rows of all ranks for each expert of this rank, times that expert's matrix.

    gmm_x: [sum(send_counts), H], ordered by the rank and the expert that get the rows; gmm_weight:
    [e, H, N] of its dtype, or [e, N, H] with trans_gmm_weight, for the e experts of this rank;
    hcom: the group's name, as get_hccl_comm_name tells it, or the provider option groups;
    ep_world_size: the group's ranks, W; with 1, hcom may be ""; send_counts and recv_counts: e * W
    numbers, entry r * e + j is how many rows this rank sends for expert j of rank r, or gets from
    rank r for its own expert j; mm_x: [B, H2], mm_weight: [H2, N2], or [N2, H2] with
    trans_mm_weight, of mm_x's dtype, which need not be gmm_x's: a product that needs no other rank.

    gmm_y: [A, N] with A = sum(recv_counts), ordered by expert, then by the rank of origin; mm_y:
    mm_x @ mm_weight of mm_x's dtype, or an empty tensor [0]; permute_out: the rows [A, H] before
    the products with permute_out_flag, or [0]. Products are summed in float32 and rounded once.
    """
    check_no_tensors(
        _OP, {"send_counts_tensor": send_counts_tensor, "recv_counts_tensor": recv_counts_tensor}
    )
    experts, n, shared = checked_shapes(
        _OP, gmm_x, gmm_weight, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight
    )
    check_counts(_OP, hcom, ep_world_size, experts, send_counts, recv_counts, gmm_x, comm_mode)
    nothing = empty([0], gmm_x.dtype, gmm_x)
    rows = sum(recv_counts)
    if hcom:
        return (
            empty([rows, n], gmm_x.dtype, gmm_x),
            empty_shared(gmm_x, mm_x, shared),
            empty([rows, gmm_x.shape[1]], gmm_x.dtype, gmm_x) if permute_out_flag else nothing,
        )
    return (
        products(gmm_x, gmm_weight, recv_counts, trans_gmm_weight),
        nothing if shared is None else product(mm_x, mm_weight, trans_mm_weight),
        gmm_x.clone() if permute_out_flag else nothing,
    )


@op.function
def body(b, call, gmm_x, gmm_weight, send_counts_tensor, recv_counts_tensor, mm_x, mm_weight):
    check_alone(call.attrs["hcom"])
    nothing = b.Reshape(b.Slice(gmm_x, [0], [0]), [0], allowzero=1)
    shared = nothing
    if mm_x is not None:
        transposed = call.attrs["trans_mm_weight"]
        shared = body_product(b, mm_x, mm_weight, transposed, call.dtype("mm_x"))
    return (
        body_products(b, call, gmm_x, gmm_weight, call.attrs["recv_counts"]),
        shared,
        b.Identity(gmm_x) if call.attrs["permute_out_flag"] else nothing,
    )


@op.samples
def samples(make):
    for i, sample in enumerate(samples_of(make)):
        sample.kwargs["permute_out_flag"] = i == 0
        yield sample


refusals(op)
