"""The prolog of multi-head latent attention: absorbed query and new rows of the latent cache.

Source: torch_npu.npu_mla_prolog_v2. The caches are written in place; unlike torch_npu's
schema, this one declares it.
"""

from itertools import product

from onnxruntime_npu.opdef import FLOATS, npu_op

from . import _mla_prolog as mla

op = npu_op(
    f"npu_mla_prolog_v2({mla.ARGUMENTS}) -> (Tensor, Tensor, Tensor(a!), Tensor(b!), Tensor)",
    onnx="NPUMlaPrologV2",
    outputs=["query", "query_rope", "kv_cache_out", "kr_cache_out", "dequant_scale_q_nope"],
    dtypes={**mla.dtypes(mla.QUANTIZED), "dequant_scale_q_nope": ["float32"]},
    sample_dtypes=FLOATS,
    typings=[
        {
            "token_x": tokens,
            "weight_uk": floats,
            "kv_cache": kv,
            "kr_cache": kr,
            "query": "int8" if tokens == kv == "int8" else floats,
            "query_rope": floats,
            "kv_cache_out": kv,
            "kr_cache_out": kr,
        }
        for floats in FLOATS
        for tokens, kv, kr in product((floats, "int8"), repeat=3)
    ],
)


@op.reference
def reference(**arguments):
    """Return the query, its rotated part, both caches with a new row per token, and query's scale.

    token_x [.., He] is [T, He] or [B, S, He]. F is the dtype of weight_uk; "-> F" rounds to it.

        c  = token_x @ weight_dq [He, Hcq] -> F;  cq = rms_norm(c) * rmsnorm_gamma_cq -> F
        u  = cq @ weight_uq_qr [Hcq, N * (D + Dr)] -> F, seen as [.., N, D + Dr]
        query [.., N, Hckv] = u[.., :D] @ weight_uk [N, D, Hckv] -> F
        query_rope [.., N, Dr] = rope(u[.., D:]) -> F
        h  = token_x @ weight_dkv_kr [He, Hckv + Dr], in float32
        kv_cache.view(-1, Hckv)[cache_index] = rms_norm(h[.., :Hckv]) * rmsnorm_gamma_ckv
        kr_cache.view(-1, Dr)[cache_index] = rope(h[.., Hckv:])

    rope takes even elements first, then odd, and rotates halves by rope_cos, rope_sin [.., Dr].
    Caches are [blocks, block_size, 1, width]; cache_index has the leading shape of token_x, and a
    token with a negative one is not stored. In cache_mode PA_NZ a block is stored as
    [width / d0, block_size, d0] with d0 = 16, or 32 in int8.

    Quantization modes, distinguished by dtypes and scales:
    A: none. dequant_scale_q_nope is [1.0] here and in B, C and D.
    B: weight_uq_qr is int8 with dequant_scale_w_uq_qr per column; cq stays in float32, is
       multiplied by smooth_scales_cq [Hcq] if given, and quantized per token by max|cq| / 127; u
       stays in float32, but u[.., :D] -> F before weight_uk.
    C: B with int8 caches: round(row * quant_scale_ckv [Hckv]), round(row * quant_scale_ckr [Dr]).
    D: B with token_x, weight_dq and weight_dkv_kr also in int8, with a scale each; c stays in
       float32.
    E: D with an int8 kv_cache of one scale s, the first of quant_scale_ckv. query is int8,
       quantized per token and head by dequant_scale_q_nope [.., N, 1] = max|query| / 127, and
       query_rope, after its rounding, is multiplied by s / dequant_scale_q_nope and rounded again.
    Rows of zeros are divided by one.
    """
    return mla.reference("npu_mla_prolog_v2", full_allowed=True, **arguments)


@op.function
def body(b, call, *inputs):
    return mla.body(b, call, zip((x.name for x in op.inputs), inputs, strict=True))


@op.samples
def samples(make):
    yield from mla.samples(make, "ABCDE", has_query_scale=True)


mla.errors(op, "npu_mla_prolog_v2", "ABCDE")
