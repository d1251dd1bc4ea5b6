"""The role of multi-head latent attention: ``npu_mla_prolog``, and attention over cached latents.

The original makes keys and values of every cached latent anew at each step. Here queries are
projected to the size of a latent instead, so that attention reads the cache as it is, and its
results are projected back. Which latents are read may be what an indexer has chosen.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ..attention_interface import attend_latents
from ..indexed_attention import chosen_keys
from ..model_cache import ATTENDING, new_cache
from ..own_forward import added_mask
from ..proof import Findings, NotProven, compare, spread_to
from .attention import layer_index
from .norm import NormRole, RmsNorm
from .role import Role, part

_PAST = 2  # tokens of a proof that are cached before the others
_ARGUMENTS = ("hidden_states", "position_embeddings", "attention_mask", "past_key_values")
_EARLIER = "prev_topk_indices"  # an argument: what an earlier layer's indexer has chosen
_OF_INDEXED = ("position_ids", _EARLIER)

Tables = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class LatentAttention(nn.Module):
    """Attention of queries [B, S, N, C + R] over latents [B, T, C] and rotated keys [B, T, R]."""

    weight_dq: torch.Tensor  # [H, Q]
    weight_uq_qr: torch.Tensor  # [Q, N * (D + R)]
    weight_uk: torch.Tensor  # [N, D, C]
    weight_uv: torch.Tensor  # [N, C, V]
    weight_dkv_kr: torch.Tensor  # [H, C + R]
    gamma_cq: torch.Tensor  # [Q]
    gamma_ckv: torch.Tensor  # [C]

    def __init__(self, parts: LatentParts, *, in_pairs: bool) -> None:
        """Take the parts; ``in_pairs``: neighbouring columns are rotated together, else halves."""
        super().__init__()
        self.layer_idx = parts.layer_idx
        self.scale = parts.scale
        self.epsilons = parts.query_norm.epsilon, parts.latent_norm.epsilon
        up, down = parts.query_up, parts.latent_down
        if not in_pairs:  # which is how the operator reads them
            up, down = _as_pairs(up, parts.rotated), _as_pairs(down, parts.rotated)
        keys, values = parts.latent_up.split([parts.key_size, parts.value_size], dim=1)
        for name, weight in (
            ("weight_dq", parts.query_down.t()),
            ("weight_uq_qr", up.flatten(0, 1).t()),
            ("weight_uk", keys),
            ("weight_uv", values.transpose(1, 2)),
            ("weight_dkv_kr", down.flatten(0, 1).t()),
            ("gamma_cq", parts.query_norm.gamma.detach() * parts.factors[0]),
            ("gamma_ckv", parts.latent_norm.gamma.detach() * parts.factors[1]),
        ):
            self.register_parameter(name, nn.Parameter(weight.contiguous(), requires_grad=False))
        self.o_proj = parts.out
        self.indexer, self._passes_on = parts.indexer, parts.passes_on

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: Tables,
        attention_mask: torch.Tensor,
        past_key_values: Any = None,
        prev_topk_indices: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        """Attend from hidden_states [B, S, H] and extend the cache; return [B, S, H] and None.

        Indices [B, S, n] of the keys that an indexer has chosen follow, where later layers may use
        them, too: ``prev_topk_indices`` are those of an earlier one.
        """
        tables = _tables(position_embeddings, hidden_states.dtype)
        layer = None if past_key_values is None else past_key_values.layers[self.layer_idx]
        if getattr(getattr(layer, "cache", None), "key_scale", None) is not None:
            raise NotProven(
                "npu_mla_prolog rounds latents by scales of a whole cache, not a token's"
            )
        slots = getattr(layer, "block_slots", None)
        if slots is not None:
            assert layer is not None
            query, query_rope, *written = self._prolog(hidden_states, tables, layer.cache, slots)
            latents, rotated = layer.take(layer.cache._replace(key=written[0], value=written[1]))
        else:
            batch, sequence = hidden_states.shape[:2]
            sizes = self.weight_uk.shape[2], tables[0].shape[-1]
            new = [hidden_states.new_zeros(batch, sequence, 1, size) for size in sizes]
            slots = torch.arange(batch * sequence).view(batch, sequence)
            query, query_rope, *written = self._prolog(hidden_states, tables, new, slots)
            latents, rotated = (each.transpose(1, 2) for each in written)
            if past_key_values is not None:
                latents, rotated = past_key_values.update(latents, rotated, self.layer_idx)
        indices = prev_topk_indices
        if self.indexer is not None:
            indices = self._chosen(
                hidden_states, position_embeddings, attention_mask, past_key_values
            )
        if indices is not None:
            attention_mask = chosen_keys(indices, latents.shape[2], attention_mask)
        attended = attend_latents(
            query.transpose(1, 2),
            query_rope.transpose(1, 2),
            latents,
            rotated,
            attention_mask,
            self.scale,
        )
        values = torch.matmul(attended.transpose(1, 2), self.weight_uv)  # [B, N, S, V]
        results = self.o_proj(values.transpose(1, 2).flatten(2)), None
        return (*results, indices) if self._passes_on else results

    def _chosen(self, x: torch.Tensor, tables: Any, mask: torch.Tensor, cache: Any) -> Any:
        """Return the indices of the keys that the indexer chooses."""
        projected = torch.matmul(x, self.weight_dq)
        query, _ = torch.ops.npu.npu_rms_norm(projected, self.gamma_cq, self.epsilons[0])
        assert self.indexer is not None
        return self.indexer(x, query, tables, mask[:, 0], None, past_key_values=cache)

    def _prolog(self, x: torch.Tensor, tables: Any, caches: Any, slots: torch.Tensor) -> Any:
        cos, sin = tables
        return torch.ops.npu.npu_mla_prolog.functional(
            x,
            self.weight_dq,
            self.weight_uq_qr,
            self.weight_uk,
            self.weight_dkv_kr,
            self.gamma_cq,
            self.gamma_ckv,
            sin,
            cos,
            slots,
            caches[0],
            caches[1],
            rmsnorm_epsilon_cq=self.epsilons[0],
            rmsnorm_epsilon_ckv=self.epsilons[1],
        )


def _tables(given: Tables, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines [B, S, R] of a model's tables; complex ones are [B, S, R / 2]."""
    if isinstance(given, torch.Tensor):
        cos, sin = (torch.cat([x, x], -1) for x in torch.view_as_real(given).unbind(-1))
    else:
        cos, sin = given
    return cos.to(dtype), sin.to(dtype)


