"""Results of experts, brought back to the ranks of their tokens and summed.

Source: torch_npu.npu_moe_distribute_combine.
"""

from ._combine import combined, define, refusals, samples_of

_OP = "npu_moe_distribute_combine"
_NOTES = "expand_idx"

op = define(
    _OP,
    "NPUMoeDistributeCombine",
    ["x"],
    notes=_NOTES,
    optional=(
        *("activation_scale", "weight_scale", "group_list", "expand_scales", "shared_expert_x"),
    ),
    numbers=" int out_dtype=0, int comm_quant_mode=0, int group_list_type=0",
)


@op.reference
def reference(**given):
    """x[t] = the sum of expert_scales[t, k] * result over the experts k of token t.

    expand_x: [A, H], the results of this rank's experts, in the order of the rows that
    npu_moe_distribute_dispatch gave; expand_idx and ep_send_counts: its expand_idx and
    ep_recv_counts; expert_ids: [BS, K], x_active_mask and the arguments from group_ep on: as given
    to it; expert_scales: [BS, K]; shared_expert_x: [BS, H], or 3-D with BS as the product of the
    first two, of expand_x's dtype, is added without a weight, and so are the results of shared
    experts. x: [BS, H]; inactive slots add nothing, and an inactive token is zeros. Sums are taken
    in float32, in the order of slots, and rounded once.

    comm_quant_mode 2: results travel as round(v / s) of int8 with s = max |v| / 127 of the row. Not
    used: expand_scales [A] and tp_send_counts. activation_scale, weight_scale, group_list and
    numbers other than 0 for out_dtype and group_list_type are not supported.
    """
    return combined(_OP, given, notes=_NOTES, of_rows=False)


@op.samples
def samples(make):
    made = samples_of(make, notes=_NOTES)
    by_hand = next(made)
    by_hand.id, by_hand.expect = "by_hand", [[[0.75, 1.5], [6.0, 8.0], [10.0, 12.0]]]
    yield by_hand
    yield from made


refusals(op, samples, notes=_NOTES, of_rows=False)
