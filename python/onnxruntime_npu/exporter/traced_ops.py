"""Operators that exist for tracing only.

Torch passes sequence lengths to attention as lists of integers. A traced model has them as tensors
whose size is the dynamic batch, which a list cannot express; the ONNX node takes tensors.
"""

from __future__ import annotations

from typing import Any

import torch

_NAMESPACE = "npu_traced"
_LAYOUT = "BNSD_BSND"


@torch.library.custom_op(f"{_NAMESPACE}::fused_infer_attention", mutates_args=())
def fused_infer_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    atten_mask: torch.Tensor,
    query_lengths: torch.Tensor | None,
    kv_lengths: torch.Tensor | None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    sparse_mode: int,
) -> torch.Tensor:
    """``npu_fused_infer_attention_score`` with the lengths [B] as int64 tensors.

    query [B, Nq, S, D], key and value [B, Nkv, C, D]; returns [B, S, Nq, D].
    """
    return torch.ops.npu.npu_fused_infer_attention_score(
        query,
        key,
        value,
        atten_mask=atten_mask,
        actual_seq_lengths=None if query_lengths is None else query_lengths.tolist(),
        actual_seq_lengths_kv=None if kv_lengths is None else kv_lengths.tolist(),
        num_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        scale=scale,
        input_layout=_LAYOUT,
        sparse_mode=sparse_mode,
    )[0]


@fused_infer_attention.register_fake
def _fake(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_args: object, **_kwargs: object
) -> torch.Tensor:
    batch, heads, sequence = query.shape[:3]
    return query.new_empty(batch, sequence, heads, value.shape[3])


def traced_translations(table: dict[Any, Any]) -> dict[Any, Any]:
    """Return the translations of these operators in terms of those in ``table``."""
    attention = table[torch.ops.npu.npu_fused_infer_attention_score.default]

    def translate(
        query: Any,
        key: Any,
        value: Any,
        atten_mask: Any,
        query_lengths: Any,
        kv_lengths: Any,
        num_heads: int,
        num_key_value_heads: int,
        scale: float,
        sparse_mode: int,
    ) -> Any:
        return attention(
            query,
            key,
            value,
            atten_mask=atten_mask,
            actual_seq_lengths=query_lengths,
            actual_seq_lengths_kv=kv_lengths,
            num_heads=num_heads,
            num_key_value_heads=num_key_value_heads,
            scale=scale,
            input_layout=_LAYOUT,
            sparse_mode=sparse_mode,
        )[0]

    return {torch.ops.npu_traced.fused_infer_attention.default: translate}