def _as_pairs(weight: torch.Tensor, rotated: int) -> torch.Tensor:
    """Put the halves of the last ``rotated`` of [N, rows, in] side by side, row by row."""
    others, halves = weight.split([weight.shape[1] - rotated, rotated], dim=1)
    pairs = halves.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    return torch.cat([others, pairs], dim=1)


class LatentParts(NamedTuple):
    """The weights of latent attention, [.., out, in], and their sizes."""

    query_down: torch.Tensor  # [Q, H]
    query_norm: RmsNorm
    query_up: torch.Tensor  # [N, D + R, Q]
    latent_down: torch.Tensor  # [1, C + R, H]
    latent_norm: RmsNorm
    latent_up: torch.Tensor  # [N, D + V, C]
    out: nn.Linear
    key_size: int  # D
    value_size: int  # V
    rotated: int  # R
    scale: float
    layer_idx: int
    factors: tuple[float, float]  # of what the norms give
    indexer: nn.Module | None  # chooses keys
    passes_on: bool  # returns the chosen ones for later layers


def is_latent_attention(module: nn.Module) -> bool:
    """Whether a module projects keys and values down to a latent, and back."""
    return hasattr(module, "kv_a_proj_with_mqa") and hasattr(module, "kv_b_proj")


class LatentAttentionRole(Role[LatentParts, LatentAttention]):
    """Latent attention whose queries are projected down, too."""

    def __init__(self, tables: Tables) -> None:
        """Take the rotary tables of some tokens, [1, S, ..], that the model gives to attention."""
        self._tables = tables

    def match(self, original: nn.Module) -> LatentParts:
        """Find projections without biases, and norms; the sizes follow from those of weights."""
        known = inspect.signature(original.forward).parameters.values()
        taken = _ARGUMENTS + (_OF_INDEXED if hasattr(original, "indexer") else ())
        others = [p.name for p in known if p.name not in taken and p.kind is not p.VAR_KEYWORD]
        if others:
            raise NotProven(f"expected attention without the argument {others[0]!r}")

        def weight(name: str) -> torch.Tensor:
            layer = part(original, "latent attention", name)
            if not isinstance(layer, nn.Linear) or layer.bias is not None:
                raise NotProven(f"expected {name!r} of floats, without a bias")
            return layer.weight.detach()

        def norm(name: str) -> RmsNorm:
            built, _ = NormRole().proven(part(original, "latent attention", name))
            assert isinstance(built, RmsNorm)
            return built

        query_down, query_up = weight("q_a_proj"), weight("q_b_proj")
        latent_down, latent_up = weight("kv_a_proj_with_mqa"), weight("kv_b_proj")
        out = part(original, "latent attention", "o_proj")
        latent_norm = norm("kv_a_layernorm")
        rotated = latent_down.shape[0] - latent_norm.gamma.shape[0]
        keys = latent_up.shape[0] - out.in_features  # N * D
        heads = (query_up.shape[0] - keys) // max(rotated, 1)
        if heads < 1 or keys % heads or out.in_features % heads:
            raise NotProven(f"expected weights of whole heads, got {heads} heads")
        key_size, value_size = keys // heads, out.in_features // heads
        return LatentParts(
            query_down,
            norm("q_a_layernorm"),
            query_up.unflatten(0, (heads, -1)),
            latent_down[None],
            latent_norm,
            latent_up.unflatten(0, (heads, -1)),
            out,
            key_size,
            value_size,
            rotated,
            float(getattr(original, "scaling", (key_size + rotated) ** -0.5)),
            layer_index(original),
            # As in LongCat, where they scale queries and latents.
            (
                float(getattr(original, "mla_scale_q_lora", 1.0)),
                float(getattr(original, "mla_scale_kv_lora", 1.0)),
            ),
            getattr(original, "indexer", None),
            any(each.name == _EARLIER for each in known),
        )

    def build(self, parts: LatentParts) -> Iterator[LatentAttention]:
        """Yield attention with each order of the rotated columns."""
        for in_pairs in (True, False):
            yield LatentAttention(parts, in_pairs=in_pairs)

    def prove(self, original: nn.Module, built: LatentAttention) -> float:
        """Compare outputs of some tokens, and of later ones that attend to them, too.

        Not the cache: columns may be rotated in another order, and are read in the same one.
        """
        count = _tables(self._tables, torch.float32)[0].shape[1]
        x = torch.randn(1, count, built.weight_dq.shape[0])
        x = spread_to(x, torch.matmul(x, built.weight_dkv_kr), 2.0)
        indexed = hasattr(original, "indexer")
        expected, actual = (
            self._run(module, x, built.layer_idx, indexed) for module in (original, built)
        )
        return max(
            compare(theirs, ours, "attention output")
            for theirs, ours in zip(expected, actual, strict=True)
        )

    def _run(
        self, attention: Any, x: torch.Tensor, layer: int, indexed: bool
    ) -> list[torch.Tensor]:
        cache = new_cache([ATTENDING._replace(indexed=indexed)] * (layer + 1))
        results = []
        for new in (slice(0, _PAST), slice(_PAST, x.shape[1])):
            tokens = torch.arange(x.shape[1])
            visible = (tokens[: new.stop] <= tokens[new, None])[None, None]
            if not isinstance(attention, LatentAttention):
                visible = added_mask(visible)
            result = attention(
                hidden_states=x[:, new],
                position_embeddings=_of_tokens(self._tables, new),
                attention_mask=visible,
                past_key_values=cache,
                **(self._given_to_indexed(attention, tokens[new]) if indexed else {}),
            )
            results.append(result[0])
        return results

    @staticmethod
    def _given_to_indexed(attention: Any, tokens: torch.Tensor) -> dict[str, Any]:
        """Return the other arguments of attention to chosen keys: here the first and the own."""
        given: dict[str, Any] = {"position_ids": tokens[None]}
        if attention.indexer is None:
            given[_EARLIER] = torch.stack([torch.zeros_like(tokens), tokens], 1)[None].int()
        return given

    def report(
        self, findings: Findings, site: str, built: LatentAttention, difference: float
    ) -> None:
        """Record the prolog; attention is recorded with the whole model."""
        findings.replaced("npu_mla_prolog", difference)
        if built.indexer is not None:  # whose queries it normalises, too
            findings.replaced("npu_rms_norm", difference)


def _of_tokens(tables: Tables, tokens: slice) -> Tables:
    if isinstance(tables, torch.Tensor):
        return tables[:, tokens]
    return tables[0][:, tokens], tables[1][:, tokens]
