"""Generates text about images: features of each image, then one step per token.

Keys and values stay on the device between steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import onnxruntime as ort

from ..errors import ArgumentError
from ..sampling import Sampler
from .decoding import open_with_graphs, refuse_graphs_of_growing_caches, without_graphs
from .exported import Exported
from .growing_cache import PAST, PRESENT, GrowingCache, zeros
from .image_prompt import opened, prepared, processor_of
from .images import images_of
from .images.features import Prompt
from .images.states import Seen, States
from .kept_buffers import KeptBuffers
from .loop import Generation, checked_count, checked_room, chooser, run
from .static_rows import EMBEDS, LENGTHS, POSITIONS, StaticRows, capacity_of
from .text_stream import TextStream

VISION, EMBEDDING, TEXT = "vision.onnx", "embedding.onnx", "text.onnx"
_OF_IMAGES = ".encoder."  # in the names of keys and values of images
_KINDS = "token_type_ids"  # an input of the text that tells tokens apart
# Of a processor, and what tokens say, too.
_COMPUTED = (_KINDS, "mm_token_type_ids", "moe_mm_token_type_ids")


class ImageTextLM(Exported):
    """A model of images and text, ready to generate text.

    Exported to a directory by ``export_image_text_to_text``.
    """

    _main = TEXT

    def _load(self) -> None:
        self.embedding = self._open(EMBEDDING)
        static = self.report["parts"][TEXT].get("cache") == "static"
        opened = open_with_graphs(
            str(self.directory / TEXT), self._session_options, self.providers, static
        )
        # Whether a step of one token is captured and replayed.
        self.text, self.graphs = opened
        if self.graphs and not static:
            refuse_graphs_of_growing_caches()
        self.kept: KeptBuffers[StaticRows] = KeptBuffers()
        # Without it, features of images are given.
        own = (self.directory / VISION).is_file()
        metadata = self.embedding.get_modelmeta().custom_metadata_map
        self.images = images_of(metadata, self._open(VISION) if own else None)
        self.tokens_per_image = self.images.tokens_per_image  # if all have the same number
        self.image_token = int(metadata["image_token_id"])
        self.tokens_of_images = [int(token) for token in metadata["image_token_ids"].split()]
        self.generated_kind = int(metadata["generated_kind"])
        taken = [x for x in self.embedding.get_inputs() if x.name == "image_features"]
        self._no_features = np.empty((0, taken[0].shape[1] if taken else 0), np.float32)
        self._static = any(x.name == LENGTHS for x in self.text.get_inputs())
        logits = next(o for o in self.text.get_outputs() if o.name == "logits")
        self.vocabulary = int(logits.shape[-1])
        limit = self.config.get("text_config", {}).get("max_position_embeddings")
        self.context_length = limit if isinstance(limit, int) else 2**31

    def _open(self, name: str) -> ort.InferenceSession:
        path, providers = str(self.directory / name), without_graphs(self.providers)
        return ort.InferenceSession(path, self._session_options, providers=providers)

    @functools.cached_property
    def processor(self) -> Any:
        """The processor of images and text; ArgumentError when the directory has none."""
        return processor_of(self.directory)

    def generate(
        self,
        prompt: str,
        images: Any = (),
        *,
        max_new_tokens: int = 256,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        chat: bool = True,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        """Answer a text about images.

        Args:
            prompt: text that follows the images.
            images: one image or several, each an image of Pillow or the path of a file.
            max_new_tokens: max number of tokens to generate.
            sampler: chooses tokens, as that of ``generate_from``; default: greedy.
            chat: put the prompt through the processor's chat template, if it has one.
            on_text: called with each new piece of text.

        Raises ArgumentError for a directory without a processor, files that hold no image, and a
        prompt that fills the model's context.
        """
        given = prepared(self.processor, prompt, opened(images), chat=chat)
        tokenizer = self.processor.tokenizer
        stream = TextStream(tokenizer, on_text) if on_text else None
        result = self.generate_from(
            **given,
            max_new_tokens=max_new_tokens,
            sampler=sampler,
            on_tokens=stream.put if stream else None,
        )
        if stream:
            stream.end()
        result.texts = [tokenizer.decode(t, skip_special_tokens=True) for t in result.tokens]
        return result

    def generate_from(
        self,
        input_ids: np.ndarray,
        *,
        attention_mask: np.ndarray | None = None,
        max_new_tokens: int = 256,
        sampler: Sampler | Callable[[np.ndarray], np.ndarray] | None = None,
        on_tokens: Callable[[list[int | None]], None] | None = None,
        **images: np.ndarray | None,
    ) -> Generation:
        """Continue what a processor of transformers returns.

        Args:
            input_ids: [B, S] integers; each image has its tokens, rows are padded on the left.
            attention_mask: [B, S] integers, 0 where a row is padded; default: no padding.
            max_new_tokens: max number of tokens to generate for each row.
            sampler: chooses tokens; default: greedy. A Sampler runs on the device; a function gets
                logits [B, V] on the host and returns tokens [B].
            on_tokens: gets the new token of every row after each step, None for a finished row.
            **images: what the model's processor returns of images, in the order of their tokens:

                - of images of one size: pixel_values [images, C, height, width] float32, or
                  [B, images, C, height, width], in which images of zeros are padding;
                - of images of any size: pixel_values [images, C, height, width], padded below and
                  on the right, and image_sizes [images, 2] integers, height and width;
                - of padded images of any size: pixel_values [B, images, C, height, width], in which
                  images of zeros are padding, and pixel_attention_mask [B, images, height, width],
                  1 for an image's pixels;
                - of images as tiles: pixel_values [images, tiles, C, height, width], image_sizes,
                  and batch_num_images [B] where the processor has it;
                - of patches: pixel_values [patches, values] or [patches, C, height, width] of all
                  images and image_grid_thw [images, 3] integers, 1 and the rows and columns of
                  patches of each, and image_merge_sizes [images] where the processor has it;
                  where videos are taken, also pixel_values_videos [patches, values] of all videos,
                  video_grid_thw [videos, 3] integers, the times and the rows and columns of
                  patches, and second_per_grid_ts [videos], seconds between times, by default 1;
                - of padded patches: pixel_values [images, patches, values], spatial_shapes
                  [images, 2] integers, rows and columns of patches, and pixel_attention_mask
                  [images, patches] integers, 1 for the first rows * columns ones;
                - of padded patches with places: pixel_values [images, patches, values] and
                  image_position_ids [images, patches, 2] integers, the column and the row of each
                  patch, row by row, -1 for padding;
                - of images that layers of the text attend to: pixel_values [B, images, tiles, C,
                  height, width], aspect_ratio_ids [B, images], aspect_ratio_mask [B, images, tiles]
                  and cross_attention_mask [B, S, images, tiles] integers;
                - where features are not exported: image_features [F, H] float32 of all images, and
                  position_ids [3, B, S] integers where images are grids.

        Raises ArgumentError for wrong inputs, and rows that fill the model's context.
        """
        count = checked_count(max_new_tokens)
        ids = _integers("input_ids", input_ids)
        mask = np.ones_like(ids) if attention_mask is None else attention_mask
        mask = _integers("attention_mask", mask)
        if mask.shape != ids.shape or not mask[:, -1].all():
            raise ArgumentError(
                f"expected attention_mask of shape {list(ids.shape)} with padding on the left, got "
                f"{list(mask.shape)}"
            )
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            raise ArgumentError(
                f"expected tokens from 0 to {self.vocabulary - 1}, got {ids.min()} to {ids.max()}"
            )
        budget = min(count, checked_room(ids.shape[1], self.context_length))
        prompt = Prompt(ids, mask, self.image_token)
        given = self._given(images)
        shown = self.images.shown(prompt, given)
        found = self.images.features(prompt, given)
        features = np.concatenate([self._no_features, *found])
        positions = self.images.positions(prompt, given)
        states = self.images if isinstance(self.images, States) else None
        image_tokens = int((shown == self.image_token).sum())
        if states is None and len(features) != image_tokens:
            raise ArgumentError(
                f"expected {len(features)} image tokens for {len(found)} images, got {image_tokens}"
            )
        choose = chooser(Sampler() if sampler is None else sampler, lambda: self._sampling)
        rows = [row[keep != 0].tolist() for row, keep in zip(ids, mask, strict=True)]
        length = ids.shape[1] + budget
        stepper = (_StaticStepper if self._static else _Stepper)(
            self, shown, mask, features, positions, length
        )
        if states is not None:
            stepper.see(states.seen(prompt, given, self.device), states.places)
        with closing(stepper) as state:
            return run(state, choose, rows, budget, self.stop_tokens, on_tokens)

    def take_rows(self, batch: int, length: int) -> StaticRows:
        """Return buffers for a batch whose rows grow to at most ``length`` tokens."""
        shape = batch, capacity_of(length)
        rows = self.kept.take(
            lambda kept: kept.shape == shape,
            lambda number: StaticRows(
                self.text, self.device, *shape, number if self.graphs else None
            ),
        )
        rows.restart()
        return rows

    def _given(self, images: Mapping[str, np.ndarray | None]) -> dict[str, np.ndarray]:
        """Return the arguments that there are; ArgumentError for those of another kind."""
        taken = self.images.names
        found = {name: value for name, value in images.items() if value is not None}
        if other := sorted(set(found) - {*taken, *_COMPUTED}):
            raise ArgumentError(
                f"expected {' and '.join(taken)} of images, as the model takes them, got "
                f"{', '.join(other)}"
            )
        return {name: found[name] for name in taken if name in found}


class _Stepper:
    """The state of one batch, whose cache grows by one token per step."""

    def __init__(
        self,
        model: ImageTextLM,
        ids: np.ndarray,
        mask: np.ndarray,
        features: np.ndarray,
        positions: tuple[np.ndarray, np.ndarray] | None,
        length: int,
    ) -> None:
        """Take a prompt, and the most tokens of a row."""
        self._model = model
        self._ids, self._mask, self._features = ids, mask, features
        # Those of the prompt [3, B, S] and the next ones [B], if they do not follow from the mask.
        self._positions = positions
        self._kinds = np.isin(ids, model.tokens_of_images).astype(np.int64)
        self._takes_kinds = any(x.name == _KINDS for x in model.text.get_inputs())
        self._cache: Any = self._new_cache(length)
        self._seen: dict[str, np.ndarray | ort.OrtValue] = {}
        self._shown: np.ndarray | None = None  # tiles of images, by tokens, of the next step

    def see(self, seen: Seen, places: int) -> None:
        """Let layers of the text attend to images, each of which has so many places."""
        of_images = [x for x in self._model.text.get_inputs() if _OF_IMAGES in x.name]
        kept: dict[str, Any] = {
            x.name: seen.kept[x.name.replace(PAST, PRESENT)]
            if seen.kept
            else zeros([len(self._ids), int(x.shape[1]), places, int(x.shape[3])], x.type)
            for x in of_images
        }
        count = np.array([bool(seen.kept)], np.int64)
        self._seen, self._shown = {"images": count, **kept}, seen.shown

    def _new_cache(self, length: int) -> Any:
        del length  # it grows
        return GrowingCache(self._model.text, self._model.device, len(self._ids), but=_OF_IMAGES)

    def prefill(self) -> ort.OrtValue:
        return self._step(self._ids, self._features)

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        self._mask = np.pad(self._mask, ((0, 0), (0, 1)), constant_values=1)
        new = self._model.generated_kind
        self._kinds = np.pad(self._kinds, ((0, 0), (0, 1)), constant_values=new)
        return self._step(np.ascontiguousarray(tokens[:, None]), self._model._no_features)

    def close(self) -> None:
        self._cache.clear()

    def _step(self, ids: np.ndarray, features: np.ndarray) -> ort.OrtValue:
        logits: ort.OrtValue = self._cache.step(
            {
                "inputs_embeds": self._embedded(ids, features),
                "attention_mask": self._mask,
                "position_ids": self._next_positions(ids.shape[1]),
                **({_KINDS: self._kinds} if self._takes_kinds else {}),
                **self._next_seen(),
            }
        )
        return logits

    def _next_seen(self) -> dict[str, np.ndarray | ort.OrtValue]:
        """Return what the next step takes of images; later tokens see what the last one does."""
        if self._shown is None:
            return {}
        shown, self._shown = self._shown, self._shown[:, -1:]
        return {**self._seen, "cross_attention_mask": shown}

    def _embedded(
        self, ids: np.ndarray, features: np.ndarray, into: ort.OrtValue | None = None
    ) -> ort.OrtValue:
        """Return embeddings on the device, in a buffer if one is given."""
        model = self._model
        embedding = model.embedding.io_binding()
        embedding.bind_cpu_input("input_ids", ids)
        if features.shape[1]:
            embedding.bind_cpu_input("image_features", features)
        if into is None:
            embedding.bind_output(EMBEDS, *model.device)
        else:
            embedding.bind_ortvalue_output(EMBEDS, into)
        model.embedding.run_with_iobinding(embedding)
        return embedding.get_outputs()[0]

    def _next_positions(self, count: int) -> np.ndarray:
        if self._positions is None:
            return np.maximum(self._mask.cumsum(axis=1) - 1, 0)[:, -count:]
        positions, following = self._positions
        # After the prompt, each token is one of text, wherever an image ended.
        self._positions = np.tile(following[:, None], (3, 1, 1)), following + 1
        return positions


class _StaticStepper(_Stepper):
    """The state of one batch whose cache is preallocated: padding comes behind a row's tokens."""

    def _new_cache(self, length: int) -> StaticRows:
        lengths = self._mask.sum(axis=1)
        count = self._ids.shape[1]
        order = (np.arange(count) - lengths[:, None]) % count
        self._ids = np.take_along_axis(self._ids, order, 1)
        if self._positions is not None:
            positions, following = self._positions
            self._positions = np.take_along_axis(positions, order[None], 2), following
        return self._model.take_rows(len(self._ids), length)

    def close(self) -> None:
        self._model.kept.give_back(self._cache)

    def prefill(self) -> ort.OrtValue:
        return self._step_of(self._ids, self._features, self._mask.sum(axis=1))

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        ids, none = np.ascontiguousarray(tokens[:, None]), self._model._no_features
        rows: StaticRows = self._cache
        if rows.embeds is None:
            return self._step_of(ids, none, np.ones(len(ids), np.int64))
        self._embedded(ids, none, rows.embeds)
        return rows.replay(None if self._positions is None else self._next_positions(1))

    def _step_of(self, ids: np.ndarray, features: np.ndarray, lengths: np.ndarray) -> ort.OrtValue:
        given = {EMBEDS: self._embedded(ids, features)}
        if self._positions is not None:
            given[POSITIONS] = self._next_positions(ids.shape[1])
        logits: ort.OrtValue = self._cache.step(given, lengths)
        return logits


def _integers(name: str, array: np.ndarray) -> np.ndarray:
    """Return int64 [B, S]; raises ArgumentError for anything else."""
    found = np.asarray(array)
    if found.ndim != 2 or 0 in found.shape or found.dtype.kind not in "iub":
        raise ArgumentError(
            f"expected {name} as integers [batch, sequence], got {found.dtype} {list(found.shape)}"
        )
    return np.ascontiguousarray(found, np.int64)
