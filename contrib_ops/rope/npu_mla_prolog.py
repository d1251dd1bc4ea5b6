"""What precedes multi-head latent attention: the first version, of float activations.

Source: torch_npu.npu_mla_prolog. The caches are written in place, which torch_npu's own schema
does not say and this one does.
"""

from onnxruntime_npu.opdef import FLOATS, npu_op

from . import _mla_prolog as mla

op = npu_op(
    f"npu_mla_prolog({mla.ARGUMENTS}) -> (Tensor, Tensor, Tensor(a!), Tensor(b!))",
    onnx="NPUMlaProlog",
    outputs=["query", "query_rope", "kv_cache_out", "kr_cache_out"],
    dtypes=mla.dtypes(FLOATS),
)


@op.reference
def reference(
    token_x,
    weight_dq,
    weight_uq_qr,
    weight_uk,
    weight_dkv_kr,
    rmsnorm_gamma_cq,
    rmsnorm_gamma_ckv,
    rope_sin,
    rope_cos,
    cache_index,
    kv_cache,
    kr_cache,
    dequant_scale_x=None,
    dequant_scale_w_dq=None,
    dequant_scale_w_uq_qr=None,
    dequant_scale_w_dkv_kr=None,
    quant_scale_ckv=None,
    quant_scale_ckr=None,
    smooth_scales_cq=None,
    rmsnorm_epsilon_cq=1e-05,
    rmsnorm_epsilon_ckv=1e-05,
    cache_mode="PA_BSND",
):
    """Return the query, its rotated part, and both caches with a new row a token.

    These are the first four outputs of npu_mla_prolog_v2 in its modes A, B and C: token_x is not
    quantized, so that dequant_scale_x, dequant_scale_w_dq and dequant_scale_w_dkv_kr are refused.
    """
    return mla.reference(
        "npu_mla_prolog",
        token_x,
        weight_dq,
        weight_uq_qr,
        weight_uk,
        weight_dkv_kr,
        rmsnorm_gamma_cq,
        rmsnorm_gamma_ckv,
        rope_sin,
        rope_cos,
        cache_index,
        kv_cache,
        kr_cache,
        dequant_scale_x=dequant_scale_x,
        dequant_scale_w_dq=dequant_scale_w_dq,
        dequant_scale_w_uq_qr=dequant_scale_w_uq_qr,
        dequant_scale_w_dkv_kr=dequant_scale_w_dkv_kr,
        quant_scale_ckv=quant_scale_ckv,
        quant_scale_ckr=quant_scale_ckr,
        smooth_scales_cq=smooth_scales_cq,
        rmsnorm_epsilon_cq=rmsnorm_epsilon_cq,
        rmsnorm_epsilon_ckv=rmsnorm_epsilon_ckv,
        cache_mode=cache_mode,
        full_allowed=False,
    )[:4]


@op.function
def body(b, call, *inputs):
    return mla.body(b, call, zip((x.name for x in op.inputs), inputs, strict=True))[:4]


@op.samples
def samples(make):
    yield from mla.samples(make, "ABC", has_query_scale=False)


mla.errors(op, "npu_mla_prolog", "ABC")
