"""Fused attention for models that call transformers' attention interface, which most do.

Under the name ``ATTENTION`` a function and a mask are registered: attention becomes
``npu_fused_infer_attention_score``, or ``npu_fusion_attention`` with sinks over a growing cache,
with a bias of positions and where every token sees those after it. With capped scores it becomes
ONNX's ``Attention``, if the opset has it. Each layer's own masking (padding, causal, sliding,
chunked) is a boolean mask [B, 1, S, T] that the model computes once for each kind of layer, unless
a layer adds a mask of its own to the scores.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from . import traced_ops
from .arguments import DEFAULT_OPSET
from .indexed_attention import chosen_keys
from .key_numbers import by_numbers
from .proof import Findings, attempt
from .quiet_transformers import quiet_transformers

if TYPE_CHECKING:
    from .replaced_functions import ReplacedFunctions

ATTENTION = "onnxruntime_npu_export"
QUERY_FACTOR = "query_factor"  # of query_temperature.py: what a module's queries are scaled by
NOT_CALLED = "not fused: the model does not call attention's interface"
_CAPPED = "its scores are capped"
_MORE = "it has sinks, a bias or masks of heads"


@dataclass
class Calls:
    """The operators of the calls of attention, and the reasons of those that are not fused."""

    fused: list[str] = field(default_factory=list)
    unfused: list[str] = field(default_factory=list)


_recording: list[Calls] = []
_shared: list[SharedAttention] = []


@dataclass(frozen=True)
class AttentionCall:
    """A call of attention from query [B, Nq, S, D] over key and value [B, Nkv, T, D].

    Attributes:
        mask: of visible keys, or what ``SharedAttention.mask`` returned.
        obstacle: why the call is more than attention with a mask.
        query_rope: further columns of queries, of latent attention.
        bias: of the scores, if it is the only obstacle.
        key_bias: of the scores, by keys [B or 1, Nq, 1, T], which is no obstacle.
        sinks: a further score of each head [Nq], which is no obstacle.
        window: that of the call beside what the mask hides.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    scale: float
    obstacle: str | None = None
    query_rope: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    key_bias: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    window: int | None = None


class SharedAttention(Protocol):
    """What attention and masks share while a model runs over a cache that is not transformers'."""

    def mask(
        self, mask_function: Callable[..., torch.Tensor], local_size: int | None
    ) -> torch.Tensor | None:
        """Return a mask of visible keys or what stands for it; None: the usual one is made."""

    def attend(self, call: AttentionCall) -> torch.Tensor | None:
        """Return [B, S, Nq, D], attended over the cache, or None to attend as without a cache."""

    def cleared(self, cached: torch.Tensor) -> torch.Tensor:
        """Return keys or values with zeros where nothing was written."""


@contextmanager
def recorded_calls() -> Iterator[Calls]:
    """Yield the calls of attention that are made inside."""
    calls = Calls()
    _recording.append(calls)
    try:
        yield calls
    finally:
        _recording.remove(calls)


@contextmanager
def shared_step(step: SharedAttention) -> Iterator[None]:
    """Let attention and masks use a step inside, which knows the cache."""
    _shared.append(step)
    try:
        yield
    finally:
        _shared.remove(step)


