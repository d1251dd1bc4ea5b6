"""The prolog of multi-head latent attention, version 1, with float activations.

Source: torch_npu.npu_mla_prolog. The caches are written in place; unlike torch_npu's
schema, this one declares it.
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
def reference(**arguments):
    """Return the query, its rotated part, and both caches with a new row per token.

    These are the first four outputs of npu_mla_prolog_v2 in its modes A, B and C: token_x is not
    quantized, so dequant_scale_x, dequant_scale_w_dq and dequant_scale_w_dkv_kr are rejected.
    """
    return mla.reference("npu_mla_prolog", full_allowed=False, **arguments)[:4]


@op.function
def body(b, call, *inputs):
    return mla.body(b, call, zip((x.name for x in op.inputs), inputs, strict=True))[:4]


@op.samples
def samples(make):
    yield from mla.samples(make, "ABC", has_query_scale=False)


mla.errors(op, "npu_mla_prolog", "ABC")
