"""The role of multi-head latent attention, which reads cached latents: latent_form.py.

Its projections become one operator where that takes them (latent_prolog.py), else they stay layers
(latent_projections.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..attention_form import added_mask
from ..integers.stored_linear import StoredLinear
from ..model_cache import ATTENDING, new_cache
from ..proof import Findings, NotProven, compare, spread_to
from .attention import layer_index
from .latent_form import LatentAttention, LatentParts, Tables, tables_of
from .latent_projections import LatentProjections
from .latent_prolog import LatentProlog, is_marked, obstacle_of
from .norm import NormRole, RmsNorm
from .role import Role, part

_PAST = 2  # tokens of a proof that are cached before the others
_ARGUMENTS = ("hidden_states", "position_embeddings", "attention_mask", "past_key_values")
_EARLIER = "prev_topk_indices"  # an argument: what an earlier layer's indexer has chosen
_OF_INDEXED = ("position_ids", _EARLIER)


def is_latent_attention(module: nn.Module) -> bool:
    """Whether a module projects keys and values down to a latent, and back."""
    return hasattr(module, "kv_a_proj_with_mqa") and hasattr(module, "kv_b_proj")


class LatentAttentionRole(Role[LatentParts, LatentAttention]):
    """Latent attention, of queries with a latent of their own or without."""

    def __init__(self, tables: Tables, *, floats: bool = True) -> None:
        """Take the rotary tables of some tokens, [1, S, ..], that the model gives to attention.

        ``floats``: the weights stay floats, which one operator may take.
        """
        self._tables = tables
        self._floats = floats

    def match(self, original: nn.Module) -> LatentParts:
        """Find projections and norms; the sizes follow from those of weights."""
        known = inspect.signature(original.forward).parameters.values()
        taken = _ARGUMENTS + (_OF_INDEXED if hasattr(original, "indexer") else ())
        others = [p.name for p in known if p.name not in taken and p.kind is not p.VAR_KEYWORD]
        if others:
            raise NotProven(f"expected attention without the argument {others[0]!r}")

        def of(name: str) -> Any:
            return part(original, "latent attention", name)

        def norm(name: str) -> RmsNorm:
            built, _ = NormRole().proven(of(name))
            assert isinstance(built, RmsNorm)
            return built

        has_latent = getattr(original, "q_a_proj", None) is not None
        query = (of("q_a_proj"), of("q_b_proj")) if has_latent else (of("q_proj"),)
        latent_down, latent_up, out = of("kv_a_proj_with_mqa"), of("kv_b_proj"), of("o_proj")
        for layer in (*query, latent_down, latent_up):
            if not isinstance(layer, (nn.Linear, StoredLinear)):
                raise NotProven(f"expected linear projections, got {type(layer).__name__}")
        if latent_up.bias is not None:
            raise NotProven("expected 'kv_b_proj' without a bias")
        if is_marked(latent_up):
            raise NotProven("adapters change 'kv_b_proj', which would be weights of heads")
        latent_norm = norm("kv_a_layernorm")
        rotated = latent_down.out_features - latent_norm.gamma.shape[0]
        keys = latent_up.out_features - out.in_features  # N * D
        heads = (query[-1].out_features - keys) // max(rotated, 1)
        if heads < 1 or keys % heads or out.in_features % heads:
            raise NotProven(f"expected weights of whole heads, got {heads} heads")
        key_size, value_size = keys // heads, out.in_features // heads
        return LatentParts(
            query,
            norm("q_a_layernorm") if has_latent else None,
            latent_down,
            latent_norm,
            latent_up.weight.detach().unflatten(0, (heads, -1)),
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
        """Yield the operator, if it takes the projections, and layers, with each order of columns.

        Columns are rotated with their neighbours, or with those of the other half.
        """
        if self._floats and obstacle_of(parts) is None:
            for in_pairs in (True, False):
                yield LatentProlog(parts, in_pairs=in_pairs)
        for in_pairs in (True, False):
            yield LatentProjections(parts, in_pairs=in_pairs)

    def prove(self, original: nn.Module, built: LatentAttention) -> float:
        """Compare outputs of some tokens, and of later ones that attend to them, too.

        Not the cache: columns may be rotated in another order, and are read in the same one.
        """
        count = tables_of(self._tables, torch.float32)[0].shape[1]
        x = torch.randn(1, count, built.hidden_size)
        x = spread_to(x, built.latents_and_keys(x), 2.0)
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
        """Record the operators but attention, which is recorded with the whole model."""
        if isinstance(built, LatentProlog):
            findings.replaced("npu_mla_prolog", difference)
            if built.indexer is not None:  # whose queries it normalises, too
                findings.replaced("npu_rms_norm", difference)
            return
        assert isinstance(built, LatentProjections)
        findings.replaced("npu_rms_norm", difference, nodes=built.norms)
        findings.replaced("npu_rotary_mul", difference, nodes=2)
        if self._floats:
            why = f"its projections stay layers: {built.obstacle or 'the operator is not proven'}"
            findings.keep(site, "latent attention", why)
        else:
            where = f"{site}.kv_b_proj"
            findings.keep(where, "linear", "not quantised: it is multiplied head by head")


def _of_tokens(tables: Tables, tokens: slice) -> Tables:
    if isinstance(tables, torch.Tensor):
        return tables[:, tokens]
    return tables[0][:, tokens], tables[1][:, tokens]
