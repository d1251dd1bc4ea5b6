"""Builds the exported decoder from a transformers model, replacing by role what is proven.

Norms and MLPs that cannot be proven equal to an ``npu::`` operator stay as they are. Embedding,
positions, masks, attention and the residual structure have no such way out, since the cache
interface hangs on them: if one of them is not proven, the architecture is not supported.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from ..errors import ExportError
from .caches import DynamicStep, Step
from .decoder_modules import (
    Attention,
    Decoder,
    DecoderLayer,
    DenseExperts,
    KeptNorm,
    Linear,
    RmsNorm,
    RotaryTables,
    SwigluMlp,
)
from .proof import Findings, NotProven, attempt, compare, spread_to

_SEED = 20240607
_BATCH, _PAST, _NEW, _PADDING = 2, 3, 4, 2
_PROBE_WINDOW = 3  # stands for the real window while masks are compared


def substitute(model: nn.Module, *, consume: bool) -> tuple[Decoder, Findings]:
    """Return the decoder and what was replaced.

    Args:
        model: a transformers causal language model in float32.
        consume: give the original's layers up one by one, so that memory holds the weights once.

    Raises ExportError that names the architecture and the part that is not supported.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return _Substitution(model, consume).run()
    except NotProven as error:
        raise unsupported(model, error) from error


def unsupported(model: nn.Module, reason: object) -> ExportError:
    """Return the error that names the architecture, the reason, and what is supported."""
    return ExportError(
        f"cannot export {type(model).__name__} ({_model_type(model)}): {reason}. Supported are "
        "decoders of the Llama family: llama, mistral, mixtral, qwen2, qwen3 and what computes the "
        "same"
    )


def _model_type(model: nn.Module) -> str:
    return getattr(getattr(model, "config", None), "model_type", "no transformers model")


