"""Forms of attention modules whose scores have a bias by keys, ALiBi, that the model gives them."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .alibi import Alibi, bias_of_keys, read_slopes
from .attention_form import BATCH, NEW, Form, Forward, added_mask, heads_of
from .attention_interface import AttentionCall, attend, attend_shared, attend_visible
from .replaced_functions import ReplacedFunctions


class BiasOfRows(Form):
    """As in Bloom: a joint projection, a bias [B * N, 1, T], and a residual."""

    parts = ("query_key_value", "_reshape", "inv_norm_factor", "dense")
    arguments = ("hidden_states", "residual", "alibi", "attention_mask", "layer_past")

    def alibi(self, module: Any, given: dict[str, Any]) -> Alibi:
        """Read the slopes of the first row."""
        return Alibi(read_slopes(given["alibi"][: module.num_heads, 0]))

    def forward(self, module: Any, alibi: Alibi | None) -> Forward:
        """Return the fused forward pass."""
        assert alibi is not None

        def forward(
            hidden_states: torch.Tensor,
            residual: torch.Tensor,
            attention_mask: torch.Tensor,
            layer_past: Any = None,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            query, key, value = module._reshape(module.query_key_value(hidden_states))
            if layer_past is not None:
                key, value = layer_past.update(key, value, module.layer_idx)
            bias = bias_of_keys(alibi, key.shape[2])
            scale = module.inv_norm_factor
            attended = attend_visible(query, key, value, scale, attention_mask, bias)
            return module.dense(attended.flatten(2)) + residual, None

        return forward

    def example(self, module: Any, alibi: Alibi | None) -> dict[str, torch.Tensor]:
        """Return arguments with the bias of all rows."""
        assert alibi is not None
        hidden, residual = torch.randn(2, BATCH, NEW, module.query_key_value.in_features)
        bias = bias_of_keys(alibi, NEW).expand(BATCH, -1, -1, -1).flatten(0, 1)
        return {"hidden_states": hidden, "residual": residual, "alibi": bias}


class BiasOfContext(Form):
    """As in MPT: a joint projection, and a bias [N, 1, C] of the longest context."""

    parts = ("Wqkv", "out_proj", "softmax_scale", "clip_qkv", "n_heads", "layer_idx")
    arguments = ("hidden_states", "position_bias", "past_key_values", "attention_mask")

    def alibi(self, module: Any, given: dict[str, Any]) -> Alibi:
        """Read the slopes."""
        return Alibi(read_slopes(given["position_bias"][:, 0]))

    def forward(self, module: Any, alibi: Alibi | None) -> Forward:
        """Return the fused forward pass."""
        assert alibi is not None

        def forward(
            hidden_states: torch.Tensor,
            past_key_values: Any = None,
            attention_mask: Any = None,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            joint = module.Wqkv(hidden_states)
            if module.clip_qkv:
                joint = joint.clamp(min=-module.clip_qkv, max=module.clip_qkv)
            query, key, value = (heads_of(part, module.n_heads) for part in joint.chunk(3, -1))
            if past_key_values is not None:
                key, value = past_key_values.update(key, value, module.layer_idx)
            bias = bias_of_keys(alibi, key.shape[2])
            scale = module.softmax_scale
            attended = attend_visible(query, key, value, scale, attention_mask, bias)
            return module.out_proj(attended.flatten(2)), None

        return forward

    def example(self, module: Any, alibi: Alibi | None) -> dict[str, torch.Tensor]:
        """Return arguments with the bias of a longer context."""
        assert alibi is not None
        hidden = torch.randn(BATCH, NEW, module.Wqkv.in_features)
        return {"hidden_states": hidden, "position_bias": bias_of_keys(alibi, 2 * NEW)[0]}

    def mask(self, module: Any, visible: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        """Return the keys that are hidden."""
        return ~visible


class BiasInMask(Form):
    """As in Falcon: a joint projection of heads or of groups; the mask has the bias, if any.

    Keys and values of groups are cached once, where the original copies them for every head.
    """

    parts = ("query_key_value", "num_kv_heads", "new_decoder_architecture", "head_dim", "dense")
    arguments = ("hidden_states", "alibi", "attention_mask", "layer_past", "position_embeddings")

    def alibi(self, module: Any, given: dict[str, Any]) -> Alibi | None:
        """Read the slopes, whose products are divided by the square root of the head size."""
        if given["alibi"] is None:
            return None
        slopes = read_slopes(given["alibi"][0, :, 0, :2])
        return Alibi(slopes, rounded=True, scale=module.head_dim**-0.5)

    def forward(self, module: Any, alibi: Alibi | None) -> Forward:
        """Return the fused forward pass."""
        code = sys.modules[type(module).__module__]
        scale = module.head_dim**-0.5

        def forward(
            hidden_states: torch.Tensor,
            attention_mask: torch.Tensor,
            layer_past: Any = None,
            position_embeddings: Any = None,
            **_: Any,
        ) -> tuple[torch.Tensor, None]:
            query, key, value = _projected(module, hidden_states)
            if alibi is None:
                query, key = code.apply_rotary_pos_emb(query, key, *position_embeddings)
            if layer_past is not None:
                key, value = layer_past.update(key, value, module.layer_idx)
            if alibi is None:
                attended = attend_visible(query, key, value, scale, attention_mask)
            else:
                attended = _attended(query, key, value, scale, attention_mask, alibi)
            return module.dense(attended.flatten(2)), None

        return forward

    def example(self, module: Any, alibi: Alibi | None) -> dict[str, Any]:
        """Return arguments with rotary tables that rotate nothing, or with the bias."""
        hidden = torch.randn(BATCH, NEW, module.hidden_size)
        if alibi is not None:
            bias = bias_of_keys(alibi, NEW).expand(BATCH, -1, -1, -1)
            return {"hidden_states": hidden, "alibi": bias / alibi.scale}
        angles = torch.randn(1, NEW, module.head_dim // 2).repeat(1, 1, 2)
        tables = angles.cos(), angles.sin()
        return {"hidden_states": hidden, "alibi": None, "position_embeddings": tables}

    def mask(self, module: Any, visible: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        """Return a mask that is added to the scores, with the bias."""
        added, bias = added_mask(visible), given["alibi"]
        return added if bias is None else added + bias * module.head_dim**-0.5

    def replace_more(self, module: Any, functions: ReplacedFunctions) -> None:
        """Let the model's mask be without a bias, of one head."""
        functions.add(sys.modules[type(module).__module__], "build_alibi_tensor", _no_bias)


def _no_bias(attention_mask: torch.Tensor, _: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(attention_mask.shape[0], 1, 1, dtype=dtype)


def _attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    mask: torch.Tensor,
    alibi: Alibi,
) -> torch.Tensor:
    """Attend by a mask [B, 1, S, T] of visible keys, or one that is 0 for these."""
    bias = bias_of_keys(alibi, key.shape[2])
    call = AttentionCall(query, key, value, None, scale, key_bias=bias)
    if (attended := attend_shared(call)) is not None:
        return attended
    visible = mask == 0 if mask.is_floating_point() else mask
    return attend(query, key, value, scale, visible, bias)


def _projected(module: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return queries [B, Nq, S, D], keys and values [B, Nkv, S, D] of Falcon.

    Each group has its queries before its key and its value; one key for all is one group.
    """
    joint = module.query_key_value(hidden)
    heads = joint.unflatten(-1, (module.num_kv_heads, -1, module.head_dim))
    parts = heads[..., :-2, :].flatten(2, 3), heads[..., -2, :], heads[..., -1, :]
    query, key, value = (part.transpose(1, 2) for part in parts)
    return query, key, value
