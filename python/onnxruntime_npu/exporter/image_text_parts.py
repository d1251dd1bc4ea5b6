"""The three graphs of a model that answers about an image, and their proof.

The division is that of onnxruntime-genai: an image becomes features, tokens and features become
embeddings, embeddings become logits. Shapes: B batch, S new tokens, T past and new tokens, F
features of images, H the size of an embedding.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from .caches.interface import BATCH, NEW, PAST
from .caches.step import State
from .convolved_padding import ConvolvedPadding
from .embeddings import Embeddings
from .images import ImagePart
from .images.position_proof import borders_of
from .model_cache import cached_by, keys_and_values, state_tensors
from .proof import compare
from .recurrences import Recurrences
from .replaced_functions import ReplacedFunctions
from .token_embedding import TokenEmbedding, per_layer_inputs
from .token_kinds import KINDS, TokenKinds

# Tokens that the proof decodes after the prompt. The first is the last one of an image: if others
# of the image see it, their logits differ.
_DECODED = 2
_BEFORE, _AFTER = 2, 1  # tokens of the proof's row around an image
_TEXT = 6  # tokens of its row without an image
_ADD_STACKED = "_deepstack_process"  # a method: adds features to the states of some tokens


class AnyText(Protocol):
    """The text with any kind of cache, as it is proven."""

    kinds: list[str]

    def first_cache(self, batch: int, tokens: int) -> list[torch.Tensor]:
        """Return the cache before the first of ``tokens``, and states."""

    def step(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        kinds: list[torch.Tensor],
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return logits [B, 1, V] and the cache after a step, for rows padded on the left.

        embeds: [B, S, ..]; mask: [B, T]; positions: [.., B, S]; kinds: [B, T] each.
        """


class EmbeddingPart(nn.Module):
    """Tokens to embeddings, with features in the places of image tokens."""

    _shown: torch.Tensor  # [tokens, H], what stands for those around images
    input_names = ("input_ids", "image_features")
    output_names = ("inputs_embeds",)

    def __init__(self, model: Any, stacked: int) -> None:
        """Take the number of layers of the text that take features, too.

        As in Ovis 2, a model may have tokens around images that stand for rows of a table, if there
        is any image.
        """
        super().__init__()
        self.tokens = TokenEmbedding(model)
        self.kinds = TokenKinds(model)
        self.image_token = self.kinds.image_token
        self.featured = self.tokens.size * (1 + stacked)
        self.size = self.featured + self.tokens.of_layers
        self._indicators = [*getattr(model.base_model, "visual_indicator_token_ids", ())]
        if self._indicators:
            rows = model.base_model.visual_embeddings_table.weight[-len(self._indicators) :]
            self.register_buffer("_shown", rows.detach().float().clone())

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return embeddings [B, S, H] in float32 for input_ids [B, S] and image_features [F, H].

        Features replace image tokens row by row, in their order; if F is 0, none is replaced.
        Embeddings of the layers follow, which have no features.
        """
        input_ids, image_features = inputs
        tokens = self.tokens(input_ids)
        own = self.tokens.size
        embedded = nn.functional.pad(tokens[..., :own], (0, self.featured - own))
        any_features = image_features.new_ones(image_features.shape[0]).sum() > 0
        shown = (input_ids == self.image_token) & any_features
        # A row that no image token has comes first: there must be one to gather without features.
        features = torch.cat([image_features.new_zeros(1, self.featured), image_features])
        places = shown.flatten().cumsum(0).view_as(input_ids) * shown
        embedded = torch.where(shown[..., None], features[places], embedded)
        for place, token in enumerate(self._indicators):
            around = ((input_ids == token) & any_features)[..., None]
            embedded = torch.where(around, self._shown[place], embedded)
        return torch.cat([embedded, tokens[..., own:]], -1) if self.tokens.of_layers else embedded

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the tokens."""
        return self.kinds.metadata()

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        return torch.zeros((BATCH, NEW), dtype=torch.int64), torch.zeros(PAST, self.featured)

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        return {
            "input_ids": ("batch", "sequence"),
            "image_features": ("features", self.featured),
            "inputs_embeds": ("batch", "sequence", self.size),
        }


