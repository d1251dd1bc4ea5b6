"""Results of experts, brought back and summed, added to a residual, and normalised.

Source: torch_npu.npu_moe_distribute_combine_add_rms_norm.
"""

from onnxruntime_npu.opdef import torch, wide

from ._combine import SPECIAL_TENSORS, check_like, combined, define, refusals, samples_of
from ._expert_ranks import SPECIAL

_OP = "npu_moe_distribute_combine_add_rms_norm"
_NOTES = "expand_idx"

op = define(
    _OP,
    "NPUMoeDistributeCombineAddRmsNorm",
    ["y", "rstd", "x"],
    notes=_NOTES,
    required=("residual_x", "gamma"),
    optional=(
        *("activation_scale", "weight_scale", "group_list", "expand_scales", "shared_expert_x"),
        *("elastic_info", *SPECIAL_TENSORS),
    ),
    numbers=' int out_dtype=0, int comm_quant_mode=0, int group_list_type=0, str comm_alg="",'
    f" float norm_eps=1e-06,{SPECIAL}",
)


@op.reference
def reference(**given):
    """x = combined + residual_x; y = x * rstd * gamma, rstd = 1 / sqrt(mean(x^2) + norm_eps).

    combined: the result of npu_moe_distribute_combine_v2 for the same arguments, rounded, where
    expand_idx is npu_moe_distribute_dispatch_v2's assist_info_for_combine. residual_x: [BS, 1, H]
    and gamma: [H], of expand_x's dtype. y and x: [BS, 1, H] of that dtype, rounded; rstd:
    [BS, 1, 1] float32. shared_expert_x is added as it is: an upstream formula multiplies it by
    expert_scales, but its description does not.
    """
    made = combined(_OP, given, notes=_NOTES, of_rows=True).unsqueeze(1)
    residual, gamma = given["residual_x"], given["gamma"]
    check_like(_OP, "residual_x", residual, made.dtype, list(made.shape))
    check_like(_OP, "gamma", gamma, made.dtype, [made.shape[2]])
    x = made + residual
    values = wide(x)
    rstd = torch.rsqrt(values.square().mean(2, keepdim=True) + given["norm_eps"])
    return (values * rstd * wide(gamma)).to(x.dtype), rstd, x


@op.samples
def samples(make):
    more = {
        "residual_x": lambda tokens, width: make(tokens, 1, width),
        "gamma": lambda _, width: make(width),
    }
    yield from samples_of(make, notes=_NOTES, second=True, **more)


_ROUNDINGS = "combined, the sum and the result are rounded to the dtype: three roundings of {}"
op.tolerance("float16", rtol=2e-3, atol=2e-3, reason=_ROUNDINGS.format("2^-11 relative"))
op.tolerance("bfloat16", rtol=1.6e-2, atol=1.6e-2, reason=_ROUNDINGS.format("2^-8 relative"))

refusals(op, samples, notes=_NOTES, of_rows=True)
