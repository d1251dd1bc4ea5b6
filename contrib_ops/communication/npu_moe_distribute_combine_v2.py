"""Results of experts, brought back and summed with those of experts that need no rank.

Source: torch_npu.npu_moe_distribute_combine_v2.
"""

from ._combine import SPECIAL_TENSORS, combined, define, refusals, samples_of
from ._expert_ranks import SPECIAL

_OP = "npu_moe_distribute_combine_v2"
_NOTES = "assist_info_for_combine"

op = define(
    _OP,
    "NPUMoeDistributeCombineV2",
    ["x"],
    notes=_NOTES,
    optional=(
        *("expand_scales", "shared_expert_x", "elastic_info"),
        *(*SPECIAL_TENSORS, "performance_info"),
    ),
    numbers=f' int comm_quant_mode=0, str comm_alg="",{SPECIAL}',
)


@op.reference
def reference(**given):
    """x[t] = the sum of expert_scales[t, k] * result over the experts k of token t.

    As npu_moe_distribute_combine, behind npu_moe_distribute_dispatch_v2, whose
    assist_info_for_combine [A * 128] it takes. The experts behind the moe_expert_num of ranks are
    zero_expert_num whose result is 0, copy_expert_num whose result is ori_x[t], and
    const_expert_num, of which c has const_expert_alpha_1[c] * ori_x[t] + const_expert_alpha_2[c] *
    const_expert_v[c]. ori_x: [BS, H], const_expert_*: [const_expert_num, H], of expand_x's dtype.
    shared_expert_x is added whether or not shared experts have ranks: upstream takes it only with
    such ranks here, and only without them in npu_moe_distribute_combine_add_rms_norm. elastic_info
    and performance_info are not supported.
    """
    return combined(_OP, given, notes=_NOTES, of_rows=True)


@op.samples
def samples(make):
    made = samples_of(make, notes=_NOTES, second=True)
    by_hand = next(made)
    by_hand.id, by_hand.expect = "by_hand", [[[0.75, 1.5], [6.0, 8.0], [10.0, 12.0]]]
    yield by_hand
    yield from made


def _without_original(make):
    *_, special = samples(make)
    special.kwargs["ori_x"] = None
    return special


refusals(op, samples, notes=_NOTES, of_rows=True)
op.errors(
    _without_original,
    match=r"expected ori_x with copy and constant experts, got none",
    id="ori_x",
)