class TextPart(nn.Module):
    """Embeddings to logits, over a cache that grows, and states of layers that have them."""

    def __init__(
        self,
        model: Any,
        functions: ReplacedFunctions,
        recurrences: Recurrences,
        images: ImagePart,
        embedding: EmbeddingPart,
    ) -> None:
        """Take what is replaced, and what makes features of images and embeddings of tokens."""
        super().__init__()
        self.model = model
        self.functions = functions
        self.recurrences = recurrences
        self._convolved_padding = ConvolvedPadding()
        self.embeddings = Embeddings.of(embedding)
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])
        if images.stacked:
            functions.add(
                model.get_decoder(), _ADD_STACKED, lambda hidden, _, added: hidden + added
            )
        self._token_kinds = embedding.kinds
        self.kinds = [KINDS] if self._token_kinds.taken else []
        self.axes = images.axes
        with functions.replaced():
            self.cached = cached_by(model, summed=recurrences.replaced)

    @property
    def states(self) -> list[State]:
        """Those that layers keep in the place of earlier tokens."""
        return self.cached.states

    def _names(self, prefix: str) -> list[str]:
        cached = [f"{i}.{kind}" for i in self.cached.attending for kind in ("key", "value")]
        return [f"{prefix}.{name}" for name in [*cached, *(state.name for state in self.states)]]

    @property
    def input_names(self) -> list[str]:
        """Names of the graph inputs, in order."""
        leading = ["inputs_embeds", "attention_mask", "position_ids"]
        return [*leading, *self.kinds, *self._names("past_key_values")]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs, in order."""
        return ["logits", *self._names("present")]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return logits [B, 1, V] of each row's last token in float32, and the cache.

        ``inputs``: inputs_embeds [B, S, H] in float32, attention_mask [B, T], position_ids [B, S],
        or [3, B, S] of a model that takes patches, token_type_ids [B, T] if the model tells tokens
        apart, past keys and values [B, N, T - S, D] of every layer that
        attends, and states [B, ..].
        """
        embeds, mask, positions, *others = inputs
        kinds, past = others[: len(self.kinds)], others[len(self.kinds) :]
        split = 2 * len(self.cached.sizes)
        pairs = list(zip(past[:split:2], past[1:split:2], strict=True))
        logits, cache = self._logits(embeds, mask, positions, kinds, pairs, past[split:])
        present = keys_and_values(cache, self.cached.kinds)
        return (
            logits[:, -1:].float(),
            *(tensor for layer in present for tensor in (layer.key, layer.value)),
            *state_tensors(cache, self.states),
        )

    def _logits(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        kinds: list[torch.Tensor],
        past: list[tuple[torch.Tensor, torch.Tensor]],
        states: list[torch.Tensor],
    ) -> tuple[torch.Tensor, Any]:
        from .state_layers import growing_cache

        kept = past, states, self.recurrences, mask, self._convolved_padding
        with (
            self.functions.replaced(),
            growing_cache(self.model, self.cached, *kept) as cache,
            self.embeddings.given(self.model, embeds) as options,
        ):
            if kinds:
                options |= self._token_kinds.options(kinds[0], embeds.shape[1])
            # Kinds say which tokens are of the prompt, of this step and of earlier ones.
            cache.begins = self._token_kinds.generated > 0
            logits = self.model(
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
                **options,
            ).logits
        return logits, cache

    @property
    def _dtype(self) -> torch.dtype:
        return self.model.get_input_embeddings().weight.dtype

    def empty_cache(self, batch: int, length: int) -> list[torch.Tensor]:
        """Return zeroed keys and values of ``length`` tokens for every layer, and states."""
        cached = [
            torch.zeros((batch, sizes.heads, length, size), dtype=self._dtype)
            for sizes in self.cached.sizes
            for size in (sizes.key, sizes.value)
        ]
        states = [
            torch.zeros((batch, *state.shape), dtype=state.dtype(self._dtype))
            for state in self.states
        ]
        return [*cached, *states]

    def first_cache(self, batch: int, tokens: int) -> list[torch.Tensor]:
        """Return the cache before the first of ``tokens``, which is empty, and states."""
        del tokens  # it grows
        return self.empty_cache(batch, 0)

    def step(
        self,
        embeds: torch.Tensor,
        mask: torch.Tensor,
        positions: torch.Tensor,
        kinds: list[torch.Tensor],
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Return what ``forward`` does of rows that are padded on the left."""
        result: tuple[torch.Tensor, ...] = self(embeds, mask, positions, *kinds, *past)
        return result

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        total = PAST + NEW
        mask = torch.ones(BATCH, total, dtype=torch.int64)
        positions = torch.arange(PAST, total).repeat(*self.axes, BATCH, 1)
        embeds = torch.zeros(BATCH, NEW, self.embeddings.size)
        kinds = [torch.zeros_like(mask) for _ in self.kinds]
        return (embeds, mask, positions, *kinds, *self.empty_cache(BATCH, PAST))

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        shapes: dict[str, tuple[str | int, ...]] = {
            "inputs_embeds": ("batch", "sequence", self.embeddings.size),
            "attention_mask": ("batch", "total"),
            "position_ids": (*self.axes, "batch", "sequence"),
            **{name: ("batch", "total") for name in self.kinds},
            "logits": ("batch", 1, self.vocabulary),
        }
        for i, sizes in zip(self.cached.attending, self.cached.sizes, strict=True):
            for kind, size in (("key", sizes.key), ("value", sizes.value)):
                shapes[f"past_key_values.{i}.{kind}"] = ("batch", sizes.heads, "past", size)
                shapes[f"present.{i}.{kind}"] = ("batch", sizes.heads, "total", size)
        for state in self.states:
            for prefix in ("past_key_values", "present"):
                shapes[f"{prefix}.{state.name}"] = ("batch", *state.shape)
        return shapes


class ImageTextProbe:
    """A row with an image and a padded row without, and the original's logits for them."""

    def __init__(
        self, model: Any, text_model: Any, images: ImagePart, embedding: EmbeddingPart
    ) -> None:
        """Run the model with an image, and ``text_model``, which is it or a part, without."""
        generator = torch.Generator().manual_seed(7)
        self._image = images.example()
        self._features = images(*self._image)
        vocabulary = model.get_input_embeddings().weight.shape[0]
        self._kinds = embedding.kinds
        token = embedding.image_token

        def text(count: int) -> torch.Tensor:
            ids = torch.randint(0, vocabulary - 1, (count,), generator=generator)
            return ids + (ids >= token)  # any but the image token

        places = torch.full((len(self._features),), token)
        self._rows = [torch.cat([text(_BEFORE), places, text(_AFTER)]), text(_TEXT)]
        if self._kinds.joined:  # an image is in the prompt as a whole
            self._rows[0] = torch.cat([self._rows[0], text(_DECODED - _AFTER)])
        before, after = borders_of(model)
        if others := self._kinds.tokens[1:] or [*before, *after]:  # in the places around an image
            self._rows[0][_BEFORE - 1], self._rows[0][-1] = others[0], others[1]
        self._expected = []
        self._given = images.as_given([self._image])
        for row, image in zip(self._rows, (self._given, {}), strict=True):
            told = self._kinds.told(row[None], _DECODED)
            tokens = {"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]}
            if images.obstacle:
                embedded = embedding(row[None], self._features).to(model.dtype)
                embeds, of_layers = embedded.split(
                    [embedding.featured, embedding.tokens.of_layers], -1
                )
                del tokens["input_ids"]
                tokens |= {"inputs_embeds": embeds, **per_layer_inputs(model, of_layers)}
            run = model if image else text_model
            result = run(**tokens, use_cache=False, **told, **image)
            self._expected.append(result.logits[0, -1 - _DECODED :])

    def check(self, images: ImagePart, embedding: EmbeddingPart, text: AnyText) -> None:
        """Compare the prompt's logits and those of single steps; raises NotProven."""
        longest = max(map(len, self._rows))
        padding = [longest - len(row) for row in self._rows]
        ids = torch.stack(
            [nn.functional.pad(r, (p, 0)) for r, p in zip(self._rows, padding, strict=True)]
        )
        mask = torch.stack([torch.arange(longest) >= p for p in padding]).long()
        positions = images.positions(ids, mask, self._given)
        past = text.first_cache(*ids.shape)
        features = images(*self._image)
        used = 0
        collected, start = [], 0
        for end in range(longest - _DECODED, longest + 1):
            step = slice(start, end)
            shown = used + int((ids[:, step] == embedding.image_token).sum())
            embeds = embedding(ids[:, step], features[used:shown])
            used = shown
            generated = end - longest + _DECODED
            kinds = [self._kinds.of(ids[:, :end], generated) for _ in text.kinds]
            logits, *past = text.step(embeds, mask[:, :end], positions[..., step], kinds, past)
            collected.append(logits)
            start = end
        for row, expected in enumerate(self._expected):
            actual = torch.cat(collected, 1)[row]
            compare(expected.float(), actual, f"logits of the whole model, row {row}")