class _Substitution:
    def __init__(self, model: nn.Module, consume: bool) -> None:
        self._model = model
        self._consume = consume
        self._config: Any = getattr(model, "config", None)
        self._findings = Findings()
        self._norm_difference: dict[RmsNorm, float] = {}
        self._base = _part(model, "the model", "model")
        self._layers = _part(self._base, "the model", "layers")
        self._embedding = _part(self._base, "the model", "embed_tokens").weight.detach()
        self._head = _part(model, "the model", "lm_head").weight.detach()
        if len(self._layers) == 0:
            raise NotProven("expected at least one decoder layer")

    def run(self) -> tuple[Decoder, Findings]:
        rotary = self._rotary_tables()
        norm = self._norm(_part(self._base, "the model", "norm"), "norm")
        tied = self._head.data_ptr() == self._embedding.data_ptr()
        decoder = Decoder(self._embedding, None if tied else self._head, rotary, [], norm)
        windows = attempt(self._prove_ends, decoder)
        for index in tqdm(range(len(self._layers)), desc="Proving layers", unit="layer"):
            site = f"layers.{index}"
            original = self._layers[index]
            layer = self._layer(original, site, windows[index])
            attempt(self._prove_layer, original, layer, decoder, site)
            decoder.layers.append(layer)
            if self._consume:
                self._layers[index] = nn.Identity()
        self._count_norms(decoder)
        return decoder.eval(), self._findings

    # ---- what surrounds the layers ------------------------------------------------------------

    def _rotary_tables(self) -> RotaryTables | None:
        rotary = getattr(self._base, "rotary_emb", None)
        if rotary is None:
            return None
        frequencies = getattr(rotary, "inv_freq", None)
        if not isinstance(frequencies, torch.Tensor) or frequencies.dim() != 1:
            raise NotProven("expected rotary_emb.inv_freq, one frequency per pair")
        scaling = float(getattr(rotary, "attention_scaling", 1.0))
        return RotaryTables(frequencies.detach().float().repeat(2), scaling)

    def _prove_ends(self, decoder: Decoder) -> list[int | None]:
        """Prove embedding, positions, masks and logits; return the window of each layer.

        Runs the original with its layers cut out, and looks at what they would have been given.
        """
        length = 3 * _PROBE_WINDOW
        vocabulary = self._embedding.shape[0]
        input_ids = torch.randint(0, vocabulary, (_BATCH, length))
        attention_mask = _left_padded(length)
        # Positions beyond the trained ones, where frequencies that change with length would show.
        far = 2 * int(getattr(self._config, "max_position_embeddings", None) or length)
        position_ids = torch.stack([torch.arange(length), torch.arange(far, far + length)])
        hidden = torch.randn(_BATCH, length, self._embedding.shape[1])
        with self._probe_window(), _cut_out(self._layers, hidden) as given:
            logits = self._model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                use_cache=False,
            ).logits
        compare(given[0]["hidden_states"], decoder.embed(input_ids), "token embedding")
        normed = decoder.norm(hidden)
        compare(logits.flatten(0, 1), decoder.logits(normed.flatten(0, 1)), "final norm and logits")
        cos, sin = decoder.tables(position_ids[:, None, :, None])
        if cos is not None:
            for name, ours, theirs in zip(
                ("cosines", "sines"), (cos, sin), given[0]["position_embeddings"], strict=True
            ):
                compare(theirs, ours.squeeze(1), f"rotary {name}")
        step = DynamicStep(None, None, attention_mask, length)
        real = attention_mask.bool()[:, None, :, None]
        return [self._window(layer["attention_mask"], step, real) for layer in given]

    def _window(
        self, theirs: torch.Tensor | None, step: DynamicStep, real: torch.Tensor
    ) -> int | None:
        if theirs is None:
            raise NotProven("attention mask: expected a 4-D mask for a padded batch, got none")
        hidden = ~theirs if theirs.dtype == torch.bool else theirs < 0
        for probe_window in (None, _PROBE_WINDOW):
            if torch.equal(hidden & real, step.mask(probe_window) & real):
                return self._config.sliding_window if probe_window else None
        raise NotProven("attention mask: expected causal or sliding-window masking")

    @contextmanager
    def _probe_window(self) -> Iterator[None]:
        """Shrink the sliding window: a mask of the real one may be gigabytes."""
        window = getattr(self._config, "sliding_window", None)
        if window is None:
            yield
            return
        self._config.sliding_window = _PROBE_WINDOW
        try:
            yield
        finally:
            self._config.sliding_window = window

    # ---- the layers ---------------------------------------------------------------------------

    def _layer(self, original: nn.Module, site: str, window: int | None) -> DecoderLayer:
        input_norm = self._norm(_part(original, site, "input_layernorm"), f"{site}.input_layernorm")
        post_norm = self._norm(
            _part(original, site, "post_attention_layernorm"), f"{site}.post_attention_layernorm"
        )
        attention = self._attention(_part(original, site, "self_attn"), f"{site}.self_attn", window)
        mlp = self._mlp(_part(original, site, "mlp"), f"{site}.mlp")
        return DecoderLayer(input_norm, attention, post_norm, mlp)

    def _norm(self, original: nn.Module, site: str) -> RmsNorm | KeptNorm:
        try:
            norm, difference = attempt(_proven_norm, original)
        except NotProven as error:
            self._findings.keep(site, "norm", str(error))
            return KeptNorm(copy.deepcopy(original))
        self._norm_difference[norm] = difference
        return norm

    def _mlp(self, original: nn.Module, site: str) -> nn.Module:
        experts = getattr(original, "experts", None)
        if experts is not None:
            dense = attempt(_proven_experts, experts, site)
            self._findings.keep(site, "mlp", "routed: every expert is computed for every token")
            return copy.deepcopy(original, {id(experts): dense})
        try:
            mlp, difference = attempt(_proven_mlp, original)
        except NotProven as error:
            self._findings.keep(site, "mlp", str(error))
            return copy.deepcopy(original)
        self._findings.replaced("npu_swiglu", difference)
        return mlp

    def _attention(self, original: nn.Module, site: str, window: int | None) -> Attention:
        reasons = []
        modes = ("half", "interleave") if hasattr(self._base, "rotary_emb") else ()
        for mode in (*modes, None):
            try:
                attention, difference = attempt(self._proven_attention, original, window, mode)
            except NotProven as error:
                reasons.append(str(error))
                continue
            if mode is not None:
                self._findings.replaced("npu_rotary_mul", difference, nodes=2)
            if attention.q_norm is not None:
                self._findings.replaced("npu_rms_norm", difference, nodes=2)
            self._findings.replaced("npu_fused_infer_attention_score", difference)
            return attention
        raise NotProven(f"{site}: {reasons[0]}")

    def _proven_attention(
        self, original: nn.Module, window: int | None, rotary_mode: str | None
    ) -> tuple[Attention, float]:
        attention = _attention_of(original, window, rotary_mode)
        x = torch.randn(_BATCH, _NEW, attention.qkv.weight.shape[0])
        x = spread_to(x, attention.qkv(x), 2.0)
        probe = _LayerProbe(self._base, attention, int(getattr(original, "layer_idx", 0)))
        expected, cache = probe.original(original, x)
        actual, present = attention(x, probe.step, probe.past)
        worst = max(
            compare(probe.real(expected), probe.real(actual), "attention output"),
            compare(cache[0], present[0], "cached keys"),
            compare(cache[1], present[1], "cached values"),
        )
        return attention, worst

    def _prove_layer(
        self, original: nn.Module, layer: DecoderLayer, decoder: Decoder, site: str
    ) -> None:
        x = torch.randn(_BATCH, _NEW, decoder.embedding.shape[1])
        index = int(getattr(original.self_attn, "layer_idx", 0))
        probe = _LayerProbe(self._base, layer.attention, index)
        expected, _ = probe.original(original, x)
        for residual in (None, torch.randn_like(x)):
            given = x if residual is None else x - residual
            delta, carried, _ = layer(given, residual, probe.step, probe.past)
            compare(probe.real(expected), probe.real(delta + carried), f"{site}: layer output")

    def _count_norms(self, decoder: Decoder) -> None:
        """Note the norm nodes: every norm but the first adds a residual."""
        norms = [norm for layer in decoder.layers for norm in (layer.input_norm, layer.post_norm)]
        for position, norm in enumerate([*norms, decoder.norm]):
            if isinstance(norm, RmsNorm):
                op = "npu_rms_norm" if position == 0 else "npu_add_rms_norm"
                self._findings.replaced(op, self._norm_difference[norm])


