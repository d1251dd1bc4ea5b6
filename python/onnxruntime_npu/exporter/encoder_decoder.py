"""The two graphs of an encoder-decoder model, by its own forward pass, and their proof.

The encoder also computes the keys and values that the decoder's layers attend to, so that a step of
the decoder reads them instead of projecting the whole source again. Shapes: B batch, P source
positions, S new tokens, T past and new tokens, N heads and D head size of a layer's attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from .encoder import Encoder
from .model_cache import ATTENDING, filled_cache
from .pooling import Pooling
from .proof import NotProven, compare

# Sizes to trace with: all different, and not 0 or 1, which torch would treat as constants.
_PAST, _NEW = 3, 5
_STEPS = (4, 1, 1)  # tokens of a prompt, then one by one

CachedPairs = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of every layer


class AttentionSizes(NamedTuple):
    """Heads of one decoder layer, and their sizes: over its tokens, and over the source."""

    own: tuple[int, int, int]  # heads, size of a key, size of a value
    cross: tuple[int, int, int]


class EncoderPart(nn.Module):
    """Source to hidden states and, for each decoder layer, the keys and values of them."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.encoder = Encoder(encoder_of(model), Pooling("none", normalize=False))
        own, cross = self._attended(self.encoder.hidden(*self.encoder.example()))
        self.sizes = [
            AttentionSizes(_sizes(*o), _sizes(*c)) for o, c in zip(own, cross, strict=True)
        ]

    @property
    def input_names(self) -> list[str]:
        """Names of the graph inputs, in order."""
        return self.encoder.input_names

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs, in order."""
        return ["last_hidden_state", *names("present", "encoder", len(self.sizes))]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return last_hidden_state [B, P, H] in float32 and [B, N, P, D] of every layer."""
        hidden = self.encoder.hidden(*inputs)
        cross = self._attended(hidden)[1]
        return hidden.float(), *(tensor for pair in cross for tensor in pair)

    def _attended(self, hidden: torch.Tensor) -> tuple[CachedPairs, CachedPairs]:
        """Return the keys and values that the decoder makes of one token, and of the source."""
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache

        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # Only the projections of the source become part of the graph: nothing reads the rest.
        self.model(
            encoder_outputs=self.encoder.output_type(last_hidden_state=hidden),
            decoder_input_ids=torch.zeros((hidden.shape[0], 1), dtype=torch.int64),
            past_key_values=cache,
            use_cache=True,
        )
        return _pairs(cache.self_attention_cache), _pairs(cache.cross_attention_cache)

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with; the last row of a text is padded."""
        return self.encoder.example()

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        shapes = self.encoder.dimensions()
        positions = shapes["last_hidden_state"][1]
        for i, layer in enumerate(self.sizes):
            heads, key, value = layer.cross
            shapes[f"present.{i}.encoder.key"] = ("batch", heads, positions, key)
            shapes[f"present.{i}.encoder.value"] = ("batch", heads, positions, value)
        return shapes


class DecoderPart(nn.Module):
    """New tokens to logits, over a cache that grows and the keys and values of the source."""

    cache_position: tuple[str, ...] = ()  # the input of positions, if there is one

    def __init__(self, encoder: EncoderPart, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary  # number of tokens that are scored
        self.model = encoder.model
        self.sizes = encoder.sizes
        self.masked = encoder.encoder.is_masked  # rows of the source may be padded
        self.masked_axis = "frames" if encoder.encoder.is_framed else "source"
        self.output_type = encoder.encoder.output_type

    @property
    def input_names(self) -> list[str]:
        """Names of the graph inputs, in order."""
        mask = ["encoder_attention_mask"] if self.masked else []
        own, cross = (names("past_key_values", w, len(self.sizes)) for w in ("decoder", "encoder"))
        return ["input_ids", *self.cache_position, *mask, *own, *cross]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs, in order."""
        return ["logits", *names("present", "decoder", len(self.sizes))]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return logits [B, S, V] in float32 and the cached keys and values of every layer.

        ``inputs``: input_ids [B, S]; cache_position [S] of a static cache; encoder_attention_mask
        [B, P] if ``masked``; keys and values of every layer, first those of own tokens
        [B, N, T - S, D], of a static cache [B, N, C, D], then those of the source [B, N, P, D].
        """
        ids, *given = inputs
        positions = tuple(given.pop(0) for _ in self.cache_position)
        mask = given.pop(0) if self.masked else None
        half = 2 * len(self.sizes)
        own, cross = (
            list(zip(of[0::2], of[1::2], strict=True)) for of in (given[:half], given[half:])
        )
        logits, present = self._decode(ids, positions, mask, own, cross)
        return logits, *(tensor for pair in present for tensor in pair)

    def _decode(
        self,
        input_ids: torch.Tensor,
        positions: tuple[torch.Tensor, ...],
        mask: torch.Tensor | None,
        own: CachedPairs,
        cross: CachedPairs,
    ) -> tuple[torch.Tensor, CachedPairs]:
        """Return logits and the cached keys and values after the step."""
        del positions  # they follow from the length of the cache
        cache = filled_cache([ATTENDING] * len(own), own)
        return self._logits(input_ids, mask, cache, cross), _pairs(cache)

    def _logits(
        self,
        input_ids: torch.Tensor,
        mask: torch.Tensor | None,
        own: Any,
        cross: CachedPairs,
        own_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the model with a cache of own tokens, and a mask of them if it is not its own."""
        from transformers.cache_utils import EncoderDecoderCache

        source = cross[0][0]
        cache = EncoderDecoderCache(own, filled_cache([ATTENDING] * len(cross), cross))
        cache.is_updated = dict.fromkeys(range(len(self.sizes)), True)
        return self.model(
            # Only the shape is read: the layers find their keys and values in the cache.
            encoder_outputs=self.output_type(
                last_hidden_state=source.new_zeros(1, 1, 1).expand(
                    source.shape[0], source.shape[2], 1
                )
            ),
            attention_mask=mask,
            decoder_input_ids=input_ids,
            decoder_attention_mask=own_mask,
            past_key_values=cache,
            use_cache=True,
        ).logits.float()

    def first_cache(self, batch: int, tokens: int) -> list[torch.Tensor]:
        """Return the cache before the first of ``tokens``, which is empty."""
        del tokens  # it grows
        return self.empty_cache(batch, 0)

    def empty_cache(self, batch: int, length: int) -> list[torch.Tensor]:
        """Return zeroed keys and values of ``length`` tokens for every layer."""
        dtype = self.model.get_input_embeddings().weight.dtype
        return [
            torch.zeros((batch, heads, length, size), dtype=dtype)
            for heads, key, value in (layer.own for layer in self.sizes)
            for size in (key, value)
        ]

    def example(
        self, source: tuple[torch.Tensor, ...], encoded: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with, for what the encoder part takes and returns."""
        batch = source[0].shape[0]
        mask = [source[1]] if self.masked else []
        ids = torch.zeros((batch, _NEW), dtype=torch.int64)
        return (ids, *mask, *self.empty_cache(batch, _PAST), *encoded[1:])

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        shapes: dict[str, tuple[str | int, ...]] = {
            "input_ids": ("batch", "sequence"),
            "encoder_attention_mask": ("batch", self.masked_axis),
            "logits": ("batch", "sequence", self.vocabulary),
        }
        for i, layer in enumerate(self.sizes):
            for of, prefix, tokens in (
                ("decoder", "past_key_values", "past"),
                ("decoder", "present", "total"),
                ("encoder", "past_key_values", "source"),
            ):
                heads, key, value = layer.own if of == "decoder" else layer.cross
                shapes[f"{prefix}.{i}.{of}.key"] = ("batch", heads, tokens, key)
                shapes[f"{prefix}.{i}.{of}.value"] = ("batch", heads, tokens, value)
        return shapes


class EncoderDecoderProbe:
    """Random sources and tokens, and the original's logits for them."""

    def __init__(self, encoder: EncoderPart) -> None:
        generator = torch.Generator().manual_seed(7)
        self._source = encoder.example()
        batch, tokens = self._source[0].shape[0], sum(_STEPS)
        # Those of a source may be others, as FSMT's.
        embeddings = (encoder.model.get_input_embeddings(), encoder.model.get_output_embeddings())
        vocabulary = min(each.weight.shape[0] for each in embeddings)
        ids = torch.randint(0, vocabulary, (batch, tokens), generator=generator)
        # Some models number the tokens that are not padding.
        pad = getattr(encoder.model.config, "pad_token_id", None)
        self._ids = ids if pad is None else torch.where(ids == pad, (ids + 1) % vocabulary, ids)
        given = dict(zip(encoder.input_names, self._source, strict=True))
        self._expected = encoder.model(decoder_input_ids=self._ids, use_cache=False, **given).logits

    def check(self, encoder: EncoderPart, decoder: DecoderPart) -> None:
        """Compare the prompt's logits and those of single steps; raises NotProven."""
        _, *cross = encoder(*self._source)
        mask = [self._source[1]] if decoder.masked else []
        past = decoder.first_cache(*self._ids.shape)
        collected = []
        numbers = torch.arange(self._ids.shape[1]).split(list(_STEPS))
        for ids, positions in zip(self._ids.split(list(_STEPS), 1), numbers, strict=True):
            given = [positions] if decoder.cache_position else []
            logits, *past = decoder(ids, *given, *mask, *past, *cross)
            collected.append(logits)
        compare(self._expected, torch.cat(collected, 1), "logits of the whole model")


def encoder_of(model: Any) -> Any:
    """Return a model's encoder; one that is a plain module, as FSMT's, gets what others have."""
    encoder = model.get_encoder()
    if not hasattr(encoder, "config"):
        encoder.config, encoder.main_input_name = model.config, model.main_input_name
        encoder.get_input_embeddings = model.get_input_embeddings
    return encoder


def names(prefix: str, of: str, layers: int) -> list[str]:
    """Return the names of keys and values of every layer, as optimum has them."""
    return [f"{prefix}.{i}.{of}.{kind}" for i in range(layers) for kind in ("key", "value")]


def _pairs(cache: Any) -> CachedPairs:
    found = [(layer.keys, layer.values) for layer in cache.layers]
    if not found or any(key is None or key.dim() != 4 for key, _ in found):
        raise NotProven("expected a cache of keys [B, N, T, D] in every decoder layer")
    return found


def _sizes(key: torch.Tensor, value: torch.Tensor) -> tuple[int, int, int]:
    return key.shape[1], key.shape[3], value.shape[3]