def register() -> None:
    """Make the attention and its mask known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, _mask)


def fuse_attention(
    model: Any,
    probe: Callable[[Any], object],
    findings: Findings,
    functions: ReplacedFunctions | None = None,
    opset: int = DEFAULT_OPSET,
) -> bool:
    """Let the model call ``ATTENTION``, and record what ``probe(model)`` calls of it.

    ``functions``, those that are replaced while the model runs, get that of capped scores if the
    opset has an operator for it. Returns False, and changes nothing, if the model calls nothing:
    its attention is its own.
    """
    register()
    before = model.config._attn_implementation
    try:
        with quiet_transformers():  # a model that takes none is found by its calls
            model.set_attn_implementation(ATTENTION)
    except Exception as error:  # of various types, where a model's attention is its own
        findings.keep("", "attention", f"not fused: {str(error).strip().splitlines()[0]}")
        return True
    with recorded_calls() as calls:
        attempt(probe, model)
    for op in calls.fused:  # proven with the whole model; a call is the operator itself
        findings.replaced(op, 0.0)
    unfused = Counter(calls.unfused)
    if functions is not None and opset >= traced_ops.CAPPED_OPSET and unfused[_CAPPED]:
        functions.add(sys.modules[__name__], "_attend_specially", _capped)
        findings.replaced("Attention", 0.0, nodes=unfused.pop(_CAPPED))
    for why, count in unfused.items():
        if why == _CAPPED and functions is not None:
            why = f"{why}, which opset {traced_ops.CAPPED_OPSET} has an operator for"
        findings.keep("", "attention", f"not fused in {count} layers: {why}")
    if calls.fused or calls.unfused:
        return True
    model.set_attn_implementation(before)  # whose masks its own attention takes
    return False


def _mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """Return the mask [B, 1, S, T] of visible keys, also where a sample would need none."""
    from transformers.masking_utils import sdpa_mask

    if _shared:
        shared = _shared[-1].mask(kwargs["mask_function"], kwargs.get("local_size"))
        if shared is not None:
            return shared
    if kwargs.get("local_size") is not None:
        kwargs["mask_function"] = by_numbers(kwargs["mask_function"], kwargs["kv_length"])
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return sdpa_mask(*args, **kwargs)


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend from query [B, Nq, S, D] over key and value [B, Nkv, T, D]; return [B, S, Nq, D]."""
    special = [_CAPPED] if options.get("softcap") is not None else []
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if attention_mask is None and causal:
        special.append("it has no mask")
    # The order of axes of a cache, which a decoder's keys come from; elsewhere transposes cancel.
    layout = "BNSD" if causal or getattr(module, "is_decoder", False) else "BSND"
    if (indices := options.get("indices")) is not None:
        attention_mask = chosen_keys(indices, key.shape[2], attention_mask)
    of_blocks = options.get("block_indices")  # of indexed_blocks.py: a mask of groups of heads
    if of_blocks is not None:
        groups = query.shape[1] // of_blocks.shape[1]
        of_blocks = of_blocks.repeat_interleave(groups, 1)
        attention_mask = of_blocks if attention_mask is None else of_blocks & attention_mask
    sinks, bias = options.get("s_aux"), options.get("position_bias")
    if options.get("sinks") is not None:  # of queries, which Inkling 2 alone has
        sinks = options["s_aux"] = options["sinks"]
    unbiased = causal and bias is None and of_blocks is None
    forward_only = unbiased and sinks is None
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    if (factor := getattr(module, QUERY_FACTOR, None)) is not None:
        query = factor(query)
    if _shared:
        of_heads = sinks is None or sinks.dim() == 1
        obstacle = " and ".join(special) or (None if unbiased and of_heads else _MORE)
        lone_bias = None if special or sinks is not None else bias
        given = query, key, value, attention_mask, scale, obstacle
        shared = _shared[-1].attend(AttentionCall(*given, bias=lone_bias, sinks=sinks))
        if shared is not None:
            for calls in _recording:
                calls.fused.append("npu_fused_infer_attention_score")
            return shared, None
        if obstacle is not None:
            key, value = _shared[-1].cleared(key), _shared[-1].cleared(value)
    for calls in _recording:
        if special:
            calls.unfused.append(" and ".join(special))
        else:
            calls.fused.append(
                "npu_fused_infer_attention_score" if forward_only else "npu_fusion_attention"
            )
    if special:
        return _attend_specially(query, key, value, attention_mask, scale, options), None
    if not forward_only:
        parts = query, key, value, scale, attention_mask, sinks, bias
        return attend_with_sinks(*parts, layout=layout), None
    assert attention_mask is not None
    return attend(query, key, value, scale, attention_mask), None


