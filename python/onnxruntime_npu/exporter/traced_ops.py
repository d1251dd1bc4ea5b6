"""Operators that exist for tracing only.

Torch passes sequence lengths to attention as lists of integers. A traced model has them as tensors
whose size is the dynamic batch, which a list cannot express; the ONNX node takes tensors. Attention
with capped scores is one operator of ONNX, and none of torch.
"""

from __future__ import annotations

from typing import Any

import onnxscript
import torch

CAPPED_OPSET = 23  # the first one with an operator for attention with capped scores
_NAMESPACE = "npu_traced"
_BATCHES = "BNSD_BSND"
_ALL = 2147483647  # no limit of a sparse mode


@torch.library.custom_op(f"{_NAMESPACE}::fused_infer_attention", mutates_args=())
def fused_infer_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    atten_mask: torch.Tensor | None,
    query_lengths: torch.Tensor | None,
    kv_lengths: torch.Tensor | None,
    block_table: torch.Tensor | None = None,
    pse_shift: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    *,
    num_heads: int,
    num_key_value_heads: int,
    scale: float,
    sparse_mode: int,
    input_layout: str = _BATCHES,
    block_size: int = 0,
    pre_tokens: int = _ALL,
    next_tokens: int = _ALL,
    antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``npu_fused_infer_attention_score`` with the lengths [B] as int64 tensors.

    query [B, Nq, S, D], key and value [B, Nkv, C, D]; returns [B, S, Nq, D], and with
    softmax_lse_flag the log-sum-exp [B, Nq, S, 1]. Layout TND: query and result [T, Nq, D],
    log-sum-exp [T, Nq, 1], key and value in blocks. int8 keys and values have scales of
    antiquant_mode. query_rope and key_rope are further columns of query and key, of a size of their
    own.
    """
    return torch.ops.npu.npu_fused_infer_attention_score(
        query,
        key,
        value,
        atten_mask=atten_mask,
        actual_seq_lengths=None if query_lengths is None else query_lengths.tolist(),
        actual_seq_lengths_kv=None if kv_lengths is None else kv_lengths.tolist(),
        block_table=block_table,
        pse_shift=pse_shift,
        key_antiquant_scale=key_scale,
        value_antiquant_scale=value_scale,
        query_rope=query_rope,
        key_rope=key_rope,
        key_antiquant_mode=antiquant_mode,
        value_antiquant_mode=antiquant_mode,
        num_heads=num_heads,
        num_key_value_heads=num_key_value_heads,
        scale=scale,
        input_layout=input_layout,
        sparse_mode=sparse_mode,
        block_size=block_size,
        pre_tokens=pre_tokens,
        next_tokens=next_tokens,
        softmax_lse_flag=softmax_lse_flag,
    )


@fused_infer_attention.register_fake
def _fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_args: object,
    num_key_value_heads: int,
    input_layout: str = _BATCHES,
    softmax_lse_flag: bool = False,
    **_kwargs: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    if input_layout != _BATCHES:
        attended = query.new_empty(*query.shape[:2], value.shape[2] // num_key_value_heads)
    else:
        batch, heads, sequence = query.shape[:3]
        attended = query.new_empty(batch, sequence, heads, value.shape[3])
    shape = (*query.shape[:-1], 1) if softmax_lse_flag else (1,)
    return attended, query.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op(f"{_NAMESPACE}::capped_attention", mutates_args=())
def capped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    *,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """ONNX's ``Attention`` with ``softcap * tanh(scores / softcap)`` for the scores.

    query [B, Nq, S, D], key and value [B, Nkv, T, D], visible [B, 1, S, T] of booleans; returns
    [B, Nq, S, D].
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.matmul(query, key.transpose(2, 3)).float() * scale
    scores = torch.tanh(scores / softcap) * softcap
    shares = scores.masked_fill(~visible, torch.finfo(torch.float32).min).softmax(-1)
    return torch.matmul(shares.to(value.dtype), value)


@capped_attention.register_fake
def _fake_capped(
    query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor, *_args: object, **_kwargs: object
) -> torch.Tensor:
    return query.new_empty(*query.shape[:3], value.shape[3])


def _translate_capped(*inputs: Any, scale: float, softcap: float) -> Any:
    """Emit a node of opset 23, which the model must have."""
    emit: Any = onnxscript.values.Opset("", CAPPED_OPSET).Attention
    attended = emit(*inputs, scale=scale, softcap=softcap)[0]
    attended.producer().resize_outputs(1)
    return attended


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
        block_table: Any = None,
        pse_shift: Any = None,
        key_scale: Any = None,
        value_scale: Any = None,
        query_rope: Any = None,
        key_rope: Any = None,
        antiquant_mode: int | None = None,
        **attributes: Any,
    ) -> Any:
        if antiquant_mode is not None:
            attributes["key_antiquant_mode"] = attributes["value_antiquant_mode"] = antiquant_mode
        return attention(
            query,
            key,
            value,
            atten_mask=atten_mask,
            actual_seq_lengths=query_lengths,
            actual_seq_lengths_kv=kv_lengths,
            block_table=block_table,
            pse_shift=pse_shift,
            key_antiquant_scale=key_scale,
            value_antiquant_scale=value_scale,
            query_rope=query_rope,
            key_rope=key_rope,
            **{"input_layout": _BATCHES, **attributes},
        )[:2]

    return {
        torch.ops.npu_traced.fused_infer_attention.default: translate,
        torch.ops.npu_traced.capped_attention.default: _translate_capped,
    }
