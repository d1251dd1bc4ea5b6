"""Tokens sent to the ranks that have their experts.

Source: torch_npu.npu_moe_distribute_dispatch.
"""

from ._dispatch import define, dispatched, quantised_samples, refusals, samples_of

_OP = "npu_moe_distribute_dispatch"

op = define(_OP, "NPUMoeDistributeDispatch", bookkeeping="expand_idx")


@op.reference
def reference(**given):
    """expand_x = the tokens of all ranks that chose this rank's experts, ordered by expert.

    x: [BS, H], this rank's tokens; expert_ids: [BS, K] int32, K different experts of each, in
    [0, moe_expert_num). Experts are spread evenly over the ep_world_size ranks, W, the lowest
    numbers first: this one, ep_rank_id, has L = moe_expert_num / W. With shared_expert_rank_num of
    S above 0, the first S ranks have one shared expert each instead, which gets whole tokens, and
    L = moe_expert_num / (W - S). There are S / shared_expert_num copies of each; rank r sends to
    copy r modulo their number. group_ep: the group's name, as get_hccl_comm_name tells it, or the
    provider option groups; for a rank alone "".

    x_active_mask: [BS] bool, true for the first tokens and false for the others, or [BS, K], the
    slots that are sent; those that are not may have any expert. global_bs: 0 if all ranks have BS
    tokens, otherwise W times the most that one has.

    expand_x: [A, H], rows by expert, then by the rank they come from, then by token, and zeros
    behind the last one. A is the most that may arrive: W * BS * min(L, K), or global_bs *
    min(L, K); of a shared expert, as many tokens as its ranks have. expand_idx: [BS * K], each
    slot's place among those that this rank sends to the expert, or -1. expert_token_nums: [L], rows
    of each expert, with expert_token_nums_type 0 of those before it as well; ep_recv_counts:
    [L * W], where the rows of each expert and rank end. expert_scales: [BS, K], come with the rows
    as expand_scales [A], 1 for shared experts; [0] without them. tp_recv_counts: zeros
    [tp_world_size], 0 or 1.

    quant_mode 2: rows are round(v / dynamic_scales) of int8, dynamic_scales [A] max |v| / 127, and
    v is x, times the expert's row of scales [moe_expert_num, H], those of shared experts with ranks
    before the others. quant_mode 0: rows as they are, and zeros [A]; scales are refused, of which
    upstream tells only that the rows would be int8.
    """
    return dispatched(_OP, given)


@op.samples
def samples(make):
    yield from samples_of(make)
    yield from quantised_samples(make)


refusals(op)