def _part(module: nn.Module, site: str, name: str) -> Any:
    part = getattr(module, name, None)
    if part is None:
        raise NotProven(f"expected {name!r} in {site} ({type(module).__name__})")
    return part


def _left_padded(length: int) -> torch.Tensor:
    """Return an attention mask [B, length] whose first row starts with padding."""
    mask = torch.ones(_BATCH, length, dtype=torch.int64)
    mask[0, :_PADDING] = 0
    return mask


@contextmanager
def _cut_out(layers: nn.ModuleList, result: torch.Tensor) -> Iterator[list[dict[str, Any]]]:
    """Make every layer return ``result``; yields the arguments that each was given."""
    given: list[dict[str, Any]] = []

    def stand_in(hidden_states: torch.Tensor, *_: Any, **kwargs: Any) -> torch.Tensor:
        given.append({"hidden_states": hidden_states, **kwargs})
        return result

    for layer in layers:
        layer.forward = stand_in
    try:
        yield given
    finally:
        for layer in layers:
            del layer.forward


class _LayerProbe:
    """A step over a filled cache with a padded row, for an original layer and its replacement."""

    def __init__(self, base: nn.Module, attention: Attention, layer_index: int) -> None:
        total = _PAST + _NEW
        self._mask = _left_padded(total)
        self._position_ids = torch.arange(_PAST, total)[None].expand(_BATCH, -1)
        # The rotary module looks at its first argument for device and dtype only.
        rotary = getattr(base, "rotary_emb", None)
        self._tables = None if rotary is None else rotary(torch.zeros(1), self._position_ids)
        cos, sin = (None, None) if self._tables is None else (t[:, None] for t in self._tables)
        self.step: Step = DynamicStep(cos, sin, self._mask, _NEW)
        self._hidden = self.step.mask(attention.window)
        self._layer_index = layer_index
        shape = (_BATCH, attention.kv_heads, _PAST, attention.head_size)
        self.past = (torch.randn(shape), torch.randn(shape))

    def original(self, module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Call the original's attention or layer; return its output and its cache."""
        from transformers import DynamicCache

        cache = DynamicCache()
        cache.update(*self.past, self._layer_index)
        result = module(
            hidden_states=x,
            attention_mask=torch.zeros(self._hidden.shape).masked_fill(
                self._hidden, torch.finfo(torch.float32).min
            ),
            position_ids=self._position_ids,
            past_key_values=cache,
            use_cache=True,
            position_embeddings=self._tables,
        )
        layer: Any = cache.layers[self._layer_index]
        return result[0] if isinstance(result, tuple) else result, (layer.keys, layer.values)

    def real(self, y: torch.Tensor) -> torch.Tensor:
        """Return the rows of y [B, S, ..] that are no padding; what padding yields is free."""
        return y[self._mask[:, -_NEW:].bool()]


def _proven_norm(original: nn.Module) -> tuple[RmsNorm, float]:
    weight = getattr(original, "weight", None)
    epsilon = next(
        (getattr(original, n) for n in ("variance_epsilon", "eps") if hasattr(original, n)), None
    )
    if not isinstance(weight, torch.Tensor) or not isinstance(epsilon, float):
        raise NotProven(f"expected 'weight' and an epsilon in {type(original).__name__}")
    weight = weight.detach()
    reason = ""
    for gamma in (weight.clone(), 1.0 + weight):  # Gemma stores the difference from one
        norm, worst = RmsNorm(gamma, epsilon), 0.0
        try:
            # The small input makes a wrong epsilon show.
            for scale in (1e-3, 1.0, 30.0):
                x = torch.randn(_BATCH, _NEW, weight.shape[-1]) * scale
                worst = max(worst, compare(original(x), norm(x), "norm output"))
        except NotProven as error:
            reason = reason or str(error)
            continue
        return norm, worst
    raise NotProven(reason)


def _proven_mlp(original: Any) -> tuple[SwigluMlp, float]:
    down = _part(original, "the MLP", "down_proj")
    if hasattr(original, "gate_up_proj"):
        gate_up = Linear.joined(original.gate_up_proj)
    else:
        gate_up = Linear.joined(
            _part(original, "the MLP", "gate_proj"), _part(original, "the MLP", "up_proj")
        )
    mlp = SwigluMlp(gate_up, Linear.joined(down))
    x = torch.randn(_BATCH, _NEW, gate_up.weight.shape[0])
    worst = 0.0
    for spread in (0.1, 3.0):
        scaled = spread_to(x, gate_up(x), spread)
        worst = max(worst, compare(original(scaled), mlp(scaled), "MLP output"))
    return mlp, worst


def _proven_experts(original: Any, site: str) -> DenseExperts:
    dense = DenseExperts(
        _part(original, f"{site}.experts", "gate_up_proj").detach(),
        _part(original, f"{site}.experts", "down_proj").detach(),
        _part(original, f"{site}.experts", "act_fn"),
    )
    count, size = dense.gate_up.shape[:2]
    x = torch.randn(_BATCH * _NEW, size)
    x = spread_to(x, torch.matmul(x, dense.gate_up), 2.0)
    chosen = torch.rand(len(x), count).argsort(dim=-1)[:, : max(1, count // 2)]
    weights = torch.rand(chosen.shape)
    compare(original(x, chosen, weights), dense(x, chosen, weights), f"{site}.experts: output")
    return dense


def _attention_of(original: Any, window: int | None, rotary_mode: str | None) -> Attention:
    head_size = int(_part(original, "attention", "head_dim"))
    out = _part(original, "attention", "o_proj")
    heads = out.in_features // head_size
    if hasattr(original, "qkv_proj"):
        qkv = Linear.joined(original.qkv_proj)
    else:
        parts = [_part(original, "attention", f"{n}_proj") for n in "qkv"]
        qkv = Linear.joined(*parts)
    kv_heads = (qkv.weight.shape[1] // head_size - heads) // 2
    if kv_heads < 1 or heads % kv_heads:
        raise NotProven(f"expected heads in groups, got {heads} heads of size {head_size}")
    norms = [getattr(original, name, None) for name in ("q_norm", "k_norm")]
    q_norm, k_norm = (None if norm is None else _proven_norm(norm)[0] for norm in norms)
    return Attention(
        qkv,
        Linear.joined(out),
        heads=heads,
        kv_heads=kv_heads,
        scale=float(getattr(original, "scaling", head_size**-0.5)),
        window=window,
        rotary_mode=rotary_mode,
        q_norm=q_norm,
        k_norm=k_norm,
    )