def attend_with_sinks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    layout: str = "BNSD",
) -> torch.Tensor:
    """Attend from query [B, Nq, S, D] over key and value [B, Nkv, T, D]; return [B, S, Nq, D].

    mask: of visible keys [B, 1, S, T], or [B, 1, 1 or S, T] with 0 for them; sinks: a further score
    of each head [Nq], or of each query [B, Nq, S, 1]; bias: added to the scaled scores.
    ``layout``: the order of axes that the operator gets.
    """
    heads = query.shape[1]
    if sinks is not None and sinks.dim() == 4:
        # The operator has sinks of heads: those of queries are biases of a key of zeros.
        if bias is None:
            bias = sinks.new_zeros(()).expand(*query.shape[:3], key.shape[2])
        bias, sinks = torch.cat([bias, sinks.to(bias.dtype)], -1), None
        key, value = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
        mask = None if mask is None else torch.cat([mask, torch.ones_like(mask[..., :1])], -1)
    if mask is not None and mask.dtype != torch.bool:  # added to the scores, as that of Switch
        mask = (mask == 0).expand(-1, -1, query.shape[2], -1)
    if layout == "BSND":
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    attended = torch.ops.npu.npu_fusion_attention(
        query,
        key,
        value,
        heads,
        layout,
        pse=None if bias is None else (bias / scale).to(query.dtype),  # added before scaling
        atten_mask=None if mask is None else ~mask,
        scale=scale,
        sparse_mode=0 if mask is None else 1,
        sink=None if sinks is None else sinks.float(),
    )[0]
    return attended.transpose(1, 2) if layout == "BNSD" else attended


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    mask: torch.Tensor,
    bias: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from query [B, Nq, S, D] over key and value [B, Nkv, T, D]; return [B, S, Nq, D].

    mask: [B, 1, S, T], of visible keys (bool) or added to the scaled scores; bias: also added. Both
    broadcast to [B, Nq, S, T]. query_rope and key_rope: further columns of queries and keys.
    """
    if _shared:
        key, value = _shared[-1].cleared(key), _shared[-1].cleared(value)
        key_rope = None if key_rope is None else _shared[-1].cleared(key_rope)
    hidden = None
    if mask.dtype == torch.bool:
        hidden = ~mask
    else:
        bias = mask if bias is None else mask + bias
    if bias is not None:
        if bias.shape[1] != query.shape[1]:  # of all heads; a bias of one row serves all queries
            bias = bias.expand(-1, query.shape[1], -1, -1)
        bias = bias.to(query.dtype).contiguous()  # the dtype of the result
    return traced_ops.fused_infer_attention(
        query,
        key,
        value,
        hidden,
        None,
        None,
        pse_shift=bias,
        query_rope=query_rope,
        key_rope=key_rope,
        num_heads=query.shape[1],
        num_key_value_heads=key.shape[1],
        scale=scale,
        sparse_mode=0 if hidden is None else 1,
    )[0]


def attend_visible(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    visible: torch.Tensor,
    key_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend as ``attend``, over the cache of a step where the mask is one that the step has made.

    For attention of a model's own, which does not come through transformers' interface. key_bias:
    added to the scaled scores, by keys [B or 1, Nq, 1, T].
    """
    call = AttentionCall(query, key, value, visible, scale, key_bias=key_bias)
    if (attended := attend_shared(call)) is not None:
        return attended
    return attend(query, key, value, scale, visible, key_bias)


def attend_shared(call: AttentionCall) -> torch.Tensor | None:
    """Attend over the cache of a step; None without one, or if the call has to read its mask."""
    return _shared[-1].attend(call) if _shared else None


def attend_latents(
    query: torch.Tensor,
    query_rope: torch.Tensor,
    latents: torch.Tensor,
    rotated: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attend from query [B, Nq, S, D] over cached latents [B, 1, T, D]; return [B, S, Nq, D].

    query_rope [B, Nq, S, R] and rotated [B, 1, T, R] are further columns of queries and keys.
    """
    for calls in _recording:
        calls.fused.append("npu_fused_infer_attention_score")
    if _shared:
        attended = _shared[-1].attend(
            AttentionCall(query, latents, rotated, mask, scale, query_rope=query_rope)
        )
        if attended is not None:
            return attended
    return attend(query, latents, latents, scale, mask, query_rope=query_rope, key_rope=rotated)


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    options: dict[str, Any],
) -> torch.Tensor:
    """Attention as ONNX's operator, or in standard ones where the call has more than a cap."""
    more = any(options.get(name) is not None for name in ("position_bias", "s_aux"))
    if options.get("softcap") is None or mask is None or more:
        return _plain(query, key, value, mask, scale, options)
    attended = traced_ops.capped_attention(
        query, key, value, mask, scale=scale, softcap=float(options["softcap"])
    )
    return attended.transpose(1, 2)


def _plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    options: dict[str, Any],
) -> torch.Tensor:
    """Attention in standard operators: softmax(cap(query @ key * scale) + bias, sinks) @ value."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.matmul(query, key.transpose(2, 3)) * scale
    cap, bias, sinks = (options.get(name) for name in ("softcap", "position_bias", "s_aux"))
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    scores = scores.float()
    if sinks is not None:
        column = sinks if sinks.dim() == 4 else sinks.reshape(1, -1, 1, 1)
        column = column.float().expand(scores.shape[0], -1, scores.shape[2], 1)
        shares = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    else:
        shares = scores.softmax(-1)
    return torch.matmul(shares.to(value.dtype), value).transpose(1, 2)


_attend_specially = _plain  # by fuse_attention another one while a model runs
